use super::{Connection, Policy, PolicyError, Rule, Scope, Verdict, decide, judge};
use remora_control::mesh::{Document, encode};
use remora_xds::Message;
use remora_xds::proto::security::Authorization;
use remora_xds::types::AUTHORIZATION;

/// A policy as people write it.
fn policy(rules: &str) -> Policy {
    let text = format!("kind: Policy\nname: p\nnamespace: shop\n{rules}\n");
    let documents: Vec<Document> = remora_control::files::documents(&text, "test").unwrap();
    let snapshots = encode(&documents, "td").unwrap();
    let bytes = snapshots[AUTHORIZATION].get("shop/p").unwrap().bytes();
    Policy::new(Authorization::decode(bytes).unwrap()).unwrap()
}

fn connection() -> Connection {
    Connection {
        source: Some("spiffe://td/ns/shop/sa/web".parse().unwrap()),
        source_ip: "10.0.0.1".parse().unwrap(),
        destination_ip: "10.0.0.2".parse().unwrap(),
        destination_port: 8080,
    }
}

fn anonymous() -> Connection {
    Connection {
        source: None,
        ..connection()
    }
}

fn allowed(policies: &[Policy], connection: &Connection) -> bool {
    decide(policies.iter(), connection) == Verdict::Allow
}

#[test]
fn without_policies_everything_may_be_and_with_an_allow_only_what_it_matches() {
    assert!(allowed(&[], &connection()));
    assert!(!allowed(&[policy("rules: []")], &connection()), "allow nothing");
    assert!(
        allowed(&[policy("action: DENY\nrules: []")], &connection()),
        "deny nothing"
    );
}

#[test]
fn every_kind_of_condition_decides() {
    for (condition, matches, matches_anonymous) in [
        ("principals: [td/ns/shop/sa/web]", true, false),
        ("principals: ['spiffe://td/ns/shop/sa/web']", true, false),
        ("principals: [td/ns/shop/sa/we]", false, false),
        ("principals: ['td/ns/shop/*']", true, false),
        ("principals: ['*/sa/web']", true, false),
        ("principals: ['*']", true, false),
        ("notPrincipals: ['*']", false, true),
        ("notPrincipals: [td/ns/shop/sa/web]", false, true),
        ("namespaces: [shop]", true, false),
        ("namespaces: [sho]", false, false),
        ("namespaces: ['sh*']", true, false),
        ("namespaces: ['*op']", true, false),
        ("namespaces: ['*']", true, false),
        ("notNamespaces: [shop]", false, true),
        ("notNamespaces: [other]", true, true),
        ("notPrincipals: [td/ns/other/sa/web]", true, true),
        ("serviceAccounts: [shop/web]", true, false),
        ("serviceAccounts: [other/web]", false, false),
        ("serviceAccounts: [shop/other]", false, false),
        ("notServiceAccounts: [shop/web]", false, true),
        ("notServiceAccounts: [other/web]", true, true),
        ("notSourceIps: [10.0.1.0/24]", true, true),
        ("notDestinationIps: [10.0.0.2]", false, false),
        ("notDestinationIps: [10.0.0.3]", true, true),
        ("destinationIps: [10.0.0.3]", false, false),
        ("ports: [80]", false, false),
        ("notPorts: [80]", true, true),
        ("sourceIps: [10.0.0.0/24]", true, true),
        ("sourceIps: [10.0.1.0/24]", false, false),
        ("sourceIps: [0.0.0.0/0]", true, true),
        ("sourceIps: ['::/0']", false, false),
        ("notSourceIps: [10.0.0.1]", false, false),
        ("destinationIps: [10.0.0.2]", true, true),
        ("ports: [8080]", true, true),
        ("ports: [80, 8080]", true, true),
        ("notPorts: [8080]", false, false),
        ("principals: [td/ns/shop/sa/web], ports: [80]", false, false),
    ] {
        for action in ["ALLOW", "DENY"] {
            let policy = policy(&format!("action: {action}\nrules: [{{from: [{{{condition}}}]}}]"));
            let expected = |matches: bool| matches == (action == "ALLOW");
            let policies = [policy];
            assert_eq!(
                allowed(&policies, &connection()),
                expected(matches),
                "{action} {condition}"
            );
            let found = allowed(&policies, &anonymous());
            assert_eq!(
                found,
                expected(matches_anonymous),
                "{action} {condition} anonymous"
            );
        }
    }
}

#[test]
fn lists_of_a_rule_all_hold_and_rules_are_alternatives() {
    let both = policy("rules: [{from: [{namespaces: [shop]}], to: [{ports: [80]}]}]");
    assert!(!allowed(&[both], &connection()));
    let either = policy("rules: [{from: [{namespaces: [x]}]}, {to: [{ports: [8080]}]}]");
    assert!(allowed(&[either], &connection()));
}

