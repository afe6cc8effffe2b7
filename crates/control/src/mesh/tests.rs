use super::{Document, MeshError, encode};
use remora_xds::Message;
use remora_xds::proto::security::Authorization;
use remora_xds::proto::security::string_match::MatchType;
use remora_xds::proto::workload::Address;
use remora_xds::proto::workload::address::Type;
use remora_xds::types::{ADDRESS, AUTHORIZATION};

fn documents(text: &str) -> Vec<Document> {
    crate::files::documents(text, "test").unwrap()
}

const MESH: &str = "
kind: Workload
name: cart-0
namespace: shop
addresses: [10.0.0.7, 'fd00::7']
serviceAccount: cart
tunnel: hbone
services: {shop/cart.shop.svc.cluster.local: ['80:8080']}
policies: [shop/only-web]
---
kind: Service
name: cart
namespace: shop
addresses: [10.96.0.1]
ports: [{port: 80, targetPort: 8080}]
---
kind: Policy
name: only-web
namespace: shop
scope: workload
rules:
- from: [{principals: [td/ns/shop/sa/web, 'td/ns/ops/*', '*/sa/x', '*']}]
  to: [{ports: [8080], destinationIps: [10.0.0.0/8]}]
";

#[test]
fn a_mesh_becomes_resources_with_names_and_aliases() {
    let snapshots = encode(&documents(MESH), "td").unwrap();
    let addresses = &snapshots[ADDRESS];
    assert_eq!(addresses.len(), 2);
    assert!(addresses.get("shop/cart.shop.svc.cluster.local").is_some());
    let workload = addresses.get("cluster//Pod/shop/cart-0").unwrap();
    assert!(workload.aliases().eq(["/10.0.0.7", "/fd00::7"]));
    let Some(Type::Workload(decoded)) = Address::decode(workload.bytes()).unwrap().r#type else {
        unreachable!("a workload was encoded")
    };
    assert_eq!(decoded.trust_domain, "td");
    assert_eq!(
        decoded.services["shop/cart.shop.svc.cluster.local"].ports[0].target_port,
        8080
    );
}

#[test]
fn patterns_of_policies_keep_their_meaning() {
    let snapshots = encode(&documents(MESH), "td").unwrap();
    let policy = snapshots[AUTHORIZATION].get("shop/only-web").unwrap();
    let policy = Authorization::decode(policy.bytes()).unwrap();
    let [from, to] = policy.rules[0].clauses.as_slice() else {
        unreachable!("two lists were given")
    };
    let kinds: Vec<MatchType> = from.matches[0]
        .principals
        .iter()
        .map(|p| p.match_type.clone().unwrap())
        .collect();
    assert!(matches!(
        kinds.as_slice(),
        [MatchType::Exact(_), MatchType::Prefix(p), MatchType::Suffix(s), MatchType::Presence(_)]
            if p == "td/ns/ops/" && s == "/sa/x"
    ));
    assert_eq!(to.matches[0].destination_ips[0].length, 8);
}

#[test]
fn versions_change_with_the_content_only() {
    let version = |text: &str| {
        let snapshots = encode(&documents(text), "td").unwrap();
        let workload = snapshots[ADDRESS].get("cluster//Pod/shop/cart-0").unwrap();
        workload.version().to_owned()
    };
    assert_eq!(version(MESH), version(MESH));
    assert_ne!(version(MESH), version(&MESH.replace("10.0.0.7", "10.0.0.8")));
    assert_eq!(version(MESH), version(&MESH.replace("10.96.0.1", "10.96.0.2")));
}

#[test]
fn contradictions_are_refused() {
    let twice = format!("{MESH}---{MESH}");
    assert!(matches!(
        encode(&documents(&twice), "td"),
        Err(MeshError::Twice { .. })
    ));
    for (from, to) in [("10.0.0.0/8", "10.0.0.0/33"), ("10.0.0.0/8", "ten")] {
        let text = MESH.replace(from, to);
        assert!(
            matches!(encode(&documents(&text), "td"), Err(MeshError::Range { .. })),
            "{to}"
        );
    }
    let text = MESH.replace("80:8080", "80:http");
    assert!(matches!(
        encode(&documents(&text), "td"),
        Err(MeshError::Ports { .. })
    ));
    let text = MESH.replace("{ports: [8080], destinationIps: [10.0.0.0/8]}", "{}");
    assert!(matches!(
        encode(&documents(&text), "td"),
        Err(MeshError::EmptyRule { .. })
    ));
}

