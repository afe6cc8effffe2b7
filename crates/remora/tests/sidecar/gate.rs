//! `wait` and `request`, from inside a pod.

use super::process::{Process, Start};
use super::scene::{Pod, Scene};
use std::time::{Duration, Instant};

fn inside(scene: &Scene) -> Start<'_> {
    scene.start(Pod::Web, Scene::env(Pod::Web))
}

#[test]
fn a_wait_that_began_before_the_sidecar_returns_when_it_is_ready() {
    let scene = Scene::new();
    // With these times only an event ends it soon.
    let flags = "wait --periodMillis 40000 --requestTimeoutMillis 40000 --timeoutSeconds 50";
    let words: Vec<&str> = flags.split(' ').collect();
    let mut before = inside(&scene).remora(&words);
    let _sidecar: Process = scene.sidecar(Pod::Web);
    scene.readiness(Pod::Web, |status, _| status == 503);
    let mut between = inside(&scene).remora(&words);
    let _control = scene.control();
    scene.ready(Pod::Web);
    let ready = Instant::now();
    assert_eq!((before.end(), between.end()), (0, 0));
    assert!(ready.elapsed() < Duration::from_secs(20), "{:?}", ready.elapsed());
    let mut after = inside(&scene).remora(&["wait"]);
    assert_eq!(after.end(), 0);
}

#[test]
fn a_wait_in_vain_says_what_is_missing_and_ends_with_255() {
    let scene = Scene::new();
    let _sidecar = scene.sidecar(Pod::Web);
    scene.readiness(Pod::Web, |status, body| status == 503 && body.contains("trouble"));
    let mut wait = inside(&scene).remora(&["wait", "--timeoutSeconds=1"]);
    assert_eq!(wait.end(), 255);
    wait.says("the sidecar is not ready after 1 s: waiting for certificate");
    wait.says("root-cert.pem");
    let mut wrong = inside(&scene).remora(&["wait", "--url", "nonsense"]);
    assert_eq!(wrong.end(), 255);
}

#[test]
fn requests_go_to_the_ports_of_the_sidecar_only() {
    let scene = Scene::new();
    let _sidecar = scene.sidecar(Pod::Web);
    scene.readiness(Pod::Web, |status, _| status == 503);
    let request = |words: &[&str]| inside(&scene).remora(words);
    let mut not_ready = request(&["request", "--debug-port=15021", "GET", "healthz/ready"]);
    assert_eq!(not_ready.end(), 255);
    not_ready.says("GET /healthz/ready is answered with status 503");
    let mut missing = request(&["request", "--debug-port", "15021", "GET", "/nothing"]);
    assert_eq!(missing.end(), 0, "404 is an answer");
    let mut elsewhere = request(&["request", "--debug-port", "8080", "GET", "/"]);
    assert_eq!(elsewhere.end(), 255);
    elsewhere.says("port 8080 is not one of");
}
