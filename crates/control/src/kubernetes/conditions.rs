//! Which status condition a policy must have, decided without IO.
//!
//! The condition `remora.dev/Enforced` says to the author of a policy whether it is enforced as written. All replicas
//! compute the same condition from the same object, so only the first one has something to write.

use super::policies::generation;
use super::world::{Key, Kind};
use crate::policy::Problem;
use crate::policy::problem::summary;
use serde_json::{Value, json};

/// The type of the condition that the control plane owns.
pub(super) const TYPE: &str = "remora.dev/Enforced";

/// What a control plane found in a version of a policy, and what the status of that version says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    /// What is not enforced as written. Empty: everything is enforced.
    pub(super) finding: Finding,
    /// `metadata.resourceVersion` of the object.
    pub(super) resource_version: String,
    /// `status.conditions` of the object, those of other controllers included.
    pub(super) conditions: Vec<Value>,
}

/// What a control plane found in a generation of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) generation: i64,
    pub(super) problems: Vec<Problem>,
}

/// A policy in the cluster.
pub(super) type Target = (Kind, Key);

impl Verdict {
    pub(super) fn new(document: &Value, problems: &[Problem]) -> Self {
        let metadata = &document["metadata"];
        Self {
            finding: Finding {
                generation: generation(document),
                problems: problems.to_vec(),
            },
            resource_version: metadata["resourceVersion"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            conditions: document["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default(),
        }
    }

    /// The change of the object's status that is due; `None`: there is nothing to write.
    ///
    /// `written` is what this replica last wrote, or found already written. It does not write the same finding twice
    /// over another one: a replica of another version or revision may come to another result, and the two would
    /// overwrite each other without end.
    pub(super) fn patch(&self, written: Option<&Finding>, now: &str) -> Option<Value> {
        if written == Some(&self.finding) && self.conditions.iter().any(is_own) {
            return None;
        }
        let conditions = conditions(&self.finding, &self.conditions, now)?;
        // k8s: a patch that names a version conflicts when the object has another one.
        Some(json!({
            "metadata": {"resourceVersion": self.resource_version},
            "status": {"conditions": conditions},
        }))
    }
}

/// The conditions that an object must have; `None`: it has them. `now` is a timestamp of the Kubernetes API.
fn conditions(finding: &Finding, current: &[Value], now: &str) -> Option<Vec<Value>> {
    let own = current.iter().find(|condition| is_own(condition));
    let wanted = condition(finding, own, now);
    let mut next: Vec<Value> = current.iter().filter(|other| !is_own(other)).cloned().collect();
    let place = current.iter().position(is_own).unwrap_or(next.len());
    next.insert(place, wanted);
    (next != current).then_some(next)
}

fn condition(finding: &Finding, current: Option<&Value>, now: &str) -> Value {
    let (status, reason) = if finding.problems.is_empty() {
        ("True", "Enforced")
    } else {
        ("False", "NotEnforcedAsWritten")
    };
    let since = current
        .filter(|condition| condition["status"] == status)
        .and_then(|condition| condition["lastTransitionTime"].as_str());
    json!({
        "type": TYPE,
        "status": status,
        "reason": reason,
        "message": message(&finding.problems),
        "observedGeneration": finding.generation,
        "lastTransitionTime": since.unwrap_or(now),
    })
}

fn message(problems: &[Problem]) -> String {
    if problems.is_empty() {
        return "every field is enforced as written".to_owned();
    }
    summary(problems).to_string()
}

fn is_own(condition: &Value) -> bool {
    condition["type"] == TYPE
}

#[cfg(test)]
#[path = "conditions_tests.rs"]
mod tests;
