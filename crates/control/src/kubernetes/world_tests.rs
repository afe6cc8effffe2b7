use super::{Kind, World};
use crate::mesh::{Document, Name, Tunnel, Workload};
use remora_mtls::TrustDomains;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn world() -> World {
    World::new(
        "Kubernetes",
        "istio-system",
        "cluster.local",
        TrustDomains::default(),
    )
}

fn changed(world: &mut World) -> Vec<(Name, Option<Document>)> {
    world.changes().collect()
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
    let [cart] = workloads(changed(&mut world)).try_into().unwrap();
    assert_eq!(cart.uid.as_deref(), Some("Kubernetes//Pod/shop/cart-0"));
    assert_eq!(cart.service_account, "cart");
    assert_eq!(cart.locality, ["eu", "eu-1"]);
    assert_eq!(cart.services["shop/cart.shop.svc.cluster.local"], ["80:8080"]);
    assert!(cart.healthy && cart.tunnel == Tunnel::Hbone);
    assert_eq!(changed(&mut world).len(), 0, "told once");
}

#[test]
fn only_what_matters_is_a_change() {
    let mut world = world();
    world.put(Kind::Pod, &pod("cart-0", "cart", "10.0.0.7"));
    world.put(Kind::Pod, &pod("web-0", "web", "10.0.0.8"));
    changed(&mut world);
    let mut same = pod("cart-0", "cart", "10.0.0.7");
    same["metadata"]["resourceVersion"] = json!("77");
    world.put(Kind::Pod, &same);
    assert_eq!(changed(&mut world), []);
    same["status"]["conditions"] = json!([]);
    world.put(Kind::Pod, &same);
    let [cart] = workloads(changed(&mut world)).try_into().unwrap();
    assert!(!cart.healthy, "and only this one is told");
}

#[test]
fn pods_that_end_are_nobody_and_addresses_of_nodes_name_nobody() {
    let mut world = world();
    world.put(Kind::Pod, &pod("cart-0", "cart", "10.0.0.7"));
    changed(&mut world);
    let mut over = pod("cart-0", "cart", "10.0.0.7");
    over["status"]["phase"] = json!("Succeeded");
    world.put(Kind::Pod, &over);
    let name = Name::Address("Kubernetes//Pod/shop/cart-0".to_owned());
    assert_eq!(changed(&mut world), [(name, None)]);
    let mut shared = pod("agent", "cart", "192.0.2.1");
    shared["spec"]["hostNetwork"] = json!(true);
    world.put(Kind::Pod, &shared);
    world.put(Kind::Service, &service(&json!(8080)));
    let [agent] = workloads(changed(&mut world)).try_into().unwrap();
    assert!(agent.host_network && agent.tunnel == Tunnel::None, "{agent:?}");
    assert_eq!(agent.services["shop/cart.shop.svc.cluster.local"], ["80:8080"]);
}

#[test]
fn after_a_gap_what_was_not_listed_is_gone() {
    let mut world = world();
    world.put(Kind::Pod, &pod("cart-0", "cart", "10.0.0.7"));
    world.put(Kind::Pod, &pod("cart-1", "cart", "10.0.0.8"));
    changed(&mut world);
    let there = BTreeSet::from([("shop".to_owned(), "cart-1".to_owned())]);
    world.retain(Kind::Pod, &there);
    assert_eq!(changed(&mut world).len(), 1);
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
    let changes = changed(&mut world);
    let policies: Vec<_> = changes
        .iter()
        .filter_map(|(_, d)| match d {
            Some(Document::Policy(policy)) => Some(policy),
            _ => None,
        })
        .collect();
    assert_eq!(policies[0].name, "istio_converted_static_strict");
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
    assert_eq!(named, [("cart-0".to_owned(), 2), ("web-0".to_owned(), 1)]);
}

#[test]
fn a_denial_closes_when_it_cannot_see_enough() {
    let mut world = world();
    world.put(Kind::AuthorizationPolicy, &json!({"metadata": {"name": "no-delete", "namespace": "shop"},
        "spec": {"action": "DENY", "rules": [{"to": [{"operation": {"methods": ["DELETE"], "ports": ["80"]}}]}]}}));
    let changes = changed(&mut world);
    let Some(Document::Policy(policy)) = &changes[0].1 else {
        unreachable!("{changes:?}")
    };
    assert_eq!(policy.rules[0].to[0].ports, [80], "every request to that port");
}

/// A service whose endpoints somebody names.
fn unselected(publish: bool) -> Value {
    json!({"metadata": {"name": "db", "namespace": "shop"}, "spec": {"clusterIPs": ["10.96.0.5", "fd00::5"],
        "publishNotReadyAddresses": publish,
        "ports": [{"name": "sql", "port": 5432}, {"name": "metrics", "port": 9187}]}})
}

fn slice(name: &str, kind: &str, endpoints: &Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "db"}},
        "addressType": kind, "endpoints": endpoints,
        "ports": [{"name": "sql", "port": 15432, "protocol": "TCP"}, {"name": "other", "port": 1}]})
}

