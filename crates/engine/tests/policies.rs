//! Istio's policies from the author's document to the verdict of a proxy: translated, encoded, read, judged.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use proptest::prelude::*;
use remora_engine::fuzz::{Caller, Enforced, policy_translation};
use serde_json::{Value, json};

/// Whether the intended caller, another one and one without a certificate are admitted to port 8080 of `shop/server`.
fn verdicts(policies: &[Value]) -> [bool; 3] {
    let enforced = Enforced::new(policies);
    Caller::ALL.map(|caller| enforced.admits("server", 8080, caller))
}

fn authorization(namespace: &str, spec: &Value) -> Value {
    json!({"kind": "AuthorizationPolicy", "metadata": {"name": "p", "namespace": namespace}, "spec": spec})
}

fn with_rule(action: &str, rule: &Value) -> Value {
    authorization("shop", &json!({"action": action, "rules": [rule]}))
}

fn entry(list: &str, fields: &Value) -> Value {
    let inner = if list == "from" { "source" } else { "operation" };
    json!({list: [{inner: fields}]})
}

/// Every field that a proxy of connections enforces: a value, and which callers it matches.
const FIELDS: [(&str, &str, &str, [bool; 3]); 34] = [
    (
        "from",
        "principals",
        "cluster.local/ns/shop/sa/web",
        [true, false, false],
    ),
    (
        "from",
        "principals",
        "spiffe://cluster.local/ns/shop/sa/web",
        [true, false, false],
    ),
    (
        "from",
        "principals",
        "cluster.local/ns/shop/*",
        [true, false, false],
    ),
    ("from", "principals", "*/sa/web", [true, false, false]),
    ("from", "principals", "*", [true, true, false]),
    (
        "from",
        "principals",
        "other.domain/ns/shop/sa/web",
        [false, false, false],
    ),
    (
        "from",
        "notPrincipals",
        "cluster.local/ns/shop/sa/web",
        [false, true, true],
    ),
    ("from", "notPrincipals", "*", [false, false, true]),
    ("from", "namespaces", "shop", [true, false, false]),
    ("from", "namespaces", "sh*", [true, false, false]),
    ("from", "namespaces", "*op", [true, false, false]),
    ("from", "namespaces", "*", [true, true, false]),
    ("from", "notNamespaces", "shop", [false, true, true]),
    ("from", "serviceAccounts", "shop/web", [true, false, false]),
    ("from", "serviceAccounts", "web", [true, false, false]),
    ("from", "serviceAccounts", "evil/web", [false, false, false]),
    ("from", "notServiceAccounts", "web", [false, true, true]),
    ("from", "ipBlocks", "10.0.0.1", [true, false, false]),
    ("from", "ipBlocks", "10.0.0.0/31", [true, false, false]),
    ("from", "ipBlocks", "0.0.0.0/0", [true, true, true]),
    ("from", "ipBlocks", "::/0", [false, false, false]),
    ("from", "notIpBlocks", "10.0.0.1", [false, true, true]),
    ("from", "trustDomains", "cluster.local", [true, true, false]),
    ("from", "trustDomains", "cluster.*", [true, true, false]),
    ("from", "trustDomains", "other.domain", [false, false, false]),
    ("from", "notTrustDomains", "cluster.local", [false, false, true]),
    ("from", "notTrustDomains", "other.domain", [true, true, true]),
    ("to", "ports", "8080", [true, true, true]),
    ("to", "ports", "9090", [false, false, false]),
    ("to", "notPorts", "8080", [false, false, false]),
    ("to", "notPorts", "9090", [true, true, true]),
    (
        "when",
        "source.principal",
        "cluster.local/ns/shop/sa/web",
        [true, false, false],
    ),
    ("when", "source.serviceAccount", "web", [true, false, false]),
    ("when", "destination.ip", "10.1.0.1", [true, true, true]),
];

/// Fields that only proxies of requests can enforce.
const HTTP: [(&str, &str); 17] = [
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
    ("when", "request.headers[x]"),
    ("when", "remote.ip"),
    ("when", "request.auth.principal"),
    ("when", "request.auth.audiences"),
    ("when", "request.auth.presenter"),
    ("when", "request.auth.claims[iss]"),
    ("when", "connection.sni"),
];

fn rule(list: &str, field: &str, values: &Value) -> Value {
    if list == "when" {
        json!({"when": [{"key": field, "values": values}]})
    } else {
        entry(list, &json!({field: values}))
    }
}

fn inverse(matches: [bool; 3]) -> [bool; 3] {
    matches.map(|matches| !matches)
}

const NOBODY: [bool; 3] = [false; 3];
const EVERYBODY: [bool; 3] = [true; 3];

