//! Names: the ones the sidecar answers, and the one it asks for.

use super::process::binary;
use super::scene::{Pod, Scene};
use remora_testkit::Actor;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

/// A question for an IPv4 address.
fn question(name: &str) -> Vec<u8> {
    let mut bytes = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
    bytes
}

#[test]
fn captured_names_of_the_mesh_are_answered_also_to_those_who_asked_too_early() {
    let scene = Scene::new();
    let mut env = Scene::env(Pod::Web);
    env.insert("ISTIO_META_DNS_CAPTURE".to_owned(), "true".to_owned());
    let mut web = scene.start(Pod::Web, env).remora(&["proxy", "sidecar"]);
    scene.readiness(Pod::Web, |status, _| status == 503);
    let socket = Actor::new(scene.namespace(Pod::Web), 1000, 1000).run(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = SocketAddr::from(([127, 0, 0, 1], 15053));
        socket.send_to(&question("cart.shop"), to).unwrap();
        socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        socket
    });
    let _control = scene.control();
    let mut answer = [0; 512];
    let (length, _) = socket.recv_from(&mut answer).unwrap();
    let answer = &answer[..length];
    assert_eq!(answer[..2], [7, 7]);
    assert!(answer.ends_with(&[10, 96, 0, 1]), "{answer:?}");
    assert_eq!(web.stop(), 0, "{}", web.said());
}

#[test]
fn a_control_plane_with_a_name_is_found() {
    let scene = Scene::new();
    let _control = scene.control();
    let mut start = scene.start(Pod::Web, Scene::env(Pod::Web));
    scene.write_in(
        Pod::Web,
        "hosts",
        "127.0.0.1 localhost\n10.2.0.1 istiod.istio-system.svc\n",
    );
    let config = "{discoveryAddress: 'istiod.istio-system.svc:15012', terminationDrainDuration: 100ms}";
    start.env.insert("PROXY_CONFIG".to_owned(), config.to_owned());
    start
        .env
        .insert("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
    start.env.remove("ISTIOD_SAN");
    // Root, for a file of our own in a mount namespace that goes with the process.
    start.uid = 0;
    let script = format!(
        "mount --bind ./hosts /etc/hosts && exec setpriv --reuid 1337 --regid 1337 --clear-groups {} proxy sidecar",
        binary().display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let mut web = start.run(command);
    scene.ready(Pod::Web);
    assert_eq!(web.stop(), 0, "{}", web.said());
}
