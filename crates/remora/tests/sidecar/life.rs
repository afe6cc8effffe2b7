//! From the start to the stop.

use super::process::{Process, Start};
use super::scene::{Pod, Scene};

#[test]
fn readiness_tells_what_is_missing_until_everything_is_there_and_fails_on_the_stop() {
    let scene = Scene::new();
    let mut sidecar = scene.sidecar(Pod::Web);
    // No control plane yet: the root is missing, later nobody listens.
    let (status, body) = scene.readiness(Pod::Web, |status, body| status == 503 && body.contains("trouble"));
    assert_eq!(status, 503);
    for part in [
        "\"reason\":\"waiting for certificate\"",
        "\"missing\":[\"certificate\",\"configuration\",\"proxy\"]",
        "root-cert.pem",
    ] {
        assert!(body.contains(part), "{body}");
    }
    let _control = scene.control();
    scene.ready(Pod::Web);
    assert_eq!(
        scene.ask(Pod::Web, 15021, "/healthz/ready").unwrap(),
        (200, "{\"ready\":true}\n".to_owned())
    );
    assert_eq!(scene.ask(Pod::Web, 15021, "/config_dump").unwrap().0, 404);
    assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
}

#[test]
fn a_taken_port_ends_the_start_with_255_and_says_which() {
    let scene = Scene::new();
    let _first = waiting(&scene);
    let mut second = scene.sidecar(Pod::Web);
    assert_eq!(second.end(), 255);
    second.says("listen on 0.0.0.0:15021");
    second.says("these ports belong to the sidecar");
}

#[test]
fn mistakes_in_the_settings_are_said_and_end_with_255() {
    let scene = Scene::new();
    let mut env = Scene::env(Pod::Web);
    env.remove("POD_NAMESPACE");
    let start: Start<'_> = scene.start(Pod::Web, env);
    let mut sidecar = start.remora(&["proxy", "sidecar"]);
    assert_eq!(sidecar.end(), 255);
    sidecar.says("POD_NAMESPACE is not set");
}

#[test]
fn the_command_line_of_1_5_starts_and_what_is_not_known_is_a_warning() {
    let scene = Scene::new();
    let start = scene.start(Pod::Web, Scene::env(Pod::Web));
    let line = "proxy sidecar --domain shop.svc.cluster.local --configPath /etc/istio/proxy --binaryPath \
                /usr/local/bin/envoy --serviceCluster web.shop --drainDuration 45s --parentShutdownDuration 1m0s \
                --discoveryAddress 10.2.0.1:15012 --proxyLogLevel=warning --connectTimeout 10s --proxyAdminPort \
                15000 --concurrency 2 --statusPort 15020 --trust-domain=cluster.local \
                --controlPlaneBootstrap=false --futureFlag on";
    let words: Vec<&str> = line.split_whitespace().collect();
    let _control = scene.control();
    let mut sidecar = start.remora(&words);
    sidecar.says("--futureFlag is not known");
    scene.ready(Pod::Web);
    assert_eq!(sidecar.stop(), 0);
}

/// A sidecar that listens and has no control plane.
fn waiting(scene: &Scene) -> Process {
    let sidecar = scene.sidecar(Pod::Web);
    scene.readiness(Pod::Web, |status, _| status == 503);
    sidecar
}
