//! What can be asked of a sidecar in its pod.

use super::process::PATIENCE;
use super::scene::{Pod, Scene};
use remora_testkit::Actor;
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};

/// Asks for the IPv4 address of `cart`.
const QUESTION: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x04cart\0\0\x01\0\x01";

#[test]
fn a_pod_can_ask_its_proxy_for_names_and_people_can_ask_it_why() {
    let scene = Scene::new();
    let mut env = Scene::env(Pod::Web);
    env.insert("ISTIO_META_DNS_CAPTURE".to_owned(), "true".to_owned());
    let mut sidecar = scene.start(Pod::Web, env).remora(&["proxy", "sidecar"]);
    let _control = scene.control();
    scene.ready(Pod::Web);
    let answer = Actor::new(scene.namespace(Pod::Web), 1000, 1000).run(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send_to(QUESTION, "127.0.0.1:15053").unwrap();
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer).unwrap();
        buffer[..length].to_vec()
    });
    assert!(
        answer.starts_with(b"\x12\x34") && answer.ends_with(&[10, 96, 0, 1]),
        "{answer:?}"
    );
    let why = |arguments: &[&str]| {
        let start = scene.start(Pod::Web, BTreeMap::new());
        start.remora(&[&["why"], arguments].concat()).end()
    };
    assert_eq!(why(&["shop/web-0", "cart:80"]), 0);
    assert_eq!(
        why(&["10.1.0.2", "10.96.0.1:81"]),
        1,
        "the service has no such port"
    );
    assert_eq!(why(&["10.1.0.2", "nobody:80"]), 2);
    let admin = SocketAddr::from(([127, 0, 0, 1], 15000));
    let request = "GET /stats/prometheus HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let (status, body) = scene.send(Pod::Web, admin, request).unwrap();
    assert!(
        status == 200 && body.contains("remora_dns_answered_total 1\n"),
        "{body}"
    );
    assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
}
