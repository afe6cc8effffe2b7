//! Services with several workloads behind them, some of which cannot be reached.

use crate::scene::{MESH, PATIENCE, Scene, echo, exchange, service};
use remora_proxy::balance::Standing;
use std::time::Instant;

/// A second workload of the service: at the other address of the same pod, on a port nobody listens on.
fn with_a_broken_one() -> String {
    let whole = MESH.replace("addresses: [10.1.0.1, 'fd00:1::1']", "addresses: [10.1.0.1]");
    format!(
        "{whole}---
kind: Workload
name: cart-1
namespace: shop
addresses: ['fd00:1::1']
serviceAccount: cart
tunnel: hbone
services: {{shop/cart.shop.svc.cluster.local: ['80:9999']}}
"
    )
}

#[test]
fn who_cannot_be_reached_costs_nobody_a_connection_and_is_set_aside() {
    let scene = Scene::with(&with_a_broken_one());
    scene.serve(8080, echo);
    let caller = scene.lab.eth0.pod(false);
    let standing = |name: &str| {
        let decision = scene.client.ctx.why(caller, service(false));
        let all = decision.outbound.candidates;
        all.into_iter()
            .find(|c| c.workload.name == name)
            .unwrap()
            .standing
    };
    assert_eq!(standing("cart-1"), Standing::Fit { rank: 0 }, "nobody knows yet");
    let started = Instant::now();
    while !matches!(standing("cart-1"), Standing::Aside { .. }) {
        assert!(started.elapsed() < PATIENCE);
        scene.attempt(service(false)).unwrap();
        assert_eq!(scene.client.record().error, None);
    }
    for _ in 0..20 {
        scene.attempt(service(true)).unwrap();
        assert_eq!(scene.client.record().error, None);
    }
    assert_eq!(standing("cart-0"), Standing::Fit { rank: 0 });
}

#[test]
fn what_would_happen_is_what_happens() {
    let scene = Scene::with(&MESH.replace(
        "ports: [{port: 80",
        "sessionAffinity: ClientIP\nports: [{port: 80",
    ));
    scene.serve(8080, echo);
    for ipv6 in [false, true] {
        let decision = scene.client.ctx.why(scene.lab.eth0.pod(ipv6), service(ipv6));
        assert!(decision.is_allowed(), "{decision}");
        let hop = decision.outbound.route.unwrap();
        let mut stream = scene.connect(service(ipv6));
        exchange(&mut stream, b"here").unwrap();
        assert_eq!(decision_open(&scene, ipv6), 1, "what is open is counted");
        drop(stream);
        let (out, back) = (scene.client.record(), scene.server.record());
        assert_eq!(out.service, decision.outbound.service.map(|s| s.hostname.clone()));
        assert_eq!(out.destination_id.as_ref(), hop.peer());
        assert_eq!(back.destination, hop.address);
        assert_eq!(back.source_id, decision.inbound.unwrap().arrival.id);
        assert_eq!(decision_open(&scene, ipv6), 0);
    }
}

fn decision_open(scene: &Scene, ipv6: bool) -> u32 {
    let decision = scene.client.ctx.why(scene.lab.eth0.pod(ipv6), service(ipv6));
    decision.outbound.candidates.iter().map(|c| c.open).sum()
}
