//! What can be seen of connections: while they are open, when they are over, and before they are opened.

use crate::scene::{MESH, PATIENCE, Proxy, Scene, echo, exchange, service};
use remora_proxy::access::Reason;
use remora_proxy::drain::Phase;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Asks the client's proxy, as the application could.
fn ask(scene: &Scene, request: &str) -> (u16, String) {
    let request = format!("{request}\r\nconnection: close\r\n\r\n");
    let answer = scene.app.run(move || {
        let mut stream = TcpStream::connect("127.0.0.1:15000").unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

fn get(scene: &Scene, path: &str) -> (u16, String) {
    ask(scene, &format!("GET {path} HTTP/1.1\r\nhost: localhost"))
}

fn get_json(scene: &Scene, path: &str) -> Value {
    let (status, body) = get(scene, path);
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// The value of the only series of this name with these labels.
fn metric(proxy: &Proxy, name: &str, labels: &[&str]) -> u64 {
    let text = proxy.ctx.metrics().render();
    let mut lines = text.lines().filter(|line| {
        line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| line.contains(label))
    });
    let line = lines.next().unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    assert_eq!(lines.next(), None, "{name} is there twice");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_connection_is_seen_while_it_is_open_and_counted_on_both_sides() {
    let scene = Scene::new();
    scene.serve(8080, echo);
    for ipv6 in [false, true] {
        let before = u64::from(ipv6);
        let mut stream = scene.connect(service(ipv6));
        exchange(&mut stream, b"twelve bytes").unwrap();
        let open = get_json(&scene, "/connections");
        assert_eq!(open["tunnels"], 1 + before);
        let [only] = open["connections"].as_array().unwrap().as_slice() else {
            panic!("{open}");
        };
        for (name, value) in [
            ("direction", "outbound"),
            ("service", "shop/cart.shop.svc.cluster.local"),
            ("destinationIdentity", "spiffe://td/ns/shop/sa/cart"),
            ("sourceIdentity", "spiffe://td/ns/shop/sa/web"),
            ("carriage", "hbone"),
        ] {
            assert_eq!(only[name], value, "{only}");
        }
        assert_eq!(
            (&only["bytesFromSource"], &only["bytesToSource"]),
            (&12.into(), &12.into())
        );
        let flags = ["response_flags=\"-\""];
        for proxy in [&scene.client, &scene.server] {
            let value = |name: &str| metric(proxy, &format!("istio_tcp_{name}_total"), &flags);
            assert_eq!(value("connections_opened"), 1 + before);
            assert_eq!(value("connections_closed"), before);
            assert_eq!(
                value("received_bytes"),
                12 + 12 * before,
                "counted before it is over"
            );
            assert_eq!(metric(proxy, "remora_connections_open", &[]), 1);
        }
        drop(stream);
        for proxy in [&scene.client, &scene.server] {
            let record = proxy.record();
            assert_eq!((record.error, record.reason), (None, None));
            assert_eq!(record.source_party.workload.as_deref(), Some("web-0"));
            assert_eq!(record.destination_party.workload.as_deref(), Some("cart-0"));
            assert_eq!(record.service.as_deref(), Some("cart.shop.svc.cluster.local"));
            let value = |name: &str| metric(proxy, &format!("istio_tcp_{name}_total"), &flags);
            assert_eq!(value("connections_closed"), 1 + before);
            assert_eq!(value("sent_bytes"), 12 + 12 * before);
            assert_eq!(metric(proxy, "remora_connections_open", &[]), 0);
        }
    }
    let labels = [
        "reporter=\"destination\"",
        "source_workload=\"web-0\"",
        "source_principal=\"spiffe://td/ns/shop/sa/web\"",
        "destination_workload_namespace=\"shop\"",
        "destination_service_name=\"cart\"",
        "connection_security_policy=\"mutual_tls\"",
    ];
    assert_eq!(
        metric(&scene.server, "istio_tcp_connections_closed_total", &labels),
        2
    );
}

#[test]
fn what_fails_is_counted_by_reason() {
    let denied = format!(
        "{MESH}---\nkind: Policy\nname: nobody\nnamespace: shop\nrules: [{{to: [{{ports: [1]}}]}}]\n"
    );
    let scene = Scene::with(&denied);
    scene.failure(service(false));
    assert_eq!(scene.server.record().reason, Some(Reason::Denied));
    let labels = ["response_flags=\"DENY\""];
    for name in ["opened", "closed", "failed"] {
        let name = format!("istio_tcp_connections_{name}_total");
        assert_eq!(metric(&scene.server, &name, &labels), 1);
    }
    let labels = ["direction=\"inbound\"", "reason=\"denied\""];
    assert_eq!(
        metric(&scene.server, "remora_connection_failures_total", &labels),
        1
    );
    // The application listens nowhere.
    scene.learn(MESH);
    scene.failure(service(false));
    assert_eq!(scene.server.record().reason, Some(Reason::Connect));
    scene
        .client
        .learn(&MESH.replace("tunnel: hbone\nservices", "healthy: false\nservices"));
    while scene.client.record().reason != Some(Reason::NoEndpoint) {
        scene.failure(service(false));
    }
}

#[test]
fn why_says_everything_and_sends_nothing() {
    let allow = format!(
        "{MESH}---\nkind: Policy\nname: who\nnamespace: shop\nrules: [{{from: [{{principals: [td/ns/shop/sa/web]}}]}}]\n"
    );
    let scene = Scene::with(&allow);
    let path = "/why?src=shop/web-0&dst=cart:80";
    let (status, text) = get(&scene, path);
    assert_eq!(status, 200);
    for part in [
        "service shop/cart.shop.svc.cluster.local",
        "in the tunnel to",
        "decided by shop/who rule 1",
        "allowed",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let value = get_json(&scene, &format!("{path}&format=json"));
    assert_eq!(value["allowed"], true);
    assert_eq!(value["outbound"]["route"]["peer"], "spiffe://td/ns/shop/sa/cart");
    assert_eq!(value["inbound"]["decidedBy"], "shop/who rule 1");
    let other = get_json(&scene, "/why?src=10.1.0.99&dst=%5Bfd96::1%5D:80&format=json");
    assert_eq!(other["allowed"], false, "{other}");
    let (status, text) = get(&scene, "/why?src=10.1.0.2&dst=nobody:80");
    assert!(
        status == 400 && text.contains("nobody named \"nobody\""),
        "{text}"
    );
    assert_eq!(get(&scene, "/why?src=x&dst=cart:80").0, 400);
    assert_eq!(get(&scene, "/why").0, 400);
    assert_eq!(scene.client.ctx.tunnels(), 0, "nobody was called");
    assert!(scene.client.records.try_recv().is_err());
}

#[test]
fn the_admin_port_shows_what_is_known_and_takes_orders_from_the_same_host_only() {
    let mut scene = Scene::new();
    let dump = get_json(&scene, "/config_dump");
    assert_eq!(dump["certificate"]["identity"], "spiffe://td/ns/shop/sa/web");
    assert_eq!(dump["workloads"].as_array().unwrap().len(), 2);
    assert_eq!(dump["services"][0]["ports"][0], "80:8080");
    assert!(!dump.to_string().contains("PRIVATE"));
    assert!(
        get(&scene, "/stats/prometheus")
            .1
            .contains("remora_certificate_expiry_timestamp_seconds")
    );
    assert_eq!(get(&scene, "/healthz/ready"), (200, "ready\n".to_owned()));
    assert_eq!(get(&scene, "/debug/memory").0, 403, "not switched on");
    assert_eq!(get(&scene, "/nowhere").0, 404);
    assert_eq!(
        ask(&scene, "GET /config_dump HTTP/1.1\r\nhost: evil.example").0,
        403
    );
    assert_eq!(get(&scene, "/quitquitquit").0, 405);
    let large = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}", "x".repeat(20 << 10));
    assert_eq!(ask(&scene, &large).0, 431);
    assert_eq!(
        ask(&scene, "POST /quitquitquit HTTP/1.1\r\nhost: localhost").0,
        200
    );
    scene.client.draining();
    scene.client.finish();
    assert_eq!(scene.client.ctx.drain().phase(), Phase::Cut);
}
