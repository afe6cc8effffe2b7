mod edges;

use super::{Consequence, Fault, Mesh, Problem, authorization, problems};
use crate::mesh::{Action, Match, Policy, Rule, Scope, Visibility};
use remora_mtls::TrustDomains;
use serde_json::{Value, json};

fn mesh() -> Mesh {
    Mesh {
        root_namespace: "istio-system".to_owned(),
        trust_domains: TrustDomains::new("td", &["old-td"]).unwrap(),
    }
}

fn document(spec: &Value) -> Value {
    json!({"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "p", "namespace": "shop"}, "spec": spec})
}

fn translated(spec: &Value) -> (Policy, Vec<Problem>) {
    let translated = authorization::translate(&document(spec), &mesh());
    (translated.policy.unwrap(), translated.problems)
}

fn one(action: &str, rule: &Value) -> (Vec<Rule>, Vec<Problem>) {
    let (policy, problems) = translated(&json!({"action": action, "rules": [rule]}));
    (policy.rules, problems)
}

fn texts(values: &[&str]) -> Vec<String> {
    values.iter().map(|text| (*text).to_owned()).collect()
}

/// Every L4 field with a value, and the condition it becomes.
#[expect(clippy::too_many_lines, reason = "a table")]
fn fields() -> Vec<(&'static str, &'static str, Value, Match)> {
    let both = texts(&["td/ns/a/sa/b", "old-td/ns/a/sa/b"]);
    let principal = json!(["cluster.local/ns/a/sa/b"]);
    let none = Match::default;
    let presence = texts(&["*"]);
    vec![
        (
            "from",
            "principals",
            principal.clone(),
            Match {
                principals: both.clone(),
                ..none()
            },
        ),
        (
            "from",
            "notPrincipals",
            principal,
            Match {
                not_principals: both,
                ..none()
            },
        ),
        (
            "from",
            "namespaces",
            json!(["a", "b*"]),
            Match {
                namespaces: texts(&["a", "b*"]),
                ..none()
            },
        ),
        (
            "from",
            "notNamespaces",
            json!(["a"]),
            Match {
                not_namespaces: texts(&["a"]),
                ..none()
            },
        ),
        (
            "from",
            "serviceAccounts",
            json!(["a/b", "c"]),
            Match {
                service_accounts: texts(&["a/b", "shop/c"]),
                ..none()
            },
        ),
        (
            "from",
            "notServiceAccounts",
            json!(["a/b"]),
            Match {
                not_service_accounts: texts(&["a/b"]),
                ..none()
            },
        ),
        (
            "from",
            "ipBlocks",
            json!(["10.0.0.0/8", "::1"]),
            Match {
                source_ips: texts(&["10.0.0.0/8", "::1"]),
                ..none()
            },
        ),
        (
            "from",
            "notIpBlocks",
            json!(["10.0.0.1"]),
            Match {
                not_source_ips: texts(&["10.0.0.1"]),
                ..none()
            },
        ),
        (
            "from",
            "trustDomains",
            json!(["old-td"]),
            Match {
                principals: presence.clone(),
                ..none()
            },
        ),
        (
            "from",
            "notTrustDomains",
            json!(["td"]),
            Match {
                not_principals: presence,
                ..none()
            },
        ),
        (
            "to",
            "ports",
            json!(["80", "8080"]),
            Match {
                ports: vec![80, 8080],
                ..none()
            },
        ),
        (
            "to",
            "notPorts",
            json!(["80"]),
            Match {
                not_ports: vec![80],
                ..none()
            },
        ),
    ]
}

const HTTP: [(&str, &str); 10] = [
    ("from", "requestPrincipals"),
    ("from", "notRequestPrincipals"),
    ("from", "remoteIpBlocks"),
    ("from", "notRemoteIpBlocks"),
    ("to", "hosts"),
    ("to", "notHosts"),
    ("to", "methods"),
    ("to", "notMethods"),
    ("to", "paths"),
    ("to", "notPaths"),
];

fn entry(list: &str, fields: &Value) -> Value {
    let inner = if list == "from" { "source" } else { "operation" };
    json!({list: [{inner: fields}]})
}

#[test]
fn every_l4_field_becomes_its_condition_and_nothing_else() {
    for (list, field, value, expected) in fields() {
        for action in ["ALLOW", "DENY"] {
            let (rules, problems) = one(action, &entry(list, &json!({field: value})));
            assert_eq!(problems, [], "{field}");
            let [rule] = &rules[..] else {
                panic!("{field}: {rules:?}")
            };
            let (found, other) = if list == "from" {
                (&rule.from, &rule.to)
            } else {
                (&rule.to, &rule.from)
            };
            assert_eq!(found, std::slice::from_ref(&expected), "{field}");
            assert!(other.is_empty() && rule.when.is_empty(), "{field}");
        }
    }
}

#[test]
fn every_l4_key_becomes_its_condition_for_values_and_for_not_values() {
    let none = Match::default;
    let (p, other_p) = (
        texts(&["td/ns/a/sa/b", "old-td/ns/a/sa/b"]),
        texts(&["td/ns/c/sa/d", "old-td/ns/c/sa/d"]),
    );
    let (a, b) = (texts(&["a"]), texts(&["b"]));
    let (ip, outside_ip) = (texts(&["10.0.0.0/8"]), texts(&["10.1.0.0/16"]));
    for (key, value, not_value, expected) in [
        (
            "source.principal",
            "td/ns/a/sa/b",
            "td/ns/c/sa/d",
            Match {
                principals: p,
                not_principals: other_p,
                ..none()
            },
        ),
        (
            "source.namespace",
            "a",
            "b",
            Match {
                namespaces: a,
                not_namespaces: b,
                ..none()
            },
        ),
        (
            "source.serviceAccount",
            "a",
            "x/b",
            Match {
                service_accounts: texts(&["shop/a"]),
                not_service_accounts: texts(&["x/b"]),
                ..none()
            },
        ),
        (
            "source.trustDomain",
            "*",
            "stranger",
            Match {
                principals: texts(&["*"]),
                ..none()
            },
        ),
        (
            "source.ip",
            "10.0.0.0/8",
            "10.1.0.0/16",
            Match {
                source_ips: ip.clone(),
                not_source_ips: outside_ip.clone(),
                ..none()
            },
        ),
        (
            "destination.ip",
            "10.0.0.0/8",
            "10.1.0.0/16",
            Match {
                destination_ips: ip,
                not_destination_ips: outside_ip,
                ..none()
            },
        ),
        (
            "destination.port",
            "80",
            "81",
            Match {
                ports: vec![80],
                not_ports: vec![81],
                ..none()
            },
        ),
    ] {
        let rule = json!({"when": [{"key": key, "values": [value], "notValues": [not_value]}]});
        let (rules, problems) = one("ALLOW", &rule);
        assert_eq!((problems.len(), rules.len()), (0, 1), "{key}: {problems:?}");
        assert_eq!(rules[0].when, [expected], "{key}");
    }
}

/// What an ALLOW and a DENY rule become that has nothing but a condition with a problem.
fn assert_closed(rule: &Value) -> Vec<Problem> {
    let (rules, problems) = one("ALLOW", rule);
    assert_eq!(rules, [], "ALLOW {rule}");
    assert!(
        problems
            .iter()
            .all(|p| p.consequence == Consequence::RuleAllowsNothing),
        "{problems:?}"
    );
    let (rules, denied) = one("DENY", rule);
    assert_eq!(rules, [authorization::anything()], "DENY {rule}");
    assert!(
        denied
            .iter()
            .all(|p| p.consequence == Consequence::ConditionIgnored),
        "{denied:?}"
    );
    assert!(!problems.is_empty() && problems.len() == denied.len(), "{rule}");
    problems
}

#[test]
fn http_fields_are_known_but_allow_nothing_and_deny_without_them() {
    for (list, field) in HTTP {
        let problems = assert_closed(&entry(list, &json!({field: ["x"]})));
        assert!(!problems[0].fault.is_error(), "{field}: {problems:?}");
    }
    for key in [
        "request.headers[x]",
        "remote.ip",
        "request.auth.principal",
        "request.auth.audiences",
        "request.auth.presenter",
        "request.auth.claims[iss]",
        "request.auth.claims[a][b]",
        "connection.sni",
        "experimental.envoy.filters.network.x[y]",
    ] {
        let problems = assert_closed(&json!({"when": [{"key": key, "values": ["x"]}]}));
        assert!(!problems[0].fault.is_error(), "{key}: {problems:?}");
    }
}

#[test]
fn a_field_that_is_misspelt_empty_or_of_another_type_closes() {
    let all = fields()
        .into_iter()
        .map(|(list, field, value, _)| (list, field, value));
    let http = HTTP.map(|(list, field)| (list, field, json!(["x"])));
    for (list, field, value) in all.chain(http) {
        let misspelt = format!("{field}x");
        let problems = assert_closed(&entry(list, &json!({misspelt: value})));
        assert_eq!(problems[0].fault, Fault::UnknownField, "{field}");
        for wrong in [
            json!([]),
            json!(null),
            json!("x"),
            json!({"a": 1}),
            json!([1]),
            json!([""]),
            json!([null]),
            json!(true),
        ] {
            let problems = assert_closed(&entry(list, &json!({field: wrong})));
            assert!(problems[0].fault.is_error(), "{field} {wrong}");
        }
    }
}

#[test]
fn a_value_that_cannot_be_parsed_closes() {
    for (list, field, wrong) in [
        ("from", "principals", "web"),
        ("from", "principals", "td/ns/*/sa/b"),
        ("from", "notPrincipals", "*/ns/a/*"),
        ("from", "namespaces", "a*b"),
        ("from", "notNamespaces", "a/b"),
        ("from", "serviceAccounts", "a/*"),
        ("from", "serviceAccounts", "/b"),
        ("from", "notServiceAccounts", "a/b/c"),
        ("from", "ipBlocks", "10.1.0.0-10.2.0.0"),
        ("from", "ipBlocks", "::ffff:10.0.0.1"),
        ("from", "notIpBlocks", "10.0.0.0/33"),
        ("from", "notIpBlocks", "10.0.0.0/+8"),
        ("from", "trustDomains", "td/x"),
        ("from", "notTrustDomains", "t*d"),
        ("to", "ports", "9990-9999"),
        ("to", "ports", "http"),
        ("to", "notPorts", "70000"),
    ] {
        let problems = assert_closed(&entry(list, &json!({field: [wrong]})));
        assert!(
            matches!(problems[0].fault, Fault::Value { .. }),
            "{field} {wrong}: {problems:?}"
        );
    }
    // A good value beside it does not help: which others were meant is not known.
    let (rules, _) = one("DENY", &entry("from", &json!({"ipBlocks": ["10.0.0.0/8", "x"]})));
    assert_eq!(rules, [authorization::anything()]);
}

#[test]
fn a_denial_keeps_the_conditions_that_can_be_read() {
    let rule = entry("to", &json!({"methods": ["DELETE"], "ports": ["80"]}));
    let (rules, _) = one("DENY", &rule);
    assert_eq!(rules[0].to[0].ports, [80]);
    let rule = json!({"from": [{"source": {"namespaces": ["a"]}}], "to": "x", "when": [{"key": "y", "values": ["z"]}]});
    let (rules, problems) = one("DENY", &rule);
    assert_eq!(
        (
            rules[0].from[0].namespaces.as_slice(),
            rules[0].to.len(),
            rules[0].when.len()
        ),
        (&["a".to_owned()][..], 0, 0)
    );
    assert_eq!(problems.len(), 2, "{problems:?}");
    // One source that cannot be read is any source, so the others decide nothing.
    let rule = json!({"from": [{"source": {"namespaces": ["a"]}}, {"source": {"x": ["y"]}}]});
    assert_eq!(one("DENY", &rule).0, [authorization::anything()]);
    assert_eq!(one("ALLOW", &rule).0, []);
}

#[test]
fn parts_of_a_rule_that_are_missing_or_wrong_close() {
    for rule in [
        json!(null),
        json!("x"),
        json!([]),
        json!({"form": []}),
        json!({"from": []}),
        json!({"from": null}),
        json!({"from": [{}]}),
        json!({"from": [null]}),
        json!({"from": [{"source": {}}]}),
        json!({"from": [{"source": null}]}),
        json!({"from": [{"sources": {"namespaces": ["a"]}}]}),
        json!({"to": [{"operation": {}}]}),
        json!({"to": {}}),
        json!({"when": []}),
        json!({"when": [{}]}),
        json!({"when": [{"key": "source.ip"}]}),
        json!({"when": [{"key": "source.ip", "values": []}]}),
        json!({"when": [{"key": "source.ip", "value": ["10.0.0.1"]}]}),
        json!({"when": [{"key": "source.port", "values": ["1"]}]}),
        json!({"when": [{"key": 1, "values": ["1"]}]}),
        json!({"when": [{"values": ["1"]}]}),
        json!({"from": [{"source": {"serviceAccounts": [], "principals": []}}]}),
    ] {
        assert_closed(&rule);
    }
    assert_eq!(
        one("ALLOW", &json!({})).0,
        [authorization::anything()],
        "an empty rule matches all"
    );
}

#[test]
fn a_trust_domain_of_strangers_matches_nobody() {
    let rule = entry("from", &json!({"trustDomains": ["stranger"]}));
    for action in ["ALLOW", "DENY"] {
        assert_eq!(one(action, &rule), (vec![], vec![]), "{action}");
    }
    let rule = entry("from", &json!({"notTrustDomains": ["stranger"]}));
    assert_eq!(one("DENY", &rule).0, [authorization::anything()]);
}

#[test]
fn service_accounts_beside_principals_are_a_contradiction() {
    let rule = entry(
        "from",
        &json!({"serviceAccounts": ["a"], "principals": ["td/ns/a/sa/b"]}),
    );
    assert_eq!(one("ALLOW", &rule).0, []);
    let (rules, _) = one("DENY", &rule);
    assert_eq!(
        (
            rules[0].from[0].service_accounts.len(),
            rules[0].from[0].principals.len()
        ),
        (0, 2)
    );
}

#[test]
fn fields_of_the_policy_that_are_not_understood_close() {
    let rules = json!([{"from": [{"source": {"namespaces": ["a"]}}]}]);
    for (field, value) in [
        ("rulez", json!([])),
        ("provider", json!({"name": "x"})),
        ("selector", json!("app")),
        ("selector", json!({"matchExpressions": []})),
        ("selector", json!({"matchLabels": {"app": 1}})),
        ("selector", json!({"matchLabels": "app"})),
        ("targetRefs", json!([])),
    ] {
        let (allow, problems) = translated(&json!({"action": "ALLOW", "rules": rules, field: value}));
        assert_eq!(
            (allow.rules.len(), allow.scope),
            (0, Scope::Namespace),
            "{field} {value}"
        );
        assert!(!problems.is_empty(), "{field}");
        let (deny, _) = translated(&json!({"action": "DENY", "rules": rules, field: value}));
        assert_eq!(
            (deny.rules.len(), deny.scope),
            (1, Scope::Namespace),
            "{field} {value}"
        );
    }
    for action in ["deny", "", "Allow"] {
        let (closed, problems) = translated(&json!({"action": action, "rules": [{}]}));
        assert_eq!(
            (closed.action, closed.rules.len(), problems.len()),
            (Action::Deny, 1, 1),
            "{action}"
        );
    }
    let (closed, _) = translated(&json!({"action": 1, "rules": [{}]}));
    assert_eq!((closed.action, closed.rules.len()), (Action::Deny, 1));
    let (closed, _) = translated(&json!("DENY"));
    assert_eq!((closed.action, closed.rules.len()), (Action::Deny, 1));
    for wrong in [
        json!({"action": "DENY", "rule": []}),
        json!({"action": "DENY", "rules": {}}),
    ] {
        assert_eq!(translated(&wrong).0.rules, [authorization::anything()], "{wrong}");
    }
}

#[test]
fn policies_for_gateways_are_not_for_sidecars() {
    for spec in [
        json!({"targetRefs": [{"kind": "Gateway", "name": "w"}], "rules": [{}]}),
        json!({"targetRef": {"kind": "Gateway", "name": "w"}, "rules": [{}]}),
        json!({"targetRefs": {"kind": "Gateway"}, "rules": [{}]}),
        json!({"targetRefs": "w", "action": "DENY", "rules": [{}]}),
    ] {
        let translated = authorization::translate(&document(&spec), &mesh());
        assert_eq!(translated.policy, None, "{spec}");
        assert_eq!(
            translated.problems[0].consequence,
            Consequence::NotApplied,
            "{spec}"
        );
    }
    let both = json!({"selector": {"matchLabels": {"app": "a"}}, "targetRefs": [{"kind": "Gateway"}], "rules": [{}]});
    let (closed, _) = translated(&both);
    assert_eq!(
        (closed.scope, closed.rules.len()),
        (Scope::Workload, 0),
        "selected workloads are not left open"
    );
}

#[test]
fn custom_denies_what_it_matches_and_audit_changes_nothing() {
    let spec = |action: &str| {
        json!({"action": action, "provider": {"name": "x"},
        "rules": [{"to": [{"operation": {"ports": ["80"], "paths": ["/admin"]}}]}]})
    };
    let (custom, problems) = translated(&spec("CUSTOM"));
    assert_eq!(
        (custom.action, custom.rules[0].to[0].ports.as_slice()),
        (Action::Deny, &[80][..])
    );
    assert_eq!(problems[0].consequence, Consequence::Denies);
    let audit = authorization::translate(&document(&spec("AUDIT")), &mesh());
    assert_eq!(
        (audit.policy, audit.problems[0].consequence),
        (None, Consequence::NoEffect)
    );
}

#[test]
fn scope_and_audience_follow_namespace_and_selector() {
    let scope = |namespace: &str, spec: &Value| {
        let mut document = document(spec);
        document["metadata"]["namespace"] = json!(namespace);
        let translated = authorization::translate(&document, &mesh());
        let policy = translated.policy.unwrap();
        (policy.scope, policy.visibility, translated.selector.is_some())
    };
    let selecting = json!({"selector": {"matchLabels": {"app": "a"}}});
    assert_eq!(
        scope("shop", &json!({})),
        (Scope::Namespace, Visibility::Namespace, false)
    );
    assert_eq!(
        scope("shop", &json!({"selector": {}})),
        (Scope::Namespace, Visibility::Namespace, false)
    );
    assert_eq!(
        scope("shop", &selecting),
        (Scope::Workload, Visibility::Namespace, true)
    );
    assert_eq!(
        scope("istio-system", &json!({})),
        (Scope::Global, Visibility::Public, false)
    );
    assert_eq!(
        scope("istio-system", &selecting),
        (Scope::Workload, Visibility::Public, true)
    );
}

#[test]
fn a_dry_run_is_what_go_takes_for_true() {
    let dry = |value: Value, action: &str| {
        let mut document = document(&json!({"action": action, "rules": [{}]}));
        document["metadata"]["annotations"] = json!({"istio.io/dry-run": value});
        let translated = authorization::translate(&document, &mesh());
        (translated.policy.unwrap().dry_run, translated.problems.len())
    };
    assert_eq!(dry(json!("true"), "DENY"), (true, 0));
    assert_eq!(dry(json!("1"), "ALLOW"), (true, 0));
    assert_eq!(dry(json!("false"), "DENY"), (false, 0));
    assert_eq!(dry(json!("yes"), "DENY"), (false, 1));
    assert_eq!(dry(json!(true), "DENY"), (false, 1));
    assert_eq!(dry(json!("true"), "CUSTOM"), (false, 2));
}

#[test]
fn only_policies_of_istio_have_problems() {
    let mut other = document(&json!({"x": 1}));
    assert_eq!(problems(&other, &mesh()).map(|all| all.len()), Some(1));
    other["apiVersion"] = json!("policy.example/v1");
    assert_eq!(problems(&other, &mesh()), None);
    let peer = json!({"apiVersion": "security.istio.io/v1beta1", "kind": "PeerAuthentication",
        "metadata": {"name": "p", "namespace": "shop"}, "spec": {"mtls": {"mode": "STRIKT"}}});
    let found = problems(&peer, &mesh()).unwrap();
    assert_eq!(
        found[0].to_string(),
        "spec.mtls.mode: \"STRIKT\" is not UNSET, DISABLE, PERMISSIVE or STRICT; mutual TLS is required"
    );
}
