//! What would happen to a connection, for meshes as people describe them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails; the helpers of this file are tests too"
)]

use remora_proxy::balance::{Standing, Unfit};
use remora_proxy::decision::Decision;
use remora_proxy::mesh::{AppProtocol, Mesh};
use remora_proxy::policy::Verdict;
use remora_proxy::route::{Ask, NoRoute, Transport};
use remora_proxy::{UnknownDestinations, admit};
use remora_xds::Message;
use remora_xds::delta::{Client, Interest, Server};
use remora_xds::proto::discovery::Node;
use remora_xds::proto::workload::{
    Address, ApplicationTunnel, GatewayAddress, NamespacedHostname, address, gateway_address,
};
use remora_xds::types::ADDRESS;
use std::net::SocketAddr;

const MESH: &str = "
kind: Workload
name: web-0
namespace: shop
addresses: [10.0.0.1, 'fd00::1']
serviceAccount: web
tunnel: hbone
node: n1
locality: [eu, eu-1]
---
kind: Workload
name: cart-0
namespace: shop
addresses: [10.0.0.2, 'fd00::2']
serviceAccount: cart
tunnel: hbone
node: n1
locality: [eu, eu-1]
services: {shop/cart.shop.svc.cluster.local: ['80:8080']}
---
kind: Workload
name: cart-1
namespace: shop
addresses: [10.0.0.3]
serviceAccount: cart
tunnel: istio-mtls
node: n2
locality: [eu, eu-2]
services: {shop/cart.shop.svc.cluster.local: ['80:8080']}
---
kind: Service
name: cart
namespace: shop
addresses: [10.96.0.1, 'fd96::1']
ports: [{port: 80, targetPort: 8080, protocol: http}]
";

/// A mesh that was told what documents say, after `change` was done to every message.
fn told(text: &str, change: impl Fn(&str, &mut Address)) -> Mesh {
    let documents = remora_control::files::documents(text, "test").unwrap();
    let snapshots = remora_control::mesh::encode(&documents, "td").unwrap();
    let mesh = Mesh::default();
    let mut client = Client::new(Node::default());
    let mut server = Server::new();
    for url in snapshots.keys() {
        client.want(url, Interest::Everything);
    }
    for request in client.connected() {
        server.receive(request).unwrap();
    }
    for (url, snapshot) in &snapshots {
        let mut response = server.next(url, snapshot).unwrap().message().unwrap();
        if *url == ADDRESS {
            for resource in &mut response.resources {
                let any = resource.resource.as_mut().unwrap();
                let mut message = Address::decode(any.value.as_slice()).unwrap();
                change(&resource.name, &mut message);
                any.value = message.encode_to_vec();
            }
        }
        let received = client.receive(response).unwrap();
        assert_eq!(mesh.apply(&received), []);
    }
    mesh
}

fn mesh(text: &str) -> Mesh {
    told(text, |_, _| ())
}

fn ask(destination: &str) -> Ask {
    Ask {
        source: "10.0.0.1".parse().unwrap(),
        destination: destination.parse().unwrap(),
        unknown: UnknownDestinations::Pass,
        seed: 1,
        now: 0,
    }
}

fn decide(mesh: &Mesh, destination: &str) -> Decision {
    Decision::new(mesh, &ask(destination))
}

