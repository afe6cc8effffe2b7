use super::{Finding, TYPE, Verdict, conditions};
use crate::policy::peer_authentication;
use crate::policy::problem::SUMMARY_LIMIT;
use serde_json::{Value, json};

const BEFORE: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-01-02T00:00:00Z";

/// A finding about a policy with so many fields that the API does not have.
fn finding(generation: i64, unknown_fields: usize) -> Finding {
    let fields = (0..unknown_fields).map(|number| (format!("mispelt{number}"), json!(1)));
    let document = json!({"metadata": {"name": "p", "namespace": "shop"},
        "spec": Value::Object(fields.collect())});
    let (_, problems) = peer_authentication::read(&document, "istio-system");
    assert_eq!(problems.len(), unknown_fields);
    Finding { generation, problems }
}

fn enforced(generation: i64, since: &str) -> Value {
    json!({"type": TYPE, "status": "True", "reason": "Enforced", "message": "every field is enforced as written",
        "observedGeneration": generation, "lastTransitionTime": since})
}

fn verdict(finding: Finding, conditions: Vec<Value>) -> Verdict {
    Verdict {
        finding,
        resource_version: "7".to_owned(),
        conditions,
    }
}

#[test]
fn a_problem_is_named_with_its_field_fault_and_consequence() {
    let next = conditions(&finding(3, 1), &[], NOW).unwrap();
    let [condition] = &next[..] else {
        panic!("{next:?}")
    };
    assert_eq!(condition["type"], "remora.dev/Enforced");
    assert_eq!(condition["status"], "False");
    assert_eq!(condition["reason"], "NotEnforcedAsWritten");
    assert_eq!(condition["observedGeneration"], 3);
    assert_eq!(condition["lastTransitionTime"], NOW);
    let message = condition["message"].as_str().unwrap();
    assert!(message.starts_with("spec.mispelt0: unknown field; "), "{message}");
}

#[test]
fn nothing_is_written_where_the_condition_is_right() {
    assert_eq!(conditions(&finding(1, 0), &[enforced(1, BEFORE)], NOW), None);
    let wrong = conditions(&finding(1, 2), &[], BEFORE).unwrap();
    assert_eq!(conditions(&finding(1, 2), &wrong, NOW), None);
}

#[test]
fn the_time_of_transition_changes_with_the_status_only() {
    let next = conditions(&finding(2, 0), &[enforced(1, BEFORE)], NOW).unwrap();
    assert_eq!(next, [enforced(2, BEFORE)]);
    let wrong = conditions(&finding(3, 1), &next, NOW).unwrap();
    assert_eq!(wrong[0]["lastTransitionTime"], NOW);
    assert_eq!(wrong[0]["status"], "False");
}

#[test]
fn conditions_of_other_controllers_stay_in_their_place() {
    let other = |name: &str| json!({"type": name, "status": "True", "extra": [1]});
    let stale = enforced(1, BEFORE);
    let current = [other("Reconciled"), stale.clone(), other("Accepted"), stale];
    let next = conditions(&finding(2, 0), &current, NOW).unwrap();
    assert_eq!(
        next,
        [other("Reconciled"), enforced(2, BEFORE), other("Accepted")],
        "a duplicate of the own condition is removed"
    );
    let added = conditions(&finding(2, 0), &[other("Accepted")], NOW).unwrap();
    assert_eq!(added, [other("Accepted"), enforced(2, NOW)]);
}

#[test]
fn a_message_is_bounded_and_says_how_many_problems_it_leaves_out() {
    let next = conditions(&finding(1, 500), &[], NOW).unwrap();
    let message = next[0]["message"].as_str().unwrap();
    assert!(message.chars().count() <= SUMMARY_LIMIT, "{message}");
    let shown = message.matches("unknown field").count();
    assert!(
        message.ends_with(&format!(" (and {} more)", 500 - shown)),
        "{message}"
    );

    let field = "ü".repeat(5000);
    let document = json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": {field: 1, "z": 1}});
    let (_, problems) = peer_authentication::read(&document, "istio-system");
    let finding = Finding {
        generation: 1,
        problems,
    };
    let next = conditions(&finding, &[], NOW).unwrap();
    assert!(next[0]["message"].as_str().unwrap().chars().count() <= SUMMARY_LIMIT);
}

#[test]
fn a_patch_applies_to_the_version_that_was_judged() {
    let patch = verdict(finding(1, 0), Vec::new()).patch(None, NOW).unwrap();
    assert_eq!(
        patch,
        json!({"metadata": {"resourceVersion": "7"}, "status": {"conditions": [enforced(1, NOW)]}})
    );
}

#[test]
fn a_replica_does_not_overwrite_another_opinion_with_the_same_finding_twice() {
    let own = finding(1, 1);
    let other = vec![enforced(1, BEFORE)];
    let seen = verdict(own.clone(), other.clone());
    assert!(seen.patch(None, NOW).is_some());
    assert_eq!(seen.patch(Some(&own), NOW), None);
    // A new generation or another finding is written, and so is a condition that was removed.
    assert!(verdict(finding(2, 1), other).patch(Some(&own), NOW).is_some());
    assert!(verdict(own.clone(), Vec::new()).patch(Some(&own), NOW).is_some());
}
