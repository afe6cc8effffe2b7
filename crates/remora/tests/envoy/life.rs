//! From the start to every kind of end.

use crate::process::PATIENCE;
use crate::scene::{Scene, children, exists, here, only_child, signal};
use std::time::{Duration, Instant};

#[test]
fn readiness_goes_from_refused_to_503_with_a_reason_to_200_and_to_503_on_the_stop() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    let nobody = scene.ask(15021, "/healthz/ready").unwrap_err();
    assert_eq!(nobody.kind(), std::io::ErrorKind::ConnectionRefused);
    let mut sidecar = scene.sidecar(Scene::env());
    let (_, body) = scene.readiness(|status, body| status == 503 && body.contains("trouble"));
    for part in ["waiting for certificate", "\"configuration\"", "10.1.0.1:15012"] {
        assert!(body.contains(part), "{body}");
    }
    let _plane = scene.plane(&[8443]);
    scene.ready();
    assert_eq!(scene.ask(15020, "/healthz/ready").unwrap().0, 200);
    let (status, metrics) = scene.ask(15090, "/stats/prometheus").unwrap();
    assert!(
        status == 200 && metrics.contains("envoy_server_live"),
        "{status} {metrics}"
    );
    let (_, merged) = scene.ask(15020, "/stats/prometheus").unwrap();
    for part in ["envoy_server_live", "istio_agent_startup_duration_seconds"] {
        assert!(merged.contains(part), "{part} is missing");
    }
    let envoy = only_child(sidecar.pid(), None);
    sidecar.signal("TERM");
    let (_, body) = scene.readiness(|status, _| status == 503);
    assert!(body.contains("stopping"), "{body}");
    assert_eq!(sidecar.end(), 0, "{}", sidecar.said());
    assert!(!exists(envoy));
    assert!(!scene.path("etc/istio/proxy/envoy-rev.json").exists());
}

#[test]
fn the_end_of_envoy_is_the_agents_with_its_code() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    let _plane = scene.plane(&[8443]);
    for (name, code) in [("SEGV", 139), ("KILL", 137)] {
        let mut sidecar = scene.sidecar(Scene::env());
        scene.ready();
        signal(name, only_child(sidecar.pid(), None));
        assert_eq!(sidecar.end(), code, "{}", sidecar.said());
    }
}

#[test]
fn the_end_of_the_agent_is_envoys_however_it_comes() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    let mut sidecar = scene.sidecar(Scene::env());
    let envoy = only_child(sidecar.pid(), None);
    sidecar.signal("KILL");
    assert_eq!(sidecar.end(), 137);
    let started = Instant::now();
    while exists(envoy) {
        assert!(started.elapsed() < PATIENCE, "Envoy outlives its agent");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    // What was left behind is no obstacle.
    let _plane = scene.plane(&[8443]);
    let mut again = scene.sidecar(Scene::env());
    scene.ready();
    assert_eq!(again.stop(), 0, "{}", again.said());
}

#[test]
fn an_envoy_that_cannot_start_says_why_and_is_no_success() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    scene.write("override.json", "{\"admin\": 5}");
    let env = Scene::env_with(&[("ISTIO_BOOTSTRAP_OVERRIDE", "./override.json")]);
    let mut sidecar = scene.sidecar(env);
    assert_ne!(sidecar.end(), 0);
    sidecar.says("critical");
    sidecar.says("Envoy ended by itself");
}

#[test]
fn a_stop_is_followed_before_envoy_serves_and_a_second_one_hurries() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    // No control plane: Envoy waits for it, and goes all the same.
    let mut sidecar = scene.sidecar(Scene::env());
    only_child(sidecar.pid(), None);
    assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
    let _plane = scene.plane(&[8443]);
    let mut env = Scene::env();
    let config = "{discoveryAddress: '10.1.0.1:15012', terminationDrainDuration: 1h}";
    env.insert("PROXY_CONFIG".to_owned(), config.to_owned());
    let mut sidecar = scene.sidecar(env);
    scene.ready();
    sidecar.signal("TERM");
    scene.readiness(|status, _| status == 503);
    sidecar.signal("TERM");
    assert_eq!(sidecar.end(), 0, "{}", sidecar.said());
}

#[test]
fn a_changed_override_starts_envoy_again_and_a_wrong_one_does_not() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    let _plane = scene.plane(&[8443]);
    scene.write("override.json", "{}");
    let env = Scene::env_with(&[("ISTIO_BOOTSTRAP_OVERRIDE", "./override.json")]);
    let mut sidecar = scene.sidecar(env);
    scene.ready();
    let first = only_child(sidecar.pid(), None);
    scene.write("override.json", "{\"admin\": 5}");
    sidecar.says("goes on with the old one");
    assert!(exists(first));
    scene.write(
        "override.json",
        "{\"node\": {\"locality\": {\"region\": \"elsewhere\"}}}",
    );
    only_child(sidecar.pid(), Some(first));
    scene.ready();
    let (_, info) = scene.ask(15000, "/server_info").unwrap();
    assert!(info.contains("elsewhere"), "{info}");
    assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
}

#[test]
fn a_configuration_of_the_users_is_used_as_it_is() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    let admin = "{\"admin\": {\"address\": {\"socket_address\": {\"address\": \"127.0.0.1\", \"port_value\": 15000}}}}";
    scene.write("mine.json", admin);
    let _plane = scene.plane(&[]);
    let mut env = Scene::env();
    let config = "{discoveryAddress: '10.1.0.1:15012', customConfigFile: ./mine.json}";
    env.insert("PROXY_CONFIG".to_owned(), config.to_owned());
    let mut sidecar = scene.sidecar(env);
    scene.ready();
    assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
    assert!(scene.path("mine.json").exists(), "it is the user's");
}

#[test]
fn signals_that_are_meant_for_envoy_reach_it() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    let _plane = scene.plane(&[8443]);
    let mut sidecar = scene.sidecar(Scene::env());
    scene.ready();
    sidecar.signal("HUP");
    sidecar.says("SIGHUP");
    sidecar.signal("USR1");
    assert_eq!(scene.ask(15021, "/healthz/ready").unwrap().0, 200);
    assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
}

#[test]
fn an_agent_without_its_envoy_serves_programs_that_speak_discovery_themselves() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    let mut env = Scene::env();
    for (name, value) in [("DISABLE_ENVOY", "true"), ("OUTPUT_CERTS", "./certs")] {
        env.insert(name.to_owned(), value.to_owned());
    }
    let mut sidecar = scene.sidecar(env);
    let (_, body) = scene.readiness(|status, body| status == 503 && body.contains("trouble"));
    assert!(body.contains("waiting for certificate"), "{body}");
    let _plane = scene.plane(&[]);
    scene.ready();
    assert_eq!(children(sidecar.pid()), [0; 0]);
    let grpc = std::fs::read_to_string(scene.path("etc/istio/proxy/grpc-bootstrap.json")).unwrap();
    assert!(grpc.contains("etc/istio/proxy/XDS"), "{grpc}");
    std::os::unix::net::UnixStream::connect(scene.path("etc/istio/proxy/XDS")).unwrap();
    assert!(scene.path("certs/key.pem").exists());
    assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
}
