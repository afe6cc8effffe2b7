use super::super::world::{Kind, World};
use crate::mesh::{Document, Name, Policy};
use remora_mtls::TrustDomains;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn world() -> World {
    World::new(
        "Kubernetes",
        "istio-system",
        "cluster.local",
        TrustDomains::default(),
    )
}

fn pod(namespace: &str, app: &str) -> Value {
    json!({"metadata": {"name": app, "namespace": namespace, "labels": {"app": app}},
        "spec": {"containers": [{"name": "c"}, {"name": "istio-proxy"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}]}})
}

fn policy(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace, "generation": 1}, "spec": spec})
}

/// What a client of discovery knows, kept up to date with changes.
#[derive(Default)]
struct Client {
    workloads: BTreeMap<String, Vec<String>>,
    policies: BTreeMap<String, Policy>,
}

impl Client {
    fn take(&mut self, world: &mut World) -> usize {
        let changes: Vec<_> = world.changes().collect();
        let count = changes.len();
        for (name, document) in changes {
            match (name, document) {
                (_, Some(Document::Workload(workload))) => {
                    let key = format!("{}/{}", workload.namespace, workload.name);
                    self.workloads.insert(key, workload.policies);
                }
                (Name::Policy(name), Some(Document::Policy(policy))) => {
                    self.policies.insert(name, policy);
                }
                (Name::Policy(name), None) => {
                    self.policies.remove(&name);
                }
                _ => {}
            }
        }
        // What a workload names must be there, and its own proxy must be sent it.
        for (workload, named) in &self.workloads {
            let namespace = workload.split('/').next().unwrap();
            for name in named {
                let policy = self
                    .policies
                    .get(name)
                    .unwrap_or_else(|| panic!("{workload} waits for {name}"));
                let audience = Document::Policy(policy.clone()).audience();
                let sees = audience == remora_xds::delta::Audience::Everyone || policy.namespace == namespace;
                assert!(sees, "{workload} is never sent {name}");
            }
        }
        count
    }

    fn named(&self, workload: &str) -> Vec<&str> {
        self.workloads[workload].iter().map(String::as_str).collect()
    }
}

#[test]
fn a_selector_in_the_root_namespace_selects_workloads_of_every_namespace() {
    let (mut world, mut client) = (world(), Client::default());
    for namespace in ["shop", "ops", "istio-system"] {
        world.put(Kind::Pod, &pod(namespace, "web"));
        world.put(Kind::Pod, &pod(namespace, "db"));
    }
    client.take(&mut world);
    let deny = |app: &str| {
        let spec = json!({"action": "DENY", "selector": {"matchLabels": {"app": app}}, "rules": [{}]});
        policy("istio-system", "root", &spec)
    };
    // After the pods: those of every namespace are looked at again.
    world.put(Kind::AuthorizationPolicy, &deny("web"));
    client.take(&mut world);
    for namespace in ["shop", "ops", "istio-system"] {
        assert_eq!(client.named(&format!("{namespace}/web")), ["istio-system/root"]);
        assert_eq!(client.named(&format!("{namespace}/db")), [""; 0]);
    }
    world.put(Kind::AuthorizationPolicy, &deny("db"));
    client.take(&mut world);
    assert_eq!(
        (client.named("shop/web"), client.named("shop/db")),
        (vec![], vec!["istio-system/root"])
    );
    world.remove(
        Kind::AuthorizationPolicy,
        &("istio-system".to_owned(), "root".to_owned()),
    );
    client.take(&mut world);
    assert!(client.named("ops/db").is_empty() && client.policies.is_empty());
    // Before a pod: it names the policy at once.
    world.put(Kind::AuthorizationPolicy, &deny("late"));
    world.put(Kind::Pod, &pod("shop", "late"));
    client.take(&mut world);
    assert_eq!(client.named("shop/late"), ["istio-system/root"]);
    // A selector elsewhere stays in its namespace.
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}});
    world.put(Kind::AuthorizationPolicy, &policy("shop", "own", &spec));
    client.take(&mut world);
    assert_eq!(
        (client.named("shop/web"), client.named("ops/web")),
        (vec!["shop/own"], vec![])
    );
}

