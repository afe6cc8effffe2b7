//! Properties of what decides: first bytes, discovery's messages, policies.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::collection::vec;
use proptest::prelude::*;
use remora_mtls::SpiffeId;
use remora_proxy::mesh::Mesh;
use remora_proxy::policy::{Connection, Policy, Verdict, decide};
use remora_proxy::sniff::judge;
use remora_xds::Message;
use remora_xds::delta::{Client, Interest};
use remora_xds::proto::discovery::{DeltaDiscoveryResponse, Node, Resource};
use remora_xds::proto::security::string_match::MatchType;
use remora_xds::proto::security::{
    Address, Authorization, Clause, Match, Presence, Rule, ServiceAccountMatch, StringMatch,
};
use remora_xds::types::{ADDRESS, AUTHORIZATION};
use std::net::IpAddr;

fn received(type_url: &str, name: &str, value: Vec<u8>) -> remora_xds::delta::Received {
    let mut client = Client::new(Node::default());
    client.want(type_url, Interest::Everything);
    let resource = Resource {
        name: name.to_owned(),
        resource: Some(prost_types::Any {
            type_url: type_url.to_owned(),
            value,
        }),
        ..Resource::default()
    };
    let response = DeltaDiscoveryResponse {
        type_url: type_url.to_owned(),
        resources: vec![resource],
        ..DeltaDiscoveryResponse::default()
    };
    client.receive(response).unwrap()
}

fn texts() -> impl Strategy<Value = Vec<StringMatch>> {
    let words = prop::sample::select(vec![
        "td/ns/a/sa/x",
        "td/ns/b/sa/x",
        "td/ns/a",
        "sa/x",
        "a",
        "b",
        "",
    ]);
    let one = (words, 0..4).prop_map(|(word, kind)| StringMatch {
        match_type: Some(match kind {
            0 => MatchType::Exact(word.to_owned()),
            1 => MatchType::Prefix(word.to_owned()),
            2 => MatchType::Suffix(word.to_owned()),
            _ => MatchType::Presence(Presence {}),
        }),
    });
    vec(one, 0..3)
}

fn ranges() -> impl Strategy<Value = Vec<Address>> {
    let one = (0..4_u8, 0..=32_u32).prop_map(|(last, length)| Address {
        address: vec![10, 0, 0, last],
        length,
    });
    vec(one, 0..2)
}

fn accounts() -> impl Strategy<Value = Vec<ServiceAccountMatch>> {
    let one = (
        prop::sample::select(vec!["a", "b"]),
        prop::sample::select(vec!["x", "y"]),
    );
    let one = one.prop_map(|(namespace, account)| ServiceAccountMatch {
        namespace: namespace.to_owned(),
        service_account: account.to_owned(),
    });
    vec(one, 0..2)
}

fn matches() -> impl Strategy<Value = Match> {
    let ports = || vec(1..4_u32, 0..2);
    let named = (texts(), texts(), texts(), texts());
    let placed = (ranges(), ranges(), ranges(), ranges());
    let called = (accounts(), accounts());
    (named, called, placed, ports(), ports()).prop_map(|(named, called, placed, any, none)| Match {
        service_accounts: called.0,
        not_service_accounts: called.1,
        namespaces: named.0,
        not_namespaces: named.1,
        principals: named.2,
        not_principals: named.3,
        source_ips: placed.0,
        not_source_ips: placed.1,
        destination_ips: placed.2,
        not_destination_ips: placed.3,
        destination_ports: any,
        not_destination_ports: none,
    })
}

fn authorizations() -> impl Strategy<Value = Authorization> {
    let clause = vec(matches(), 0..3).prop_map(|matches| Clause { matches });
    let rule = vec(clause, 0..3).prop_map(|clauses| Rule { clauses });
    (0..2, vec(rule, 0..3), any::<bool>()).prop_map(|(action, rules, dry_run)| Authorization {
        action,
        rules,
        dry_run,
        ..Authorization::default()
    })
}

fn connections() -> impl Strategy<Value = Connection> {
    let id = |text: &str| text.parse::<SpiffeId>().unwrap();
    let ids = vec![
        None,
        Some(id("spiffe://td/ns/a/sa/x")),
        Some(id("spiffe://td/ns/b/sa/y")),
        Some(id("spiffe://td/other")),
    ];
    (prop::sample::select(ids), 0..4_u8, 0..4_u8, 1..4_u16).prop_map(|(source, from, to, port)| Connection {
        source,
        source_ip: IpAddr::from([10, 0, 0, from]),
        destination_ip: IpAddr::from([10, 0, 0, to]),
        destination_port: port,
    })
}

/// The rules written down a second time, as a list of counts instead of a search.
mod reference {
    use super::{
        Address, Authorization, Connection, IpAddr, Match, MatchType, ServiceAccountMatch, StringMatch,
    };

    fn text(pattern: &StringMatch, value: &str) -> bool {
        match pattern.match_type.as_ref().unwrap() {
            MatchType::Exact(text) => value == text,
            MatchType::Prefix(text) => value.len() >= text.len() && &value[..text.len()] == text,
            MatchType::Suffix(text) => {
                value.len() >= text.len() && &value[value.len() - text.len()..] == text
            }
            MatchType::Presence(_) => !value.is_empty(),
        }
    }

    fn inside(range: &Address, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else {
            return false;
        };
        let bit = |bytes: [u8; 4], n: u32| (u32::from_be_bytes(bytes) >> (31 - n)) & 1;
        let network: [u8; 4] = range.address.as_slice().try_into().unwrap();
        (0..range.length).all(|n| bit(network, n) == bit(address.octets(), n))
    }