#[test]
fn deny_wins_and_a_dry_run_changes_nothing() {
    let allow = policy("rules: [{to: [{ports: [8080]}]}]");
    let deny = policy("action: DENY\nrules: [{from: [{namespaces: [shop]}]}]");
    assert!(!allowed(&[allow.clone(), deny], &connection()));
    let dry = policy("action: DENY\ndryRun: true\nrules: [{from: [{namespaces: [shop]}]}]");
    assert!(allowed(&[allow, dry], &connection()));
    let dry = policy("dryRun: true\nrules: []");
    assert!(allowed(&[dry], &connection()));
}

#[test]
fn what_is_not_understood_is_refused_and_what_is_unclear_never_lets_in() {
    use remora_xds::proto::security::{Address, Clause, Match, Rule, StringMatch};
    let with = |m: Match, action: i32| {
        Policy::new(Authorization {
            action,
            rules: vec![Rule {
                clauses: vec![Clause { matches: vec![m] }],
            }],
            ..Authorization::default()
        })
    };
    assert_eq!(with(Match::default(), 9), Err(PolicyError::Action(9)));
    let strange = Match {
        principals: vec![StringMatch { match_type: None }],
        ..Match::default()
    };
    assert_eq!(with(strange, 0), Err(PolicyError::Text));
    for (bytes, length) in [(5, 8), (4, 33), (16, 129), (0, 0)] {
        let range = Match {
            source_ips: vec![Address {
                address: vec![0; bytes],
                length,
            }],
            ..Match::default()
        };
        assert_eq!(with(range, 0), Err(PolicyError::Range { bytes, length }));
    }
    for action in [0, 1] {
        let empty = with(Match::default(), action).unwrap();
        assert!(!allowed(&[empty], &connection()), "action {action}");
    }
}

#[test]
fn a_judgement_names_the_rule_that_decided_and_what_a_dry_run_would_change() {
    let allow = policy("rules: [{to: [{ports: [80]}]}, {to: [{ports: [8080]}]}]");
    let second = Some(Rule {
        policy: "shop/p".to_owned(),
        number: Some(2),
    });
    let found = judge([&allow].into_iter(), &connection());
    assert_eq!(
        (found.verdict, found.by, found.dry_run),
        (Verdict::Allow, second.clone(), None)
    );
    let dry = |namespace: &str| {
        policy(&format!(
            "action: DENY\ndryRun: true\nrules: [{{from: [{{namespaces: [{namespace}]}}]}}]"
        ))
    };
    let found = judge([&allow, &dry("shop")].into_iter(), &connection());
    assert_eq!((found.verdict, found.by), (Verdict::Allow, second));
    assert_eq!(found.dry_run, Some(Verdict::Deny("denied by shop/p".to_owned())));
    let found = judge([&allow, &dry("other")].into_iter(), &connection());
    assert_eq!(found.dry_run, None, "the dry run would change nothing");
    let found = judge([&dry("shop")].into_iter(), &connection());
    assert_eq!((found.verdict, found.by), (Verdict::Allow, None));
}

#[test]
fn ranges_of_ipv6_match_addresses_of_ipv6_only() {
    let v6 = Connection {
        source_ip: "fd00::1:2".parse().unwrap(),
        ..connection()
    };
    for (range, matches) in [
        ("::/0", true),
        ("fd00::/8", true),
        ("fd00::1:0/112", true),
        ("fd00::1:2", true),
        ("fd00::1:3", false),
        ("fd00::2:0/112", false),
        ("fe00::/8", false),
        ("0.0.0.0/0", false),
    ] {
        let allow = policy(&format!("rules: [{{from: [{{sourceIps: ['{range}']}}]}}]"));
        assert_eq!(allowed(&[allow], &v6), matches, "{range}");
    }
}

#[test]
fn a_policy_says_what_it_is() {
    let allow = policy("rules: [{to: [{ports: [80]}]}]");
    assert_eq!(
        (
            allow.denies(),
            allow.is_dry_run(),
            allow.rules().len(),
            allow.scope
        ),
        (false, false, 1, Scope::Namespace)
    );
    let deny = policy("action: DENY\ndryRun: true\nrules: []");
    assert_eq!(
        (deny.denies(), deny.is_dry_run(), deny.rules().len()),
        (true, true, 0)
    );
}

#[test]
fn an_unknown_scope_is_refused_and_a_clause_without_matches_never_lets_in() {
    use remora_xds::proto::security::{Clause, Rule};
    let with = |action: i32, scope: i32| {
        Policy::new(Authorization {
            action,
            scope,
            rules: vec![Rule {
                clauses: vec![Clause { matches: Vec::new() }],
            }],
            ..Authorization::default()
        })
    };
    assert_eq!(with(0, 9), Err(PolicyError::Scope(9)));
    for action in [0, 1] {
        let unclear = with(action, 0).unwrap();
        assert!(!allowed(&[unclear], &connection()), "action {action}");
    }
}