#[test]
fn every_field_admits_those_it_is_meant_for() {
    for (list, field, value, matches) in FIELDS {
        let rule = rule(list, field, &json!([value]));
        assert_eq!(
            verdicts(&[with_rule("ALLOW", &rule)]),
            matches,
            "ALLOW {field} {value}"
        );
        assert_eq!(
            verdicts(&[with_rule("DENY", &rule)]),
            inverse(matches),
            "DENY {field} {value}"
        );
        assert_eq!(
            verdicts(&[with_rule("CUSTOM", &rule)]),
            inverse(matches),
            "CUSTOM {field} {value}"
        );
        assert_eq!(
            verdicts(&[with_rule("AUDIT", &rule)]),
            EVERYBODY,
            "AUDIT {field} {value}"
        );
    }
}

#[test]
fn not_values_of_every_key_exclude() {
    for (key, value, matches) in [
        (
            "source.principal",
            "cluster.local/ns/shop/sa/web",
            [false, true, true],
        ),
        ("source.namespace", "shop", [false, true, true]),
        ("source.serviceAccount", "web", [false, true, true]),
        ("source.trustDomain", "cluster.local", [false, false, true]),
        ("source.ip", "10.0.0.1", [false, true, true]),
        ("destination.ip", "10.1.0.1", NOBODY),
        ("destination.port", "8080", NOBODY),
        ("destination.port", "9090", EVERYBODY),
    ] {
        let rule = json!({"when": [{"key": key, "notValues": [value]}]});
        assert_eq!(
            verdicts(&[with_rule("ALLOW", &rule)]),
            matches,
            "ALLOW {key} {value}"
        );
        assert_eq!(
            verdicts(&[with_rule("DENY", &rule)]),
            inverse(matches),
            "DENY {key} {value}"
        );
    }
}

#[test]
fn http_fields_admit_nobody() {
    for (list, field) in HTTP {
        for action in ["ALLOW", "DENY", "CUSTOM"] {
            let rule = rule(list, field, &json!(["x"]));
            assert_eq!(verdicts(&[with_rule(action, &rule)]), NOBODY, "{action} {field}");
        }
    }
}

/// Audit C1: each of these was "allow anybody, plaintext included".
#[test]
fn a_field_misspelt_empty_or_of_another_type_admits_nobody() {
    let fields = FIELDS
        .iter()
        .map(|(list, field, value, _)| (*list, *field, json!([value])));
    let http = HTTP.iter().map(|(list, field)| (*list, *field, json!(["x"])));
    for (list, field, value) in fields.chain(http) {
        let misspelt = rule(list, &format!("{field}x"), &value);
        let wrong = [
            json!([]),
            json!("x"),
            json!(9999),
            json!([9999]),
            json!([""]),
            json!({"a": "b"}),
            json!(null),
        ];
        let wrong = wrong.iter().map(|wrong| rule(list, field, wrong));
        for rule in std::iter::once(misspelt).chain(wrong) {
            for action in ["ALLOW", "DENY", "CUSTOM"] {
                assert_eq!(verdicts(&[with_rule(action, &rule)]), NOBODY, "{action} {rule}");
            }
        }
    }
}

/// Audit C1 and H3: in ALLOW the rule allowed everybody, or a DENY was not served at all.
#[test]
fn a_value_that_cannot_be_parsed_admits_nobody() {
    for (list, field, value) in [
        ("to", "ports", json!(["9990-9999"])),
        ("to", "notPorts", json!(["http"])),
        ("from", "ipBlocks", json!(["10.0.0.0/8", "10.1.0.0-10.2.0.0"])),
        ("from", "notIpBlocks", json!(["192.0.2.1", "x"])),
        ("from", "principals", json!(["web"])),
        ("from", "notServiceAccounts", json!(["a/b/c"])),
        ("when", "destination.port", json!(["x"])),
        ("when", "source.ip", json!(["x"])),
        (
            "when",
            "source.prinzipal",
            json!(["cluster.local/ns/shop/sa/web"]),
        ),
    ] {
        for action in ["ALLOW", "DENY"] {
            let rule = rule(list, field, &value);
            assert_eq!(verdicts(&[with_rule(action, &rule)]), NOBODY, "{action} {rule}");
        }
    }
}

/// Audit H1.
#[test]
fn a_policy_for_a_gateway_opens_no_workload() {
    let closed =
        json!({"kind": "AuthorizationPolicy", "metadata": {"name": "deny", "namespace": "shop"}, "spec": {}});
    for target in [
        json!({"targetRefs": [{"kind": "Gateway", "name": "waypoint"}]}),
        json!({"targetRef": {"kind": "Gateway", "name": "waypoint"}}),
        json!({"targetRefs": "waypoint"}),
    ] {
        let mut spec = target.clone();
        spec["rules"] = json!([{}]);
        assert_eq!(
            verdicts(&[closed.clone(), authorization("shop", &spec)]),
            NOBODY,
            "{target}"
        );
        assert_eq!(
            verdicts(&[authorization("shop", &spec)]),
            EVERYBODY,
            "and closes none: {target}"
        );
    }
}