#[test]
fn a_service_is_a_choice_a_transport_and_a_judgement() {
    let policy = "---\nkind: Policy\nname: p\nnamespace: shop\nrules: [{to: [{ports: [9]}]}, {from: [{serviceAccounts: [shop/web]}]}]\n";
    let mesh = mesh(&format!("{MESH}{policy}"));
    let decision = decide(&mesh, "10.96.0.1:80");
    let out = &decision.outbound;
    assert_eq!(
        out.service.as_ref().unwrap().hostname,
        "cart.shop.svc.cluster.local"
    );
    assert_eq!(
        out.protocol,
        AppProtocol::Http1,
        "kept for whoever understands HTTP"
    );
    assert_eq!(out.from.as_ref().unwrap().uid, "cluster//Pod/shop/web-0");
    let fit: Vec<_> = out
        .candidates
        .iter()
        .map(|c| (c.workload.name.as_str(), &c.standing))
        .collect();
    let zero = Standing::Fit { rank: 0 };
    assert_eq!(fit, [("cart-0", &zero), ("cart-1", &zero)]);
    assert!(decision.is_allowed());
    let judgement = decision.inbound.as_ref().unwrap().judgement.as_ref().unwrap();
    assert_eq!(judgement.verdict, Verdict::Allow);
    assert_eq!(judgement.by.as_ref().unwrap().to_string(), "shop/p rule 2");
    // Both ways are found, by some draw.
    let mut ways: Vec<String> = (0..50)
        .map(|seed| {
            let decision = Decision::new(
                &mesh,
                &Ask {
                    seed,
                    ..ask("10.96.0.1:80")
                },
            );
            match decision.outbound.route.unwrap().transport {
                Transport::Hbone(key) => key.to_string(),
                Transport::IstioMtls(peer) => format!("mutual TLS with {peer}"),
                Transport::Plain => "plain".to_owned(),
            }
        })
        .collect();
    ways.sort();
    ways.dedup();
    assert_eq!(
        ways,
        [
            "cluster//Pod/shop/cart-0 at 10.0.0.2:15008 as spiffe://td/ns/shop/sa/cart",
            "mutual TLS with spiffe://td/ns/shop/sa/cart"
        ]
    );
}

#[test]
fn the_words_say_all_of_it() {
    let text = MESH.replace("name: cart-1\n", "name: cart-1\nhealthy: false\n");
    let trial = "---\nkind: Policy\nname: trial\nnamespace: shop\naction: DENY\ndryRun: true\nrules: [{to: [{ports: [8080]}]}]\n";
    let decision = decide(&mesh(&format!("{text}{trial}")), "[fd96::1]:80");
    assert_eq!(
        decision.to_string(),
        "10.0.0.1 (cluster//Pod/shop/web-0) to [fd96::1]:80
service shop/cart.shop.svc.cluster.local
  cluster//Pod/shop/cart-0 at [fd00::2]:8080: fit, meets 0 preferences, 0 open
  cluster//Pod/shop/cart-1 at 10.0.0.3:8080: not healthy, 0 open
goes to [fd00::2]:8080 in the tunnel to cluster//Pod/shop/cart-0 at [fd00::2]:15008 as spiffe://td/ns/shop/sa/cart
arrives at [fd00::2]:8080 in a tunnel from spiffe://td/ns/shop/sa/web
allowed
on trial: would be refused, denied by shop/trial
"
    );
}

#[test]
fn policies_of_other_namespaces_are_not_guessed() {
    let bank = "---
kind: Workload
name: vault-0
namespace: bank
addresses: [10.0.0.7]
tunnel: hbone
policies: [bank/guards]
";
    let decision = decide(&mesh(&format!("{MESH}{bank}")), "10.0.0.7:80");
    assert!(decision.elsewhere && decision.inbound.is_none(), "{decision}");
    let policy = "---\nkind: Policy\nname: guards\nnamespace: bank\nscope: workload\n";
    let decision = decide(&mesh(&format!("{MESH}{bank}{policy}")), "10.0.0.7:80");
    assert!(decision.elsewhere && !decision.is_allowed(), "{decision}");
    assert!(!decide(&mesh(MESH), "10.96.0.1:80").elsewhere);
}

