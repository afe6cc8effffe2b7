//! `AdmissionReview`: what the API server asks and what it is told.
//!
//! k8s: `admission.k8s.io/v1`, and `v1beta1`, which has the same fields where we look.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use json_patch::Patch;
use serde::Serialize;
use serde_json::Value;

const GROUP: &str = "admission.k8s.io/";
const NEWEST: &str = "admission.k8s.io/v1";
// k8s: the API server cuts what is longer, and drops warnings once all of them together are longer than 4096.
const LONGEST_WARNING: usize = 256;
const ALL_WARNINGS: usize = 4096;

/// A question about one object.
#[derive(Debug, Clone, PartialEq)]
pub struct Review {
    /// What the answer must repeat.
    pub head: Head,
    /// Where the object will be.
    pub namespace: String,
    /// `CREATE` and so on; empty when it was not said.
    pub operation: String,
    /// Whether nothing will come of it.
    pub dry_run: bool,
    /// The object, without the parts nobody here may look at.
    pub object: Value,
}

/// What identifies a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    api_version: String,
    uid: String,
}

/// Why a question is none.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// No JSON.
    #[error("read the admission review: {0}")]
    Json(#[from] serde_json::Error),
    /// JSON of something else.
    #[error("the body is not an AdmissionReview: {0}")]
    Shape(String),
}

/// A question that could not be understood, as far as it was.
#[derive(Debug)]
pub struct Unreadable {
    /// What the answer repeats.
    pub head: Head,
    /// Why.
    pub error: ReviewError,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            api_version: NEWEST.to_owned(),
            uid: String::new(),
        }
    }
}

impl Head {
    fn of(body: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let said = text(&body["apiVersion"]).filter(|version| version.starts_with(GROUP));
        Self {
            // differs from istio: what cannot be told is answered as v1, which every API server of today understands.
            api_version: said.unwrap_or_else(|| NEWEST.to_owned()),
            uid: text(&body["request"]["uid"]).unwrap_or_default(),
        }
    }
}

impl Review {
    /// Reads a question.
    pub fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut body: Value = serde_json::from_slice(bytes).map_err(|error| Unreadable {
            head: Head::default(),
            error: error.into(),
        })?;
        let head = Head::of(&body);
        match understand(&mut body) {
            Ok((namespace, operation, dry_run, object)) => Ok(Self {
                head,
                namespace,
                operation,
                dry_run,
                object,
            }),
            Err(problem) => Err(Unreadable {
                head,
                error: ReviewError::Shape(problem),
            }),
        }
    }
}

fn understand(body: &mut Value) -> Result<(String, String, bool, Value), String> {
    match body["apiVersion"].as_str() {
        Some("admission.k8s.io/v1" | "admission.k8s.io/v1beta1") => {}
        Some(other) => return Err(format!("its apiVersion is {:?}", short(other, 80))),
        None => return Err("it has no apiVersion".to_owned()),
    }
    let Some(request @ Value::Object(_)) = body.get_mut("request") else {
        return Err("it has no request".to_owned());
    };
    let text = |request: &Value, field: &str| request[field].as_str().unwrap_or_default().to_owned();
    let (namespace, operation) = (text(request, "namespace"), text(request, "operation"));
    let dry_run = request["dryRun"].as_bool().unwrap_or(false);
    let mut object = request.get_mut("object").map(Value::take).unwrap_or_default();
    if !object.is_object() {
        return Err("its request has no object".to_owned());
    }
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        // Bookkeeping of the API server's; often longer than the pod.
        metadata.remove("managedFields");
    }
    Ok((namespace, operation, dry_run, object))
}

/// What the API server is told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// Whether the object may be.
    pub allowed: bool,
    /// Why not.
    pub message: Option<String>,
    /// What to change.
    pub patch: Option<Patch>,
    /// What whoever created the object is shown.
    pub warnings: Vec<String>,
}

impl Answer {
    /// The object may be, as it is.
    pub fn allow() -> Self {
        Self {
            allowed: true,
            ..Self::default()
        }
    }

    /// The object may not be.
    pub fn refuse(message: impl Into<String>) -> Self {
        Self {
            message: Some(message.into()),
            ..Self::default()
        }
    }

    /// As the API server reads it.
    pub fn to_json(&self, head: &Head) -> Vec<u8> {
        let patch = self.patch.as_ref().filter(|patch| !patch.is_empty());
        let written = Written {
            api_version: &head.api_version,
            kind: "AdmissionReview",
            response: WrittenResponse {
                allowed: self.allowed,
                patch: patch.map(|patch| STANDARD.encode(json_of(patch))),
                patch_type: patch.map(|_| "JSONPatch"),
                status: self
                    .message
                    .as_deref()
                    .map(|message| WrittenStatus { code: 400, message }),
                uid: &head.uid,
                warnings: bounded(&self.warnings),
            },
        };
        json_of(&written)
    }
}

/// Maps with text for keys can always be written.
fn json_of(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// The answer as it is written, straight from what is known.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    api_version: &'a str,
    kind: &'static str,
    response: WrittenResponse<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenResponse<'a> {
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<WrittenStatus<'a>>,
    uid: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct WrittenStatus<'a> {
    code: u16,
    message: &'a str,
}