/// Audit H2.
#[test]
fn a_selector_of_the_root_namespace_holds_in_other_namespaces() {
    let spec = json!({"action": "DENY", "selector": {"matchLabels": {"app": "server"}}, "rules": [{}]});
    let policy = authorization("istio-system", &spec);
    assert_eq!(verdicts(std::slice::from_ref(&policy)), NOBODY);
    let enforced = Enforced::new(&[policy]);
    assert!(enforced.admits("bystander", 8080, Caller::Plaintext));
}

/// Audit M3.
#[test]
fn custom_denies_what_its_rules_match() {
    let rule = json!({"to": [{"operation": {"paths": ["/admin/*"], "ports": ["8080"]}}]});
    let policy = with_rule("CUSTOM", &rule);
    assert_eq!(verdicts(std::slice::from_ref(&policy)), NOBODY);
    assert!(
        Enforced::new(&[policy]).admits("server", 9090, Caller::Other),
        "not the other port"
    );
}

#[test]
fn parts_of_the_policy_that_are_not_understood_admit_nobody() {
    for spec in [
        json!({"action": "deny", "rules": []}),
        json!({"action": 1}),
        json!({"acton": "ALLOW", "rules": [{}]}),
        json!({"action": "DENY", "rulez": [{}]}),
        json!({"action": "DENY", "rules": "all"}),
        json!({"rules": [null]}),
        json!({"rules": [{}], "provider": {"name": "x"}}),
        json!({"rules": [{}], "selector": {"matchExpressions": []}}),
        json!({"rules": [{}], "selector": {"matchLabels": ["app"]}}),
        json!("ALLOW"),
    ] {
        assert_eq!(verdicts(&[authorization("shop", &spec)]), NOBODY, "{spec}");
    }
}

fn peer(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({"kind": "PeerAuthentication", "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

/// Audit M6, and each field of the API.
#[test]
fn peer_authentication_decides_about_plaintext_only() {
    let mode = |mode: &str| json!({"mtls": {"mode": mode}});
    let here = |mode: &str| json!({"mtls": {"mode": mode}, "selector": {"matchLabels": {"app": "server"}}});
    let ports = |mode: &str, port: &str| {
        json!({"mtls": {"mode": mode}, "selector": {"matchLabels": {"app": "server"}},
        "portLevelMtls": {"8080": {"mode": port}}})
    };
    let mesh = |spec: &Value| peer("istio-system", "mesh", spec);
    let own = |spec: &Value| peer("shop", "own", spec);
    let pod = |spec: &Value| peer("shop", "pod", spec);
    for (policies, plaintext) in [
        (vec![mesh(&mode("STRICT"))], false),
        (vec![mesh(&mode("PERMISSIVE"))], true),
        (vec![mesh(&mode("STRICT")), own(&mode("PERMISSIVE"))], true),
        (vec![mesh(&mode("STRICT")), pod(&here("PERMISSIVE"))], true),
        (
            vec![mesh(&mode("STRICT")), pod(&ports("STRICT", "DISABLE"))],
            true,
        ),
        (
            vec![mesh(&mode("STRICT")), pod(&ports("UNSET", "PERMISSIVE"))],
            true,
        ),
        (vec![mesh(&mode("STRICT")), pod(&ports("UNSET", "UNSET"))], false),
        (vec![pod(&ports("PERMISSIVE", "STRICT"))], false),
        (vec![own(&mode("STRICT")), pod(&here("UNSET"))], false),
        (vec![own(&mode("STRIKT"))], false),
        (vec![own(&json!({"mtsl": {"mode": "PERMISSIVE"}}))], false),
        (vec![own(&json!({"mtls": {"mod": "PERMISSIVE"}}))], false),
        (vec![own(&json!({"mtls": ["PERMISSIVE"]}))], false),
        (
            vec![own(
                &json!({"mtls": {"mode": "PERMISSIVE"}, "selector": "server"}),
            )],
            false,
        ),
        (
            vec![own(&json!({"mtls": {"mode": "PERMISSIVE"}, "portLevelMtls": {}}))],
            false,
        ),
        (
            vec![own(
                &json!({"mtls": {"mode": "PERMISSIVE"}, "portLevelMtls": {"8080": "STRICT"}}),
            )],
            false,
        ),
        (vec![own(&json!({}))], true),
    ] {
        assert_eq!(verdicts(&policies), [true, true, plaintext], "{policies:?}");
    }
}

#[test]
fn corpus_of_policies_that_are_not_understood() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/policy_translation");
    remora_testkit::replay(&corpus, policy_translation);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn adding_an_unknown_field_never_allows_more(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        policy_translation(&bytes);
    }
}