#[test]
fn kubernetes_words_about_traffic_are_kept() {
    let with =
        |words: &str| mesh(&MESH.replace("ports: [{port: 80", &format!("{words}\nports: [{{port: 80")));
    let standings = |mesh: &Mesh| {
        let decision = decide(mesh, "10.96.0.1:80");
        let all = decision.outbound.candidates.iter().map(|c| c.standing.clone());
        (
            all.collect::<Vec<_>>(),
            decision
                .outbound
                .route
                .map(|hop| hop.workload.unwrap().name.clone()),
        )
    };
    let (all, chosen) = standings(&with("trafficDistribution: PreferClose"));
    assert_eq!(all, [Standing::Fit { rank: 3 }, Standing::Fit { rank: 2 }]);
    assert_eq!(chosen.unwrap(), "cart-0");
    let (all, chosen) = standings(&with("internalTrafficPolicy: Local"));
    assert_eq!(
        all,
        [Standing::Fit { rank: 1 }, Standing::Unfit(Unfit::Elsewhere)]
    );
    assert_eq!(chosen.unwrap(), "cart-0");
    let ill = MESH.replace(
        "locality: [eu, eu-1]\nservices",
        "healthy: false\nlocality: [eu, eu-1]\nservices",
    );
    let local = ill.replace(
        "ports: [{port: 80",
        "internalTrafficPolicy: Local\nports: [{port: 80",
    );
    let (_, chosen) = standings(&mesh(&local));
    assert_eq!(
        chosen.unwrap_err().to_string(),
        "shop/cart.shop.svc.cluster.local has no healthy workload for port 80: 1 not healthy, 1 not where the \
         service has to stay"
    );
    let all = local.replace(
        "internalTrafficPolicy",
        "publishNotReadyAddresses: true\ninternalTrafficPolicy",
    );
    assert_eq!(standings(&mesh(&all)).1.unwrap(), "cart-0");
    let kept = with("sessionAffinity: ClientIP");
    let chosen = |seed| {
        let decision = Decision::new(
            &kept,
            &Ask {
                seed,
                ..ask("10.96.0.1:80")
            },
        );
        decision.outbound.route.unwrap().address
    };
    assert!((1..100).all(|seed| chosen(seed) == chosen(0)));
}

#[test]
fn what_goes_nowhere_says_why() {
    let mesh = mesh(MESH);
    let nowhere = |destination: &str| decide(&mesh, destination).outbound.route.unwrap_err();
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    assert_eq!(nowhere("10.0.0.2:15008"), NoRoute::Reserved(at("10.0.0.2:15008")));
    assert_eq!(
        nowhere("10.96.0.1:15001"),
        NoRoute::Reserved(at("10.96.0.1:15001"))
    );
    assert_eq!(
        nowhere("127.0.0.1:15006"),
        NoRoute::Reserved(at("127.0.0.1:15006"))
    );
    assert_eq!(
        nowhere("10.96.0.1:81").to_string(),
        "shop/cart.shop.svc.cluster.local has no port 81"
    );
    let unknown = Ask {
        unknown: UnknownDestinations::Refuse,
        ..ask("1.2.3.4:80")
    };
    let refused = Decision::new(&mesh, &unknown);
    assert!(matches!(refused.outbound.route, Err(NoRoute::Unknown(_))));
    // Somebody else's port of that number is no port of a proxy.
    let passed = decide(&mesh, "1.2.3.4:15008");
    assert_eq!(
        passed.outbound.route.as_ref().unwrap().transport,
        Transport::Plain
    );
    assert!(passed.inbound.is_none() && passed.is_allowed());
}

#[test]
fn a_waypoint_is_passed_and_one_that_is_not_known_ends_it() {
    let waypoint = "---
kind: Workload
name: way-0
namespace: shop
addresses: [10.0.0.9]
serviceAccount: way
tunnel: hbone
services: {shop/way.shop.svc.cluster.local: ['15008:15008']}
---
kind: Service
name: way
namespace: shop
addresses: [10.96.0.9]
ports: [{port: 15008}]
";
    let behind = |name: &str, message: &mut Address| {
        if name != "shop/cart.shop.svc.cluster.local" {
            return;
        }
        let Some(address::Type::Service(service)) = &mut message.r#type else {
            panic!("{name} is a service")
        };
        service.waypoint = Some(GatewayAddress {
            destination: Some(gateway_address::Destination::Hostname(NamespacedHostname {
                namespace: "shop".to_owned(),
                hostname: "way.shop.svc.cluster.local".to_owned(),
            })),
            hbone_mtls_port: 15008,
        });
    };
    let decision = decide(&told(&format!("{MESH}{waypoint}"), behind), "10.96.0.1:80");
    let hop = decision.outbound.route.as_ref().unwrap();
    assert_eq!(
        hop.address.to_string(),
        "10.96.0.1:80",
        "the waypoint is told where it was going"
    );
    let Transport::Hbone(key) = &hop.transport else {
        panic!("{:?}", hop.transport)
    };
    assert_eq!(
        (key.address.to_string().as_str(), key.peer.as_str()),
        ("10.0.0.9:15008", "spiffe://td/ns/shop/sa/way")
    );
    assert!(decision.inbound.is_none(), "its policies are not ours to guess");
    assert_eq!(decision.outbound.service.unwrap().name, "cart");
    let lost = decide(&told(MESH, behind), "10.96.0.1:80");
    assert_eq!(
        lost.outbound.route.unwrap_err(),
        NoRoute::NoWaypoint("shop/cart.shop.svc.cluster.local".to_owned())
    );
    // The waypoint itself goes straight on.
    let own = Ask {
        source: "10.0.0.9".parse().unwrap(),
        ..ask("10.96.0.1:80")
    };
    let decision = Decision::new(&told(&format!("{MESH}{waypoint}"), behind), &own);
    assert_eq!(decision.outbound.route.unwrap().address.port(), 8080);
}