    fn holds(m: &Match, c: &Connection) -> bool {
        let principal = c.source.as_ref().map_or("", |id| id.principal());
        let namespace = c
            .source
            .as_ref()
            .and_then(|id| id.service_account())
            .map_or("", |(n, _)| n);
        let known = |value: &str, list: &[StringMatch]| {
            list.iter()
                .filter(|p| !value.is_empty() && text(p, value))
                .count()
        };
        let called = |list: &[ServiceAccountMatch]| {
            list.iter()
                .filter(|a| {
                    let path = format!("/ns/{}/sa/{}", a.namespace, a.service_account);
                    c.source.as_ref().is_some_and(|id| id.as_str().ends_with(&path))
                })
                .count()
        };
        let placed = |address: IpAddr, list: &[Address]| list.iter().filter(|r| inside(r, address)).count();
        let port = |list: &[u32]| {
            list.iter()
                .filter(|p| **p == u32::from(c.destination_port))
                .count()
        };
        let kinds = [
            (
                m.namespaces.len(),
                known(namespace, &m.namespaces),
                known(namespace, &m.not_namespaces),
            ),
            (
                m.service_accounts.len(),
                called(&m.service_accounts),
                called(&m.not_service_accounts),
            ),
            (
                m.principals.len(),
                known(principal, &m.principals),
                known(principal, &m.not_principals),
            ),
            (
                m.source_ips.len(),
                placed(c.source_ip, &m.source_ips),
                placed(c.source_ip, &m.not_source_ips),
            ),
            (
                m.destination_ips.len(),
                placed(c.destination_ip, &m.destination_ips),
                placed(c.destination_ip, &m.not_destination_ips),
            ),
            (
                m.destination_ports.len(),
                port(&m.destination_ports),
                port(&m.not_destination_ports),
            ),
        ];
        kinds
            .iter()
            .all(|(asked, found, forbidden)| (*asked == 0 || *found > 0) && *forbidden == 0)
    }

    fn applies(policy: &Authorization, c: &Connection) -> bool {
        let deny = policy.action == 1;
        let one = |m: &Match| if *m == Match::default() { deny } else { holds(m, c) };
        policy.rules.iter().any(|rule| {
            rule.clauses
                .iter()
                .all(|clause| (clause.matches.is_empty() && deny) || clause.matches.iter().any(one))
        })
    }

    pub(super) fn allowed(policies: &[Authorization], c: &Connection) -> bool {
        let real: Vec<_> = policies.iter().filter(|p| !p.dry_run).collect();
        let hit = |action: i32| {
            real.iter()
                .filter(|p| p.action == action && applies(p, c))
                .count()
        };
        let allowing = real.iter().filter(|p| p.action == 0).count();
        hit(1) == 0 && (allowing == 0 || hit(0) > 0)
    }
}

proptest! {
    #[test]
    fn policies_mean_what_a_second_reading_of_the_rules_means(
        policies in vec(authorizations(), 0..4),
        connection in connections(),
    ) {
        let understood: Vec<Policy> = policies.iter().map(|p| Policy::new(p.clone()).unwrap()).collect();
        let verdict = decide(understood.iter(), &connection);
        prop_assert_eq!(verdict == Verdict::Allow, reference::allowed(&policies, &connection));
    }

    #[test]
    fn first_bytes_never_break_anything_and_more_of_them_never_change_the_judgement(
        start in prop::sample::select(vec![&[][..], &[22], &[22, 3, 1], &[22, 3, 1, 0, 60, 1, 0, 0, 56, 3, 3]]),
        rest in vec(any::<u8>(), 0..300),
    ) {
        let bytes: Vec<u8> = start.iter().copied().chain(rest).collect();
        let mut decided = None;
        for length in 0..=bytes.len() {
            let now = judge(&bytes[..length]);
            prop_assert!(decided.is_none() || now == decided, "{} bytes", length);
            decided = decided.or(now);
        }
    }

    #[test]
    fn garbage_from_discovery_is_refused_and_a_policy_nobody_understands_denies(bytes in vec(any::<u8>(), 1..80)) {
        let mesh = Mesh::default();
        mesh.apply(&received(ADDRESS, "garbage", bytes.clone()));
        let workload = remora_control::files::documents(
            "kind: Workload\nname: w\nnamespace: a\naddresses: [10.0.0.2]\n", "test").unwrap();
        let snapshots = remora_control::mesh::encode(&workload, "td").unwrap();
        let resource = snapshots[ADDRESS].iter().next().unwrap();
        mesh.apply(&received(ADDRESS, resource.name(), resource.bytes().to_vec()));
        let connection = Connection {
            source: None,
            source_ip: IpAddr::from([10, 0, 0, 1]),
            destination_ip: IpAddr::from([10, 0, 0, 2]),
            destination_port: 80,
        };
        prop_assert_eq!(mesh.verdict(&connection), Verdict::Allow);
        let refused = mesh.apply(&received(AUTHORIZATION, "a/p", bytes.clone()));
        if !refused.is_empty() {
            prop_assert_ne!(mesh.verdict(&connection), Verdict::Allow);
        }
        // Whatever can be decoded was understood or refused, never both.
        prop_assert_eq!(refused.is_empty(), Authorization::decode(bytes.as_slice())
            .is_ok_and(|message| Policy::new(message).is_ok()));
    }
}