#[test]
fn an_amendment_changes_what_it_names_and_keeps_what_it_cannot_express() {
    let workload = |name: &str, ports: &str| -> Document {
        serde_json::from_value(
            serde_json::json!({"kind": "Workload", "name": name, "namespace": "shop",
            "services": {"shop/web": [ports]}}),
        )
        .unwrap()
    };
    let (first, second) = (workload("a", "80:8080"), workload("b", "80:8080"));
    let before = super::encode(&[first.clone(), second.clone()], "td").unwrap();
    let changes = vec![
        (first.name(), Some(workload("a", "none"))),
        (second.name(), None),
        (workload("c", "1").name(), Some(workload("c", "1"))),
    ];
    let (after, refused) = super::amend(&before, changes, "td");
    assert_eq!(after[ADDRESS].len(), 2);
    assert!(after[ADDRESS].get("cluster//Pod/shop/c").is_some());
    assert_eq!(refused.len(), 1, "{refused:?}");
    let a = "cluster//Pod/shop/a";
    assert!(after[ADDRESS].get(a).is_some());
    assert_eq!(after[ADDRESS].get(a), before[ADDRESS].get(a));
}

#[test]
fn a_policy_that_cannot_be_expressed_is_served_as_one_that_admits_nothing() {
    for action in ["ALLOW", "DENY"] {
        let policy: Document = serde_json::from_value(
            serde_json::json!({"kind": "Policy", "name": "p", "namespace": "shop", "action": action,
                "rules": [{"from": [{"sourceIps": ["10.0.0.0/8", "10.1.0.0-10.2.0.0"]}]}]}),
        )
        .unwrap();
        let (after, refused) = super::amend(
            &super::Snapshots::new(),
            vec![(policy.name(), Some(policy))],
            "td",
        );
        assert_eq!(refused.len(), 1, "and it is said");
        let served = after[AUTHORIZATION].get("shop/p").unwrap();
        let served = Authorization::decode(served.bytes()).unwrap();
        // ALLOW: no rule, so nothing is allowed. DENY: one rule for every address.
        assert_eq!(served.rules.len(), usize::from(action == "DENY"));
        let lengths = served
            .rules
            .iter()
            .flat_map(|rule| &rule.clauses[0].matches[0].destination_ips);
        assert!(lengths.map(|range| range.length).all(|length| length == 0));
        let translation = served.translation.unwrap();
        let consequence = match action {
            "DENY" => "every connection is denied",
            _ => "the policy allows nothing",
        };
        let reason = format!("10.1.0.0-10.2.0.0 is no address range; {consequence}");
        assert_eq!(translation.not_enforced, [reason]);
        assert!(translation.synthetic_rules, "the author's rule is not served");
    }
}

#[test]
fn every_condition_of_a_policy_is_encoded_as_what_it_is() {
    use remora_xds::proto::security::Match;
    for field in [
        "namespaces",
        "notNamespaces",
        "principals",
        "notPrincipals",
        "serviceAccounts",
        "notServiceAccounts",
        "sourceIps",
        "notSourceIps",
        "destinationIps",
        "notDestinationIps",
        "ports",
        "notPorts",
    ] {
        let value = match field {
            "ports" | "notPorts" => "[80]",
            _ if field.ends_with("Ips") => "[10.0.0.0/8]",
            _ => "[a/b]",
        };
        let text =
            format!("kind: Policy\nname: p\nnamespace: shop\nrules: [{{from: [{{{field}: {value}}}]}}]\n");
        let snapshots = encode(&documents(&text), "td").unwrap();
        let policy = Authorization::decode(snapshots[AUTHORIZATION].get("shop/p").unwrap().bytes()).unwrap();
        let m: &Match = &policy.rules[0].clauses[0].matches[0];
        let counts = [
            ("namespaces", m.namespaces.len()),
            ("notNamespaces", m.not_namespaces.len()),
            ("principals", m.principals.len()),
            ("notPrincipals", m.not_principals.len()),
            ("serviceAccounts", m.service_accounts.len()),
            ("notServiceAccounts", m.not_service_accounts.len()),
            ("sourceIps", m.source_ips.len()),
            ("notSourceIps", m.not_source_ips.len()),
            ("destinationIps", m.destination_ips.len()),
            ("notDestinationIps", m.not_destination_ips.len()),
            ("ports", m.destination_ports.len()),
            ("notPorts", m.not_destination_ports.len()),
        ];
        for (name, count) in counts {
            assert_eq!(count, usize::from(name == field), "{name} of {field}");
        }
    }
}
