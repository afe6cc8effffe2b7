//! Cases at the edges of the API: what is reported about them, and which workloads are closed.

use super::{assert_closed, document, mesh, one, translated};
use crate::mesh::{Action, Scope, Translation};
use crate::policy::problem::SUMMARY_LIMIT;
use crate::policy::{Consequence, Fault, authorization};
use serde_json::json;

#[test]
fn a_key_that_the_api_does_not_have_is_an_error_and_closes() {
    for key in [
        "source.port",
        "request.header[x]",
        "request.headers",
        "request.headers[]",
        "request.auth.claims",
        "experimental.envoy",
        "",
    ] {
        let problems = assert_closed(&json!({"when": [{"key": key, "values": ["x"]}]}));
        assert!(problems[0].fault.is_error(), "{key}: {problems:?}");
    }
}

#[test]
fn an_unknown_action_denies_the_workloads_of_the_selector_and_no_others() {
    let spec = json!({"action": "BLOCK", "selector": {"matchLabels": {"app": "a"}}, "rules": []});
    let closed = authorization::translate(&document(&spec), &mesh());
    let policy = closed.policy.unwrap();
    assert_eq!(
        (policy.action, policy.scope, policy.rules),
        (Action::Deny, Scope::Workload, vec![authorization::anything()])
    );
    let selector = closed.selector.unwrap();
    for (app, selected) in [("a", true), ("b", false)] {
        assert_eq!(
            selector.matches(json!({"app": app}).as_object()),
            selected,
            "{app}"
        );
    }
}

#[test]
fn a_target_of_the_wrong_type_is_an_error_and_a_sound_one_is_not() {
    let target = json!({"kind": "Gateway", "name": "w"});
    for (field, value, is_error) in [
        ("targetRef", target.clone(), false),
        ("targetRef", json!([target]), true),
        ("targetRef", json!("w"), true),
        ("targetRefs", json!([target]), false),
        ("targetRefs", target.clone(), true),
    ] {
        let spec = json!({field: value, "rules": [{}]});
        let translated = authorization::translate(&document(&spec), &mesh());
        let [problem] = &translated.problems[..] else {
            panic!("{spec}: {:?}", translated.problems)
        };
        assert_eq!(problem.fault.is_error(), is_error, "{spec}: {problem}");
        let names_type = |kind: &str| problem.to_string().contains(kind);
        let kind = if field == "targetRef" {
            "an object"
        } else {
            "a list"
        };
        assert_eq!(names_type(kind), is_error, "{spec}: {problem}");
    }
}

#[test]
fn fields_that_are_null_are_fields_that_are_not_there() {
    for action in ["ALLOW", "DENY"] {
        let spec = json!({"action": action, "selector": null, "targetRef": null, "targetRefs": null,
            "provider": null, "rules": [{}]});
        let (policy, problems) = translated(&spec);
        assert_eq!(problems, [], "{action}");
        assert_eq!(policy.rules, [authorization::anything()], "{action}");
    }
}

#[test]
fn a_denial_without_rules_denies_nothing() {
    for spec in [
        json!({"action": "DENY"}),
        json!({"action": "DENY", "rules": null}),
        json!({"action": "DENY", "rules": []}),
    ] {
        let (policy, problems) = translated(&spec);
        assert_eq!((policy.action, policy.rules), (Action::Deny, vec![]), "{spec}");
        assert_eq!(problems, [], "{spec}");
    }
}

#[test]
fn an_unknown_field_is_reported_with_what_really_follows_from_it() {
    for (spec, action, expected) in [
        (json!({"rulez": []}), Action::Deny, Consequence::DeniesEverything),
        (
            json!({"action": "ALLOW", "rulez": []}),
            Action::Allow,
            Consequence::PolicyAllowsNothing,
        ),
        (
            json!({"provider": {"name": "x"}}),
            Action::Allow,
            Consequence::PolicyAllowsNothing,
        ),
        (
            json!({"action": "DENY", "rulez": [], "rules": [{}]}),
            Action::Deny,
            Consequence::ConditionIgnored,
        ),
    ] {
        let (policy, problems) = translated(&spec);
        assert_eq!(policy.action, action, "{spec}");
        assert_eq!(problems[0].consequence, expected, "{spec}");
    }
}

