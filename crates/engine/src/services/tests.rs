use super::{Answer, Member, Names, forwards, read};
use serde_json::json;

fn member(name: &str, last: u8, ready: bool, version: &str) -> Member {
    let pod = json!({
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": "cart", "version": version}},
        "spec": {"hostname": name, "subdomain": "peers",
            "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}]}
    });
    Member::read(&pod, [10, 244, 0, last].into(), ready)
}

fn documents() -> Vec<serde_json::Value> {
    vec![
        json!({"metadata": {"name": "cart", "namespace": "shop"}, "spec": {"selector": {"app": "cart"},
            "ports": [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "raw", "port": 81}]}}),
        json!({"metadata": {"name": "fixed"}, "spec": {"clusterIP": "10.96.0.20", "ports": [{"port": 1}]}}),
        json!({"metadata": {"name": "peers", "namespace": "shop"}, "spec": {"clusterIP": "None",
            "selector": {"app": "cart"}, "ports": [{"name": "http", "port": 80, "targetPort": "web"}]}}),
        json!({"metadata": {"name": "out", "namespace": "shop"},
            "spec": {"type": "ExternalName", "externalName": "db.example.org"}}),
    ]
}

#[test]
fn only_ready_pods_get_connections() {
    let services = read(&documents(), "default");
    let members = [member("a", 2, true, "v1"), member("b", 3, false, "v2")];
    let all = forwards(&services, &members);
    let text: Vec<String> = all.iter().map(|f| format!("{} {:?}", f.from, f.to)).collect();
    assert_eq!(
        text,
        [
            "10.96.0.21:80 [10.244.0.2:8080]",
            "10.96.0.21:81 [10.244.0.2:81]",
            "10.96.0.20:1 []"
        ]
    );
}

#[test]
fn names_lead_to_services_pods_and_ports() {
    let services = read(&documents(), "default");
    let members = [member("a", 2, true, "v1"), member("b", 3, true, "v2")];
    let names = Names::new(&services, &members);
    let addresses = |name: &str| match names.get(name) {
        Some(Answer::Addresses(list)) => Some(list.iter().map(ToString::to_string).collect::<Vec<_>>()),
        _ => None,
    };
    assert_eq!(addresses("Cart.shop.svc.cluster.local").unwrap(), ["10.96.0.21"]);
    assert_eq!(
        addresses("peers.shop.svc.cluster.local").unwrap(),
        ["10.244.0.2", "10.244.0.3"]
    );
    assert_eq!(
        addresses("b.peers.shop.svc.cluster.local").unwrap(),
        ["10.244.0.3"]
    );
    assert_eq!(
        addresses("istiod.istio-system.svc.cluster.local").unwrap(),
        ["10.96.0.11"]
    );
    assert_eq!(addresses("nobody.shop.svc.cluster.local"), None);
    assert_eq!(
        names.get("_http._tcp.peers.shop.svc.cluster.local"),
        Some(&Answer::Ports(vec![
            (8080, "a.peers.shop.svc.cluster.local".to_owned()),
            (8080, "b.peers.shop.svc.cluster.local".to_owned())
        ]))
    );
    assert_eq!(
        names.get("out.shop.svc.cluster.local"),
        Some(&Answer::Alias("db.example.org".to_owned()))
    );
    assert!(Names::is_ours("x.cluster.local") && !Names::is_ours("example.org"));
}
