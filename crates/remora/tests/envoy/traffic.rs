//! What is open stays open while everything around it changes.

use crate::process::PATIENCE;
use crate::scene::{Scene, here};
use remora_xds::raw::Protocol;
use std::time::{Duration, Instant};

/// Renewed every second: half of a life of two seconds after the two minutes it is back-dated by.
const SHORT_LIFE: &str = "122s";

#[test]
fn certificates_are_exchanged_under_an_open_connection() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    scene.application();
    let plane = scene.plane(&[8443]);
    let env = Scene::env_with(&[("SECRET_TTL", SHORT_LIFE)]);
    let mut sidecar = scene.sidecar(env);
    scene.ready();
    let client = scene.client();
    let mut open = scene.call(&client, 8443).unwrap();
    let mut seen = vec![open.certificate()];
    let started = Instant::now();
    // Three more certificates, with connections all the time.
    while seen.len() < 4 {
        assert!(
            started.elapsed() < PATIENCE,
            "no new certificates:\n{}",
            sidecar.said()
        );
        let fresh = scene.call(&client, 8443).unwrap().certificate();
        if !seen.contains(&fresh) {
            seen.push(fresh);
        }
        open.ping().unwrap();
    }
    // The authority is away: the last one stays.
    drop(plane);
    sidecar.says("ask for a certificate");
    scene.call(&client, 8443).unwrap();
    open.ping().unwrap();
    drop(open);
    assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
}

#[test]
fn a_control_plane_that_restarts_changes_only_what_changed() {
    for (protocol, delta) in [(Protocol::Delta, "true"), (Protocol::Sotw, "false")] {
        if !here() {
            return;
        }
        let scene = Scene::new();
        scene.application();
        let plane = scene.plane_that_speaks(protocol, &[8443]);
        let env = Scene::env_with(&[("ISTIO_DELTA_XDS", delta)]);
        let mut sidecar = scene.sidecar(env);
        scene.ready();
        let client = scene.client();
        let mut open = scene.call(&client, 8443).unwrap();
        drop(plane);
        sidecar.says("discovery: ");
        open.ping().unwrap();
        scene.call(&client, 8443).unwrap();
        assert_eq!(scene.ask(15021, "/healthz/ready").unwrap().0, 200);
        // It comes back with one listener more; the first one is not touched.
        let _plane = scene.plane_that_speaks(protocol, &[8443, 8444]);
        let started = Instant::now();
        while scene.call(&client, 8444).is_err() {
            assert!(started.elapsed() < PATIENCE, "{}", sidecar.said());
            std::thread::park_timeout(Duration::from_millis(10));
        }
        open.ping().unwrap();
        drop(open);
        let said = sidecar.said();
        assert!(
            !said.contains("gRPC config stream"),
            "Envoy noticed nothing: {said}"
        );
        assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
    }
}

#[test]
fn exit_on_zero_waits_for_the_last_connection_and_no_longer() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    scene.application();
    let _plane = scene.plane(&[8443]);
    let env = Scene::env_with(&[
        ("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true"),
        ("MINIMUM_DRAIN_DURATION", "100ms"),
    ]);
    let mut sidecar = scene.sidecar(env);
    scene.ready();
    let mut open = scene.call(&scene.client(), 8443).unwrap();
    sidecar.signal("TERM");
    scene.readiness(|status, _| status == 503);
    // It asks every second; after two of them it is still there.
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_millis(2500) {
        open.ping().unwrap();
        std::thread::park_timeout(Duration::from_millis(50));
    }
    drop(open);
    let closed = Instant::now();
    assert_eq!(sidecar.end(), 0, "{}", sidecar.said());
    assert!(
        closed.elapsed() < Duration::from_secs(20),
        "{:?}",
        closed.elapsed()
    );
}
