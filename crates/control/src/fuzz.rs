//! Entry points for fuzzing: whatever is sent as an admission review, the answer is one that an API server can read.

use crate::webhook::Rules;
use crate::webhook::judge::judge;
use crate::webhook::mutate::mutate;
use crate::webhook::review::{Answer, Head, Review};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::sync::OnceLock;

/// An answer repeats parts of the question, and has a sidecar and a few lines for each container.
const GROWTH: usize = 200;
const SIDECAR: usize = 256 << 10;

static RULES: OnceLock<Rules> = OnceLock::new();

/// The body of a request to the webhooks.
///
/// # Panics
///
/// If an answer is no `AdmissionReview`, is far longer than the question, or has a patch that does not fit the object.
pub fn review(bytes: &[u8]) {
    let rules = RULES.get_or_init(Rules::default);
    let most = SIDECAR + bytes.len() * GROWTH;
    match Review::parse(bytes) {
        Err(unreadable) => {
            let answer = Answer::refuse(unreadable.error.to_string());
            written(&answer, &unreadable.head, most);
        }
        Ok(review) => {
            let (injected, _) = mutate(&review, "/inject/cluster/east/net/n1", rules);
            let answer = written(&injected, &review.head, most);
            if let Some(patch) = answer["response"]["patch"].as_str() {
                let patch = STANDARD.decode(patch).unwrap_or_default();
                let patch: Result<json_patch::Patch, _> = serde_json::from_slice(&patch);
                let mut object = review.object.clone();
                let applied = patch.is_ok_and(|patch| json_patch::patch(&mut object, &patch).is_ok());
                assert!(applied, "the patch does not fit");
            }
            let (judged, _) = judge(&review, rules);
            written(&judged, &review.head, most);
        }
    }
}

fn written(answer: &Answer, head: &Head, most: usize) -> Value {
    let bytes = answer.to_json(head);
    assert!(bytes.len() <= most, "{} bytes, not {most}", bytes.len());
    let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    assert_eq!(value["kind"], "AdmissionReview");
    assert!(value["response"]["uid"].is_string());
    assert_eq!(value["response"]["allowed"], answer.allowed);
    value
}