#[test]
fn a_policy_for_gateways_is_not_served_to_sidecars_and_stops_being_served() {
    let (mut world, mut client) = (world(), Client::default());
    world.put(
        Kind::AuthorizationPolicy,
        &policy("shop", "p", &json!({"rules": [{}]})),
    );
    client.take(&mut world);
    assert_eq!(client.policies.len(), 1);
    let spec = json!({"targetRefs": [{"kind": "Gateway", "name": "waypoint"}], "rules": [{}]});
    world.put(Kind::AuthorizationPolicy, &policy("shop", "p", &spec));
    client.take(&mut world);
    assert_eq!(client.policies.len(), 0);
}

const STRICT: &str = "istio-system/istio_converted_static_strict";

fn peer(namespace: &str, name: &str, created: &str, spec: &Value) -> Value {
    let mut document = policy(namespace, name, spec);
    document["metadata"]["creationTimestamp"] = json!(created);
    document
}

fn mode(mode: &str) -> Value {
    json!({"mtls": {"mode": mode}})
}

fn selecting(app: &str, mode: &str) -> Value {
    json!({"selector": {"matchLabels": {"app": app}}, "mtls": {"mode": mode}})
}

/// What `shop/web` names with these peer authentications, put before and after the pod.
fn demanded(peers: &[Value]) -> Vec<String> {
    let mut answers = Vec::new();
    for pod_first in [true, false] {
        let (mut world, mut client) = (world(), Client::default());
        if pod_first {
            world.put(Kind::Pod, &pod("shop", "web"));
            client.take(&mut world);
        }
        for peer in peers {
            world.put(Kind::PeerAuthentication, peer);
            client.take(&mut world);
        }
        world.put(Kind::Pod, &pod("shop", "web"));
        client.take(&mut world);
        answers.push(client.workloads["shop/web"].clone());
    }
    assert_eq!(answers[0], answers[1], "whatever comes first");
    answers.swap_remove(0)
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn the_narrowest_peer_authentication_decides() {
    let (old, new) = ("2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z");
    let mesh = |mode_: &str| peer("istio-system", "default", old, &mode(mode_));
    let namespace = |mode_: &str| peer("shop", "default", old, &mode(mode_));
    let workload = |mode_: &str| peer("shop", "web", old, &selecting("web", mode_));
    let strict = vec![STRICT.to_owned()];
    for (peers, is_strict) in [
        (vec![], false),
        (vec![mesh("STRICT")], true),
        (vec![mesh("UNSET")], false),
        (vec![mesh("STRICT"), namespace("PERMISSIVE")], false),
        (vec![mesh("STRICT"), namespace("UNSET")], true),
        (vec![mesh("STRICT"), namespace("DISABLE")], false),
        (vec![mesh("PERMISSIVE"), namespace("STRICT")], true),
        (vec![mesh("STRICT"), workload("PERMISSIVE")], false),
        (
            vec![mesh("STRICT"), namespace("PERMISSIVE"), workload("STRICT")],
            true,
        ),
        (
            vec![mesh("STRICT"), namespace("PERMISSIVE"), workload("UNSET")],
            false,
        ),
        (vec![namespace("STRICT"), workload("UNSET")], true),
        // Another namespace, another workload.
        (vec![peer("ops", "default", old, &mode("STRICT"))], false),
        (vec![peer("shop", "db", old, &selecting("db", "STRICT"))], false),
        // Of the same reach the oldest decides, and by name those of the same age.
        (
            vec![peer("shop", "a", new, &mode("PERMISSIVE")), namespace("STRICT")],
            true,
        ),
        (
            vec![peer("shop", "a", old, &mode("PERMISSIVE")), namespace("STRICT")],
            false,
        ),
        (
            vec![
                peer("shop", "a", new, &selecting("web", "STRICT")),
                workload("PERMISSIVE"),
            ],
            false,
        ),
        (
            vec![
                peer("istio-system", "a", new, &mode("PERMISSIVE")),
                mesh("STRICT"),
            ],
            true,
        ),
        // In doubt, closed.
        (vec![namespace("strict")], true),
        (
            vec![peer("shop", "x", old, &json!({"mtsl": {"mode": "STRICT"}}))],
            true,
        ),
        (vec![peer("shop", "x", old, &json!({"mtls": "STRICT"}))], true),
        (vec![peer("shop", "x", old, &json!({"mtls": {"mode": 3}}))], true),
        (vec![peer("shop", "x", old, &json!("STRICT"))], true),
        (
            vec![peer(
                "shop",
                "x",
                old,
                &json!({"selector": {"app": "web"}, "mtls": {"mode": "PERMISSIVE"}}),
            )],
            true,
        ),
        // What is not understood may have been meant for this workload: no wider one relaxes it.
        (
            vec![
                peer(
                    "shop",
                    "x",
                    new,
                    &json!({"selecter": {}, "mtls": {"mode": "STRICT"}}),
                ),
                namespace("PERMISSIVE"),
            ],
            true,
        ),
        // A selector in the root namespace can only make it stricter, and only where nothing narrower decides.
        (
            vec![peer("istio-system", "x", old, &selecting("web", "STRICT"))],
            true,
        ),
        (
            vec![peer("istio-system", "x", old, &selecting("db", "STRICT"))],
            false,
        ),
        (
            vec![
                peer("istio-system", "x", old, &selecting("web", "PERMISSIVE")),
                mesh("STRICT"),
            ],
            true,
        ),
        (
            vec![
                peer("istio-system", "x", old, &selecting("web", "STRICT")),
                namespace("PERMISSIVE"),
            ],
            false,
        ),
        // Ports without a selector are ignored, unless they demand something.
        (
            vec![peer(
                "shop",
                "x",
                old,
                &json!({"portLevelMtls": {"80": {"mode": "DISABLE"}}}),
            )],
            false,
        ),
        (
            vec![peer(
                "shop",
                "x",
                old,
                &json!({"portLevelMtls": {"80": {"mode": "STRICT"}}}),
            )],
            true,
        ),
    ] {
        let expected = if is_strict { strict.clone() } else { Vec::new() };
        assert_eq!(demanded(&peers), expected, "{peers:?}");
    }
}

/// The ports of `shop/web` and what is demanded on the others, as (listed, all but listed).
fn ports(peers: &[Value]) -> (Vec<u16>, Vec<u16>) {
    let (mut world, mut client) = (world(), Client::default());
    world.put(Kind::Pod, &pod("shop", "web"));
    for peer in peers {
        world.put(Kind::PeerAuthentication, peer);
        client.take(&mut world);
    }
    assert_eq!(
        client.named("shop/web"),
        ["shop/converted_peer_authentication_web"]
    );
    let rule = &client.policies["shop/converted_peer_authentication_web"].rules[0];
    assert_eq!(rule.from[0].not_principals, ["*"]);
    (rule.to[0].ports.clone(), rule.to[0].not_ports.clone())
}

#[test]
fn ports_are_exceptions_from_what_holds_for_the_workload() {
    let with = |mode_: &str, ports: &Value| {
        let mut spec = selecting("web", mode_);
        spec["portLevelMtls"] = ports.clone();
        peer("shop", "web", "", &spec)
    };
    let mesh = |mode_: &str| peer("istio-system", "default", "", &mode(mode_));
    let one = json!({"80": {"mode": "DISABLE"}, "81": {"mode": "STRICT"}, "82": {"mode": "UNSET"}, "83": {}});
    assert_eq!(ports(&[with("STRICT", &one)]), (vec![], vec![80]));
    assert_eq!(ports(&[with("PERMISSIVE", &one)]), (vec![81], vec![]));
    assert_eq!(
        ports(&[with("UNSET", &one), mesh("STRICT")]),
        (vec![], vec![80]),
        "inherited later"
    );
    assert_eq!(
        ports(&[mesh("STRICT"), with("UNSET", &one), mesh("PERMISSIVE")]),
        (vec![81], vec![])
    );
    let same = json!({"80": {"mode": "STRICT"}});
    assert_eq!(demanded(&[with("STRICT", &same)]), [STRICT], "no port differs");
    for wrong in [
        json!({}),
        json!([80]),
        json!({"http": {"mode": "DISABLE"}}),
        json!({"0": {"mode": "DISABLE"}}),
        json!({"80": {"mode": "off"}}),
    ] {
        assert_eq!(demanded(&[with("PERMISSIVE", &wrong)]), [STRICT], "{wrong}");
    }
}

#[test]
fn without_peer_authentications_nothing_is_demanded_again() {
    let (mut world, mut client) = (world(), Client::default());
    world.put(Kind::Pod, &pod("shop", "web"));
    world.put(
        Kind::PeerAuthentication,
        &peer("istio-system", "default", "", &mode("STRICT")),
    );
    client.take(&mut world);
    assert_eq!(client.named("shop/web"), [STRICT]);
    world.put(
        Kind::PeerAuthentication,
        &peer("istio-system", "default", "", &mode("STRICT")),
    );
    assert_eq!(client.take(&mut world), 0, "the same again is no change");
    world.remove(
        Kind::PeerAuthentication,
        &("istio-system".to_owned(), "default".to_owned()),
    );
    client.take(&mut world);
    assert!(client.named("shop/web").is_empty() && client.policies.is_empty());
}

#[test]
fn principals_follow_the_names_of_the_trust_domain() {
    let mut world = World::new(
        "c",
        "istio-system",
        "cluster.local",
        TrustDomains::new::<&str>("new-td", &[]).unwrap(),
    );
    let mut client = Client::default();
    let spec = json!({"action": "DENY", "rules": [{"from": [{"source": {"principals": ["old-td/ns/x/sa/y", "cluster.local/ns/x/sa/z"]}}]}]});
    world.put(Kind::AuthorizationPolicy, &policy("shop", "deny", &spec));
    client.take(&mut world);
    let principals = |client: &Client| client.policies["shop/deny"].rules[0].from[0].principals.clone();
    assert_eq!(principals(&client), ["old-td/ns/x/sa/y", "new-td/ns/x/sa/z"]);
    world.trust(TrustDomains::new("new-td", &["old-td"]).unwrap());
    client.take(&mut world);
    assert_eq!(
        principals(&client),
        [
            "new-td/ns/x/sa/y",
            "old-td/ns/x/sa/y",
            "new-td/ns/x/sa/z",
            "old-td/ns/x/sa/z"
        ]
    );
    world.trust(TrustDomains::new("new-td", &["old-td"]).unwrap());
    assert_eq!(client.take(&mut world), 0);
}

#[test]
fn a_policy_is_reported_once_for_each_version_of_it() {
    let mut world = world();
    let mut wrong = policy("shop", "p", &json!({"rulez": []}));
    world.put(Kind::AuthorizationPolicy, &wrong);
    let [report] = world.reports().try_into().unwrap();
    assert_eq!(
        report.to_string(),
        "AuthorizationPolicy shop/p is not enforced as written: spec.rulez: unknown field; every connection is denied"
    );
    // Its status changed, or the watch began again.
    wrong["metadata"]["resourceVersion"] = json!("7");
    world.put(Kind::AuthorizationPolicy, &wrong);
    assert_eq!(world.reports(), []);
    wrong["metadata"]["generation"] = json!(2);
    world.put(Kind::AuthorizationPolicy, &wrong);
    assert_eq!(world.reports().len(), 1);
    world.put(Kind::PeerAuthentication, &policy("shop", "p", &mode("STRICT")));
    let [right] = world.reports().try_into().unwrap();
    assert!(right.problems.is_empty(), "{right}");
}
