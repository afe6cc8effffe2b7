use super::{Kind, World};
use crate::mesh::{Document, Name, Tunnel, Workload};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn world() -> World {
    World::new("Kubernetes", "istio-system", "cluster.local")
}

fn pod(name: &str, app: &str, address: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": app, "security.istio.io/tlsMode": "istio"}},
        "spec": {"nodeName": "n1", "serviceAccountName": "cart", "containers": [
            {"name": "cart", "image": "cart:1", "ports": [{"name": "web", "containerPort": 8080}]},
            {"name": "istio-proxy", "image": "docker.io/remora/remora:1"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn service(target: &Value) -> Value {
    json!({"metadata": {"name": "cart", "namespace": "shop"},
        "spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "selector": {"app": "cart"},
            "ports": [{"port": 80, "targetPort": target}, {"port": 53, "protocol": "UDP"}]}})
}

fn workloads(changes: Vec<(Name, Option<Document>)>) -> Vec<Workload> {
    let workload = |(_, document)| match document {
        Some(Document::Workload(workload)) => Some(workload),
        _ => None,
    };
    changes.into_iter().filter_map(workload).collect()
}

#[test]
fn a_pod_becomes_a_workload_of_its_services() {
    let mut world = world();
    world.put(Kind::Pod, &pod("cart-0", "cart", "10.0.0.7"));
    world.put(Kind::Service, &service(&json!("web")));
    world.put(
        Kind::Node,
        &json!({"metadata": {"name": "n1", "labels": {
        "topology.kubernetes.io/region": "eu", "topology.kubernetes.io/zone": "eu-1"}}}),
    );
    let [cart] = workloads(world.changes()).try_into().unwrap();
    assert_eq!(cart.uid.as_deref(), Some("Kubernetes//Pod/shop/cart-0"));
    assert_eq!(cart.service_account, "cart");
    assert_eq!(cart.locality, ["eu", "eu-1"]);
    assert_eq!(cart.services["shop/cart.shop.svc.cluster.local"], ["80:8080"]);
    assert!(cart.healthy && cart.tunnel == Tunnel::Hbone);
    assert_eq!(world.changes().len(), 0, "told once");
}

#[test]
fn only_what_matters_is_a_change() {
    let mut world = world();
    world.put(Kind::Pod, &pod("cart-0", "cart", "10.0.0.7"));
    world.put(Kind::Pod, &pod("web-0", "web", "10.0.0.8"));
    world.changes();
    let mut same = pod("cart-0", "cart", "10.0.0.7");
    same["metadata"]["resourceVersion"] = json!("77");
    world.put(Kind::Pod, &same);
    assert_eq!(world.changes(), []);
    same["status"]["conditions"] = json!([]);
    world.put(Kind::Pod, &same);
    let [cart] = workloads(world.changes()).try_into().unwrap();
    assert!(!cart.healthy, "and only this one is told");
}

#[test]
fn pods_that_end_or_share_their_node_are_nobody() {
    let mut world = world();
    world.put(Kind::Pod, &pod("cart-0", "cart", "10.0.0.7"));
    world.changes();
    let mut over = pod("cart-0", "cart", "10.0.0.7");
    over["status"]["phase"] = json!("Succeeded");
    world.put(Kind::Pod, &over);
    let name = Name::Address("Kubernetes//Pod/shop/cart-0".to_owned());
    assert_eq!(world.changes(), [(name, None)]);
    let mut shared = pod("agent", "cart", "192.0.2.1");
    shared["spec"]["hostNetwork"] = json!(true);
    world.put(Kind::Pod, &shared);
    assert_eq!(world.changes(), []);
}

#[test]
fn after_a_gap_what_was_not_listed_is_gone() {
    let mut world = world();
    world.put(Kind::Pod, &pod("cart-0", "cart", "10.0.0.7"));
    world.put(Kind::Pod, &pod("cart-1", "cart", "10.0.0.8"));
    world.changes();
    let there = BTreeSet::from([("shop".to_owned(), "cart-1".to_owned())]);
    world.retain(Kind::Pod, &there);
    assert_eq!(world.changes().len(), 1);
}

#[test]
fn policies_select_and_demand_certificates() {
    let mut world = world();
    world.put(Kind::Pod, &pod("cart-0", "cart", "10.0.0.7"));
    world.put(Kind::Pod, &pod("web-0", "web", "10.0.0.8"));
    world.put(
        Kind::AuthorizationPolicy,
        &json!({"metadata": {"name": "only-web", "namespace": "shop"},
        "spec": {"selector": {"matchLabels": {"app": "cart"}}, "rules": [
            {"from": [{"source": {"principals": ["cluster.local/ns/shop/sa/web"]}}],
             "to": [{"operation": {"ports": ["8080"]}}],
             "when": [{"key": "source.ip", "values": ["10.0.0.0/8"]}]},
            {"to": [{"operation": {"methods": ["GET"]}}]}]}}),
    );
    world.put(
        Kind::PeerAuthentication,
        &json!({"metadata": {"name": "default", "namespace": "istio-system"},
        "spec": {"mtls": {"mode": "STRICT"}}}),
    );
    let changes = world.changes();
    let policies: Vec<_> = changes
        .iter()
        .filter_map(|(_, d)| match d {
            Some(Document::Policy(policy)) => Some(policy),
            _ => None,
        })
        .collect();
    assert_eq!(policies[0].name, "converted_peer_authentication_default");
    assert_eq!(policies[0].scope, crate::mesh::Scope::Global);
    assert_eq!(policies[1].rules.len(), 1, "what allows by method allows nothing");
    assert_eq!(policies[1].rules[0].when.len(), 1);
    crate::mesh::encode(
        &changes.iter().filter_map(|(_, d)| d.clone()).collect::<Vec<_>>(),
        "td",
    )
    .unwrap();
    let named: Vec<(String, usize)> = workloads(changes)
        .into_iter()
        .map(|w| (w.name, w.policies.len()))
        .collect();
    assert_eq!(named, [("cart-0".to_owned(), 1), ("web-0".to_owned(), 0)]);
}

#[test]
fn a_denial_closes_when_it_cannot_see_enough() {
    let mut world = world();
    world.put(Kind::AuthorizationPolicy, &json!({"metadata": {"name": "no-delete", "namespace": "shop"},
        "spec": {"action": "DENY", "rules": [{"to": [{"operation": {"methods": ["DELETE"], "ports": ["80"]}}]}]}}));
    let changes = world.changes();
    let Some(Document::Policy(policy)) = &changes[0].1 else {
        unreachable!("{changes:?}")
    };
    assert_eq!(policy.rules[0].to[0].ports, [80], "every request to that port");
}
