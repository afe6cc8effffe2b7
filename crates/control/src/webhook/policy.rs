//! The validating webhook of policies: says at creation what will not be enforced as written.
//!
//! A document that its author has to correct is refused: an unknown field, a wrong type, a value that cannot be parsed.
//! What is right but not enforced, such as conditions on HTTP requests, is a warning.

use super::mutate::namespace_of;
use super::review::{Answer, Review};
use crate::policy::{self, Mesh, Problem};
use serde_json::{Value, json};

/// Answers a review that came to `/policy`.
pub fn judge(review: &Review, mesh: &Mesh) -> Answer {
    // Its finalizers must be removable, whatever it says.
    if !review.object["metadata"]["deletionTimestamp"].is_null() {
        return Answer::allow();
    }
    let mut object = review.object.clone();
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.insert("namespace".to_owned(), json!(namespace_of(review)));
    }
    let problems = policy::problems(&object, mesh).unwrap_or_default();
    let (errors, limits): (Vec<Problem>, Vec<Problem>) =
        problems.into_iter().partition(|problem| problem.fault.is_error());
    if errors.is_empty() {
        return Answer {
            warnings: limits
                .iter()
                .map(|problem| format!("remora: {problem}"))
                .collect(),
            ..Answer::allow()
        };
    }
    let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Answer::refuse(format!(
        "the policy would not be enforced as written: {}",
        all.join(". ")
    ))
}

#[cfg(test)]
mod tests {
    use super::judge;
    use crate::policy::Mesh;
    use crate::webhook::review::{Answer, Review};
    use serde_json::{Value, json};

    fn asked(metadata: &Value, spec: &Value) -> Answer {
        let object = json!({"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": metadata, "spec": spec});
        let body = json!({"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "namespace": "shop",
            "operation": "CREATE", "object": object}});
        judge(
            &Review::parse(body.to_string().as_bytes()).unwrap(),
            &Mesh::default(),
        )
    }

    #[test]
    fn a_policy_with_a_mistake_is_refused_and_the_field_is_named() {
        // What a misspelt field of a source becomes when the API server prunes it.
        let answer = asked(
            &json!({"name": "p"}),
            &json!({"rules": [{"from": [{"source": {}}]}]}),
        );
        assert!(!answer.allowed);
        let message = answer.message.unwrap();
        assert!(
            message.contains("spec.rules[0].from[0].source: must not be empty"),
            "{message}"
        );
    }

    #[test]
    fn what_is_right_but_not_enforced_is_a_warning() {
        let spec = json!({"rules": [{"to": [{"operation": {"methods": ["GET"]}}]}]});
        let answer = asked(&json!({"name": "p"}), &spec);
        assert!(answer.allowed && answer.warnings.len() == 1, "{answer:?}");
        let sound = json!({"rules": [{"from": [{"source": {"serviceAccounts": ["web"]}}]}]});
        assert_eq!(asked(&json!({"name": "p"}), &sound), Answer::allow());
    }

    #[test]
    fn a_policy_that_is_being_deleted_is_let_go() {
        let metadata = json!({"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(asked(&metadata, &json!({"rulez": []})), Answer::allow());
    }
}