#[test]
fn what_is_not_spoken_is_refused_with_a_reason() {
    let far = told(MESH, |name, message| {
        if let Some(address::Type::Workload(workload)) = &mut message.r#type
            && name.ends_with("cart-0")
        {
            workload.network = "elsewhere".to_owned();
        }
    });
    let direct = decide(&far, "10.0.0.2:8080")
        .outbound
        .route
        .unwrap_err()
        .to_string();
    assert!(direct.contains("on another network"), "{direct}");
    let chosen = decide(&far, "10.96.0.1:80").outbound;
    assert_eq!(
        chosen.candidates[0].standing,
        Standing::Unfit(Unfit::OtherNetwork)
    );
    assert_eq!(chosen.route.unwrap().workload.unwrap().name, "cart-1");
    let header = told(MESH, |name, message| {
        if let Some(address::Type::Workload(workload)) = &mut message.r#type
            && name.ends_with("cart-0")
        {
            workload.application_tunnel = Some(ApplicationTunnel { protocol: 1, port: 0 });
        }
    });
    let refused = decide(&header, "10.0.0.2:8080").inbound.unwrap().refused.unwrap();
    assert!(refused.to_string().contains("PROXY protocol"), "{refused}");
}

#[test]
fn a_tunnel_may_name_addresses_of_the_pod_and_its_services() {
    let mesh = mesh(MESH);
    let local = "10.0.0.2".parse().unwrap();
    let named = |authority: &str| admit::requested(&mesh, authority, local);
    assert_eq!(named("10.0.0.2:9000").unwrap().to_string(), "10.0.0.2:9000");
    assert_eq!(
        named("cart.shop.svc.cluster.local:80").unwrap().to_string(),
        "10.0.0.2:8080"
    );
    for (authority, why) in [
        ("10.0.0.3:9000", "10.0.0.3:9000 is not of this pod"),
        ("cart.shop.svc.cluster.local:81", "is not of this pod"),
        ("other.shop.svc.cluster.local:80", "is not of this pod"),
        ("cart.shop.svc.cluster.local", "is no address"),
        ("10.0.0.2:0", "is no address"),
        ("cart.shop.svc.cluster.local:0", "is no address"),
        ("cart.shop.svc.cluster.local:http", "is no address"),
        ("a@cart.shop.svc.cluster.local:80", "is no address"),
        ("[fe80::1%eth0]:80", "is no address"),
        (":80", "is no address"),
        ("", "is no address"),
    ] {
        let refused = named(authority).unwrap_err();
        assert!(refused.to_string().contains(why), "{authority}: {refused}");
        assert_eq!(refused.status().as_u16(), 400, "{authority}");
    }
}

/// A policy as its author wrote it, translated by the control plane.
fn authored(spec: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: shop}}\n\
         spec: {{{spec}}}\n"
    )
}

