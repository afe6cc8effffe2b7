//! Lines about connections.

use super::process::PATIENCE;
use super::scene::{Pod, Scene};
use std::time::{Duration, Instant};

#[test]
fn every_connection_is_a_line_in_the_way_the_mesh_wants_it() {
    let scene = Scene::new();
    let _control = scene.control();
    let _application = scene.application(Pod::Cart);
    for pod in [Pod::Web, Pod::Cart] {
        std::os::unix::fs::chown(scene.in_pod(pod, ""), Some(1337), Some(1337)).unwrap();
    }
    scene.write_in(
        Pod::Web,
        "etc/istio/config/mesh",
        "accessLogFile: ./access.log\naccessLogEncoding: JSON\n",
    );
    scene.write_in(
        Pod::Cart,
        "etc/istio/config/mesh",
        "accessLogFile: ./access.log\n",
    );
    let mut web = scene.sidecar(Pod::Web);
    let mut cart = scene.sidecar(Pod::Cart);
    scene.ready(Pod::Web);
    scene.ready(Pod::Cart);
    drop(scene.call().unwrap());
    let line = |pod: Pod| {
        let started = Instant::now();
        loop {
            let text = std::fs::read_to_string(scene.in_pod(pod, "access.log")).unwrap_or_default();
            if text.ends_with('\n') {
                return text;
            }
            assert!(started.elapsed() < PATIENCE, "no line");
            std::thread::park_timeout(Duration::from_millis(2));
        }
    };
    let json: serde_json::Value = serde_json::from_str(&line(Pod::Web)).unwrap();
    assert_eq!(json["direction"], "outbound");
    assert_eq!(
        (json["bytes_sent"].as_u64(), json["bytes_recv"].as_u64()),
        (Some(4), Some(4))
    );
    let text = line(Pod::Cart);
    for part in ["Z src.addr=10.1.0.2:", "direction=inbound", "sa/web\""] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!((web.stop(), cart.stop()), (0, 0));
}

#[test]
fn a_log_that_cannot_be_written_is_said_and_stops_nobody() {
    let scene = Scene::new();
    let _control = scene.control();
    scene.write_in(
        Pod::Web,
        "etc/istio/config/mesh",
        "accessLogFile: ./no/such/directory\n",
    );
    let mut web = scene.sidecar(Pod::Web);
    scene.ready(Pod::Web);
    web.says("there is no access log: ./no/such/directory: No such file or directory");
    assert_eq!(web.stop(), 0);
}
