//! What goes wrong around a sidecar with an Envoy.

use crate::scene::{Scene, children, exists, here, only_child, signal};
use std::time::{Duration, Instant};

#[test]
fn a_sigterm_at_any_moment_of_the_start_ends_agent_and_envoy() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    let _plane = scene.plane(&[8443]);
    // From before the program runs, over Envoy's fork and its start, to after it is ready.
    for step in 0..30 {
        let mut sidecar = scene.sidecar(Scene::env());
        let moment = Instant::now() + Duration::from_millis(step * 8);
        let mut envoys = Vec::new();
        while Instant::now() < moment {
            envoys.extend(children_of(sidecar.pid()));
            std::thread::park_timeout(Duration::from_micros(500));
        }
        envoys.extend(children_of(sidecar.pid()));
        let code = sidecar.stop();
        // Before it could say how it takes signals the kernel ends it: 128 + 15.
        assert!(
            code == 0 || (code == 143 && sidecar.said().is_empty()),
            "step {step}: {code}\n{}",
            sidecar.said()
        );
        envoys.dedup();
        assert!(!envoys.into_iter().any(exists), "step {step}: Envoy outlived it");
    }
}

/// As long as the process is there.
fn children_of(pid: u32) -> Vec<u32> {
    if exists(pid) { children(pid) } else { Vec::new() }
}

#[test]
fn an_envoy_that_no_longer_answers_does_not_keep_the_pod() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    scene.application();
    let _plane = scene.plane(&[8443]);
    let env = Scene::env_with(&[
        ("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true"),
        ("MINIMUM_DRAIN_DURATION", "100ms"),
        ("TERMINATION_GRACE_PERIOD_SECONDS", "600"),
    ]);
    let mut sidecar = scene.sidecar(env);
    scene.ready();
    let _open = scene.call(&scene.client(), 8443).unwrap();
    let envoy = only_child(sidecar.pid(), None);
    signal("STOP", envoy);
    let started = Instant::now();
    assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
    sidecar.says("drain: ask Envoy for");
    assert!(!exists(envoy));
    assert!(
        started.elapsed() < Duration::from_secs(50),
        "not the whole grace period"
    );
}