const DB: &str = "shop/db.shop.svc.cluster.local";

#[test]
fn named_endpoints_are_workloads_outside_in_both_families() {
    let mut world = world();
    let node = json!({"metadata": {"name": "n9", "labels": {"topology.kubernetes.io/region": "eu"}}});
    world.put(Kind::Node, &node);
    // Whatever comes first.
    let four = json!([{"addresses": ["192.0.2.7"], "nodeName": "n9"}, {"addresses": ["192.0.2.8"], "conditions": {"ready": false}}]);
    world.put(Kind::EndpointSlice, &slice("db-a", "IPv4", &four));
    world.put(
        Kind::EndpointSlice,
        &slice("db-b", "IPv6", &json!([{"addresses": ["2001:db8::7"]}])),
    );
    world.put(
        Kind::EndpointSlice,
        &slice("db-c", "FQDN", &json!([{"addresses": ["db.example"]}])),
    );
    assert_eq!(workloads(changed(&mut world)), [], "of no service yet");
    world.put(Kind::Service, &unselected(false));
    let found = workloads(changed(&mut world));
    let told: Vec<(&str, bool)> = found
        .iter()
        .map(|w| (w.uid.as_deref().unwrap(), w.healthy))
        .collect();
    assert_eq!(
        told,
        [
            (
                "Kubernetes/discovery.k8s.io/EndpointSlice/shop/db-a/192.0.2.7",
                true
            ),
            (
                "Kubernetes/discovery.k8s.io/EndpointSlice/shop/db-a/192.0.2.8",
                false
            ),
            (
                "Kubernetes/discovery.k8s.io/EndpointSlice/shop/db-b/2001:db8::7",
                true
            ),
        ]
    );
    assert_eq!(found[0].services[DB], ["5432:15432"], "ports are known by name");
    assert_eq!(found[0].locality, ["eu"]);
    assert!(found.iter().all(|w| w.tunnel == Tunnel::None));
    world.remove(Kind::EndpointSlice, &("shop".to_owned(), "db-a".to_owned()));
    assert_eq!(changed(&mut world).iter().filter(|(_, d)| d.is_none()).count(), 2);
}

#[test]
fn an_endpoint_at_the_address_of_a_pod_is_that_pod() {
    let mut world = world();
    world.put(Kind::Service, &unselected(false));
    let endpoints = json!([{"addresses": ["10.0.0.7"]}]);
    world.put(Kind::EndpointSlice, &slice("db-a", "IPv4", &endpoints));
    let [outside] = workloads(changed(&mut world)).try_into().unwrap();
    world.put(Kind::Pod, &pod("cart-0", "cart", "10.0.0.7"));
    let changes = changed(&mut world);
    assert!(
        changes.contains(&(Document::Workload(outside).name(), None)),
        "{changes:?}"
    );
    let [cart] = workloads(changes).try_into().unwrap();
    assert_eq!(
        (cart.name.as_str(), &cart.services[DB]),
        ("cart-0", &vec!["5432:15432".to_owned()])
    );
    // Not ready in the slice: the pod leaves this service and stays what it is.
    let not_ready = json!([{"addresses": ["10.0.0.7"], "conditions": {"ready": false}}]);
    world.put(Kind::EndpointSlice, &slice("db-a", "IPv4", &not_ready));
    let [cart] = workloads(changed(&mut world)).try_into().unwrap();
    assert!(cart.healthy && cart.services.is_empty(), "{cart:?}");
    world.put(Kind::Service, &unselected(true));
    let [cart] = workloads(changed(&mut world)).try_into().unwrap();
    assert!(cart.services.contains_key(DB), "the service wants those as well");
    world.remove(Kind::Pod, &("shop".to_owned(), "cart-0".to_owned()));
    let [outside] = workloads(changed(&mut world)).try_into().unwrap();
    assert!(!outside.healthy && outside.services.contains_key(DB));
}

#[test]
fn slices_of_services_that_select_pods_add_nothing() {
    let mut world = world();
    let mut selecting = unselected(false);
    selecting["spec"]["selector"] = json!({"app": "db"});
    world.put(Kind::Service, &selecting);
    world.put(
        Kind::EndpointSlice,
        &slice("db-a", "IPv4", &json!([{"addresses": ["192.0.2.7"]}])),
    );
    assert_eq!(workloads(changed(&mut world)), []);
    world.put(Kind::Service, &unselected(false));
    assert_eq!(workloads(changed(&mut world)).len(), 1, "until they do not");
    world.remove(Kind::Service, &("shop".to_owned(), "db".to_owned()));
    assert_eq!(workloads(changed(&mut world)), []);
    world.put(Kind::Service, &unselected(false));
    world.retain(Kind::EndpointSlice, &BTreeSet::new());
    assert_eq!(workloads(changed(&mut world)), [], "after a gap, gone");
}