/// What is said about the arrival, from the caller's address on.
fn arrival(decision: &Decision) -> String {
    let said = decision.to_string();
    let lines = said.lines().skip_while(|line| !line.starts_with("arrives at "));
    lines.skip(1).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_policy_that_is_not_enforced_as_written_says_where_and_what_follows() {
    const TYPO: &str = "{from: [{source: {principal: [cluster.local/ns/shop/sa/web]}}]}";
    const REASON: &str = "  not enforced as written: spec.rules[0].from[0].source.principal: unknown field; the rule allows nothing";
    let rows = [
        (
            format!("rules: [{TYPO}]"),
            format!("ALLOW policy shop/p: it has no rule that can match\n{REASON}\nrefused: no policy allows it"),
        ),
        (
            format!("rules: [{TYPO}, {{to: [{{operation: {{ports: ['9']}}}}]}}]"),
            format!("ALLOW policy shop/p: its rule does not match\n{REASON}\nrefused: no policy allows it"),
        ),
        // The rule that is left out counts: the number is that of the author.
        (
            format!("rules: [{TYPO}, {{to: [{{operation: {{ports: ['9']}}}}]}}, {{from: [{{source: {{namespaces: [shop]}}}}]}}]"),
            format!("decided by shop/p rule 3\n{REASON}\nallowed"),
        ),
        (
            "action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]".to_owned(),
            "decided by shop/p rule 1\n  not enforced as written: spec.rules[0].to[0].operation.paths: an attribute of \
             HTTP requests, which is not enforced at L4; the rule denies without this condition\nrefused: denied by shop/p"
                .to_owned(),
        ),
        // No rule of the author decides.
        (
            "action: DANY, rules: [{}]".to_owned(),
            "decided by shop/p\n  not enforced as written: spec.action: \"DANY\" is not ALLOW, DENY, CUSTOM or AUDIT; \
             every connection is denied\nrefused: denied by shop/p"
                .to_owned(),
        ),
        (
            "action: DENY, rules: [{}]".to_owned(),
            "decided by shop/p rule 1\nrefused: denied by shop/p".to_owned(),
        ),
        (
            "rules: [{to: [{operation: {ports: ['9']}}]}, {to: [{operation: {ports: ['8']}}]}]".to_owned(),
            "ALLOW policy shop/p: none of its 2 rules matches\nrefused: no policy allows it".to_owned(),
        ),
    ];
    for (spec, expected) in rows {
        let decision = decide(&mesh(&format!("{MESH}{}", authored(&spec))), "10.0.0.2:8080");
        assert_eq!(arrival(&decision), expected, "{spec}");
    }
}

#[test]
fn all_policies_are_named_where_none_allows() {
    let other = "---\nkind: Policy\nname: other\nnamespace: shop\n";
    let text = format!(
        "{MESH}{other}{}",
        authored("rules: [{to: [{operation: {ports: ['9']}}]}]")
    );
    assert_eq!(
        arrival(&decide(&mesh(&text), "10.0.0.2:8080")),
        "ALLOW policy shop/other: it has no rule that can match\nALLOW policy shop/p: its rule does not match\n\
         refused: no policy allows it"
    );
}

#[test]
fn mutual_tls_that_is_required_by_mistake_says_by_what() {
    let peers = |mode: &str| {
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: cart-0, namespace: shop, labels: {{app: cart}}}}
status: {{phase: Running, podIP: 10.0.0.2}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: peers, namespace: shop}}
spec: {{selector: {{matchLabels: {{app: cart}}}}, mtls: {{mode: {mode}}}}}
"
        )
    };
    let strict = "decided by istio-system/istio_converted_static_strict\n";
    let refused = "refused: denied by istio-system/istio_converted_static_strict";
    assert_eq!(
        arrival(&decide(&mesh(&peers("STRIKT")), "10.0.0.2:8080")),
        format!(
            "{strict}PeerAuthentication shop/peers: mutual TLS is required\n  not enforced as written: spec.mtls.mode: \
             \"STRIKT\" is not UNSET, DISABLE, PERMISSIVE or STRICT; mutual TLS is required\n{refused}"
        )
    );
    let written = decide(&mesh(&peers("STRICT")), "10.0.0.2:8080");
    assert_eq!(arrival(&written), format!("{strict}{refused}"));
}
