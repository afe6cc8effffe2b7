//! Istio's policies among the documents: what a proxy will not enforce as written.

use remora_control::policy::{self, Mesh, Problem};
use remora_pod::{Path, object, workload};
use remora_startup::findings::Severity;
use serde_json::Value;
use std::fmt;

/// The author has to correct it.
const NOT_UNDERSTOOD: &str = "RM025";
/// It is right, and this proxy does not enforce it.
const NOT_ENFORCED: &str = "RM026";

/// A field of a policy.
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// Where it is in the document, which may be a list of objects.
    pub(super) path: Path,
    name: String,
    problem: Problem,
}

impl Finding {
    fn code(&self) -> &'static str {
        if self.severity == Severity::Error {
            NOT_UNDERSTOOD
        } else {
            NOT_ENFORCED
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code(), self.name, self.problem)
    }
}

/// Of a document, or of each object of a list.
pub(super) fn findings(document: &Value) -> Vec<Finding> {
    let Some(items) = workload::items(document) else {
        return of_object(document, &Path::root());
    };
    let at = Path::of(&["items"]);
    let numbered = items.iter().enumerate();
    numbered
        .flat_map(|(index, item)| of_object(item, &at.join(index)))
        .collect()
}

fn of_object(object: &Value, at: &Path) -> Vec<Finding> {
    let problems = policy::problems(object, &Mesh::default()).unwrap_or_default();
    let finding = |problem: Problem| Finding {
        severity: if problem.fault.is_error() {
            Severity::Error
        } else {
            Severity::Warning
        },
        path: at.concat(&problem.field),
        name: object::display_name(object),
        problem,
    };
    problems.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::findings;
    use serde_json::json;

    #[test]
    fn policies_are_found_in_lists_too_and_have_codes() {
        let policy = json!({"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": {"name": "p", "namespace": "shop"},
            "spec": {"rules": [{"to": [{"operation": {"methods": ["GET"], "port": ["80"]}}]}]}});
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [{"kind": "Pod"}, policy]});
        let found: Vec<String> = findings(&list)
            .iter()
            .map(|f| format!("{} {f}", f.path))
            .collect();
        assert_eq!(found.len(), 2, "{found:?}");
        let start = "items[1].spec.rules[0].to[0].operation";
        assert!(
            found[0].starts_with(&format!("{start}.port RM025 AuthorizationPolicy \"shop/p\": ")),
            "{found:?}"
        );
        assert!(
            found[1].starts_with(&format!("{start}.methods RM026 ")),
            "{found:?}"
        );
        assert!(findings(&json!({"kind": "Pod"})).is_empty());
    }
}