/// What fits; the last one says how many did not.
fn bounded(warnings: &[String]) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    let mut room = ALL_WARNINGS - LONGEST_WARNING;
    for (index, warning) in warnings.iter().enumerate() {
        // A header carries it: one line.
        let line: String = warning
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let line = short(&line, LONGEST_WARNING);
        let Some(left) = room.checked_sub(line.len()) else {
            kept.push(format!("and {} more", warnings.len() - index));
            break;
        };
        room = left;
        kept.push(line);
    }
    kept
}

/// At most so many bytes, with a mark where something is missing.
fn short(text: &str, longest: usize) -> String {
    const MARK: &str = "…";
    if text.len() <= longest {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(longest - MARK.len());
    format!("{}{MARK}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::{Answer, Review, bounded};
    use base64::Engine as _;
    use serde_json::{Value, json};

    fn review(version: &str, object: &Value) -> Vec<u8> {
        json!({"apiVersion": version, "kind": "AdmissionReview",
            "request": {"uid": "u-1", "namespace": "shop", "operation": "CREATE", "object": object}})
        .to_string()
        .into_bytes()
    }

    #[test]
    fn the_answer_repeats_version_and_uid() {
        for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
            let review = Review::parse(&review(version, &json!({"metadata": {}}))).unwrap();
            let answer: Value = serde_json::from_slice(&Answer::allow().to_json(&review.head)).unwrap();
            assert_eq!(answer["apiVersion"], version);
            assert_eq!(answer["response"], json!({"uid": "u-1", "allowed": true}));
        }
    }

    #[test]
    fn bookkeeping_of_the_api_server_is_not_looked_at() {
        let object = json!({"metadata": {"name": "a", "managedFields": [{"manager": "kubectl"}]}});
        let review = Review::parse(&review("admission.k8s.io/v1", &object)).unwrap();
        assert_eq!(review.object, json!({"metadata": {"name": "a"}}));
    }

    #[test]
    fn what_is_no_review_is_refused_with_as_much_of_its_head_as_there_is() {
        let refused = |body: &[u8]| {
            let unreadable = Review::parse(body).unwrap_err();
            let answer = Answer::refuse(unreadable.error.to_string()).to_json(&unreadable.head);
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            assert_eq!(answer["response"]["allowed"], false);
            (
                answer["response"]["uid"].as_str().unwrap().to_owned(),
                answer["response"]["status"]["message"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
            )
        };
        assert!(refused(b"{").1.starts_with("read the admission review: "));
        let nothing = json!({"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u-2"}});
        let (uid, why) = refused(nothing.to_string().as_bytes());
        assert_eq!(
            (uid.as_str(), why.as_str()),
            (
                "u-2",
                "the body is not an AdmissionReview: its request has no object"
            )
        );
        let foreign = json!({"apiVersion": "v1", "kind": "Pod"});
        assert!(
            refused(foreign.to_string().as_bytes())
                .1
                .ends_with("its apiVersion is \"v1\"")
        );
        let deep = "[".repeat(100_000);
        assert!(refused(deep.as_bytes()).1.contains("recursion"));
    }

    #[test]
    fn warnings_fit_into_what_the_api_server_passes_on() {
        let many: Vec<String> = (0..100).map(|n| format!("{n}: {}", "ä".repeat(300))).collect();
        let kept = bounded(&many);
        assert!(kept.iter().all(|w| w.len() <= 256), "{kept:?}");
        assert!(kept.iter().map(String::len).sum::<usize>() <= 4096);
        assert_eq!(
            kept.last().unwrap(),
            &format!("and {} more", 100 - (kept.len() - 1))
        );
        assert_eq!(bounded(&["two\nlines".to_owned()]), ["two lines"]);
    }

    #[test]
    fn as_many_warnings_are_kept_as_fit() {
        // 15 of them fill what is left when the last one, which counts the others, has its place.
        let warnings = |count: usize| vec!["x".repeat(300); count];
        let kept = bounded(&warnings(15));
        assert!(kept.len() == 15 && kept.iter().all(|w| w.len() == 256 && w.ends_with("x…")));
        let kept = bounded(&warnings(17));
        assert_eq!((kept.len(), kept[15].as_str()), (16, "and 2 more"));
        let whole = "y".repeat(256);
        assert_eq!(bounded(std::slice::from_ref(&whole)), [whole]);
    }

    #[test]
    fn a_patch_is_sent_if_it_changes_something() {
        let head = super::Head::default();
        let written = |patch: Value| -> Value {
            let answer = Answer {
                patch: Some(serde_json::from_value(patch).unwrap()),
                ..Answer::allow()
            };
            let answer: Value = serde_json::from_slice(&answer.to_json(&head)).unwrap();
            answer["response"].clone()
        };
        let patch = json!([{"op": "remove", "path": "/spec"}]);
        let response = written(patch.clone());
        assert_eq!(response["patchType"], "JSONPatch");
        let sent = super::STANDARD
            .decode(response["patch"].as_str().unwrap())
            .unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&sent).unwrap(), patch);
        let nothing = written(json!([]));
        assert!(nothing.get("patch").is_none() && nothing.get("patchType").is_none());
    }
}