#[test]
fn a_provider_belongs_to_custom_and_is_no_problem_there() {
    let spec = |action: &str| json!({"action": action, "provider": {"name": "x"}, "rules": [{}]});
    let (_, problems) = translated(&spec("CUSTOM"));
    let found: Vec<Consequence> = problems.iter().map(|problem| problem.consequence).collect();
    assert_eq!(found, [Consequence::Denies], "{problems:?}");
    for action in ["ALLOW", "DENY"] {
        let (_, problems) = translated(&spec(action));
        assert_eq!(problems.len(), 1, "{action}: {problems:?}");
        assert!(problems[0].to_string().contains("only CUSTOM"), "{problems:?}");
    }
}

#[test]
fn a_selector_beside_targets_is_reported_as_a_conflict_and_no_targets_as_empty() {
    let with = |targets: &serde_json::Value| {
        let spec = json!({"selector": {"matchLabels": {"app": "a"}}, "targetRefs": targets, "rules": [{}]});
        translated(&spec).1.remove(0).fault
    };
    let conflict = with(&json!([{"kind": "Gateway", "name": "w"}]));
    assert!(matches!(conflict, Fault::Conflict { .. }), "{conflict:?}");
    assert_eq!(with(&json!([])), Fault::Empty);
}

#[test]
fn trust_domains_beside_principals_keep_the_principals() {
    let source = json!({"trustDomains": ["td"], "principals": ["other/ns/a/sa/b"]});
    let (rules, problems) = one("ALLOW", &json!({"from": [{"source": source}]}));
    assert_eq!(problems, []);
    assert_eq!(rules[0].from[0].principals, ["other/ns/a/sa/b"]);
    let source = json!({"notTrustDomains": ["td"], "notPrincipals": ["other/ns/a/sa/b"]});
    let (rules, _) = one("DENY", &json!({"from": [{"source": source}]}));
    assert_eq!(rules[0].from[0].not_principals, ["other/ns/a/sa/b", "*"]);
}

#[test]
fn a_selector_without_labels_selects_every_workload_of_the_namespace() {
    for selector in [
        json!({}),
        json!({"matchLabels": {}}),
        json!({"matchLabels": null}),
    ] {
        let spec = json!({"action": "DENY", "selector": selector, "rules": [{}]});
        let translated = authorization::translate(&document(&spec), &mesh());
        assert_eq!(translated.problems, [], "{selector}");
        assert_eq!(translated.selector, None, "{selector}");
        assert_eq!(translated.policy.unwrap().scope, Scope::Namespace, "{selector}");
    }
}

/// Proxies explain their decisions with it: reasons, and the author's numbers of rules.
#[test]
fn a_translation_says_what_is_missing_and_why() {
    let (typo, http) = (
        json!({"from": [{"source": {"principal": ["x"]}}]}),
        json!({"to": [{"operation": {"methods": ["GET"]}}]}),
    );
    let ports = json!({"to": [{"operation": {"ports": ["80"]}}]});
    let (policy, problems) = translated(&json!({"rules": [typo, ports, http]}));
    assert_eq!(policy.rules.len(), 1);
    assert_eq!(policy.translation.left_out_rules, [0, 2]);
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(policy.translation.not_enforced, texts);
    assert!(!policy.translation.synthetic_rules);
    let (policy, _) = translated(&json!({"rules": [ports]}));
    assert_eq!(policy.translation, Translation::default(), "nothing is sent");
    for closed in [
        json!({"action": "BLOCK", "rules": [ports]}),
        json!({"rulez": [ports]}),
        json!({"action": "DENY", "rulez": [ports]}),
        json!({"action": "DENY", "rules": "all"}),
        json!({"action": "ALLOW", "provider": {}, "rules": [ports]}),
        json!("all"),
    ] {
        let (policy, problems) = translated(&closed);
        assert!(policy.translation.synthetic_rules, "{closed}");
        assert_eq!(policy.translation.not_enforced.len(), problems.len(), "{closed}");
    }
}

#[test]
fn what_is_said_about_a_policy_is_limited_and_counts_the_rest() {
    let fields: serde_json::Map<_, _> = (0..100).map(|n| (format!("field{n}"), json!([]))).collect();
    let (policy, problems) = translated(&json!({"rules": [{"from": [{"source": fields}]}]}));
    assert_eq!(problems.len(), 100);
    let lines = policy.translation.not_enforced;
    let letters: usize = lines.iter().map(|line| line.chars().count() + 2).sum();
    assert!(letters <= SUMMARY_LIMIT, "{letters}");
    let told = lines.len() - 1;
    assert_eq!(lines[told], format!("and {} more", 100 - told));
}
