//! The end: who is waited for, and who is not.

use super::process::Process;
use super::scene::{Pod, Scene, ping};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The sidecar with Istio's own times, and room for a slow machine.
fn patient(scene: &Scene, pod: Pod, more: &[(&str, &str)]) -> Process {
    let mut env: BTreeMap<String, String> = Scene::env(pod);
    let config = "{discoveryAddress: '10.2.0.1:15012', concurrency: 1, drainDuration: 600s}";
    env.insert("PROXY_CONFIG".to_owned(), config.to_owned());
    env.insert("TERMINATION_GRACE_PERIOD_SECONDS".to_owned(), "600".to_owned());
    for (name, value) in more {
        env.insert((*name).to_owned(), (*value).to_owned());
    }
    scene.start(pod, env).remora(&["proxy", "sidecar"])
}

fn stopping(scene: &Scene, pod: Pod) {
    let (_, body) = scene.readiness(pod, |status, _| status == 503);
    assert!(body.contains("stopping"), "{body}");
}

fn post(scene: &Scene, path: &str) -> u16 {
    let request =
        format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let to = SocketAddr::from(([127, 0, 0, 1], 15020));
    scene.send(Pod::Cart, to, &request).unwrap().0
}

#[test]
fn a_sidecar_stays_while_the_application_does_and_goes_right_after() {
    let scene = Scene::new();
    let _control = scene.control();
    let mut application = scene.application(Pod::Cart);
    let mut cart = patient(&scene, Pod::Cart, &[]);
    let _web = scene.sidecar(Pod::Web);
    scene.ready(Pod::Cart);
    scene.ready(Pod::Web);
    let mut open = scene.call().unwrap();
    cart.signal("TERM");
    stopping(&scene, Pod::Cart);
    // The application still takes work: callers that have not heard of the stop are served.
    let mut late = scene.call().unwrap();
    ping(&mut open).unwrap();
    application.stop_listening();
    // And what is open may finish.
    ping(&mut open).unwrap();
    ping(&mut late).unwrap();
    drop((open, late));
    let told = Instant::now();
    assert_eq!(cart.end(), 0, "{}", cart.said());
    assert!(told.elapsed() < Duration::from_secs(30), "it waited for nothing");
}

#[test]
fn a_second_sigterm_hurries() {
    let scene = Scene::new();
    let _control = scene.control();
    let _application = scene.application(Pod::Cart);
    let mut cart = patient(&scene, Pod::Cart, &[]);
    let _web = scene.sidecar(Pod::Web);
    scene.ready(Pod::Cart);
    scene.ready(Pod::Web);
    let mut open = scene.call().unwrap();
    cart.signal("TERM");
    stopping(&scene, Pod::Cart);
    ping(&mut open).unwrap();
    assert_eq!(cart.stop(), 0, "{}", cart.said());
    assert!(ping(&mut open).is_err(), "it was cut");
}

#[test]
fn after_the_drain_hook_nothing_is_waited_for_but_connections() {
    let scene = Scene::new();
    let _control = scene.control();
    let _application = scene.application(Pod::Cart);
    let mut cart = patient(&scene, Pod::Cart, &[]);
    let _web = scene.sidecar(Pod::Web);
    scene.ready(Pod::Cart);
    scene.ready(Pod::Web);
    let mut open = scene.call().unwrap();
    assert_eq!(post(&scene, "/drain"), 200);
    assert_eq!(scene.ask(Pod::Cart, 15021, "/healthz/ready").unwrap().0, 200);
    // The application was not told yet, so work is still taken.
    let mut late = scene.call().unwrap();
    cart.signal("TERM");
    stopping(&scene, Pod::Cart);
    ping(&mut open).unwrap();
    ping(&mut late).unwrap();
    drop((open, late));
    assert_eq!(cart.end(), 0, "{}", cart.said());
}

#[test]
fn quitquitquit_ends_it_at_once() {
    let scene = Scene::new();
    let _control = scene.control();
    let _application = scene.application(Pod::Cart);
    let mut cart = patient(&scene, Pod::Cart, &[]);
    scene.ready(Pod::Cart);
    assert_eq!(post(&scene, "/quitquitquit"), 200);
    assert_eq!(cart.end(), 0, "{}", cart.said());
}

#[test]
fn an_application_that_never_listened_gets_the_fixed_time() {
    let scene = Scene::new();
    let _control = scene.control();
    let chosen = "{discoveryAddress: '10.2.0.1:15012', terminationDrainDuration: 700ms}";
    let mut cart = patient(&scene, Pod::Cart, &[("PROXY_CONFIG", chosen)]);
    scene.ready(Pod::Cart);
    let asked = Instant::now();
    assert_eq!(cart.stop(), 0, "{}", cart.said());
    assert!(
        asked.elapsed() >= Duration::from_millis(700),
        "{:?}",
        asked.elapsed()
    );
}

#[test]
fn exit_on_zero_counts_connections_only() {
    let scene = Scene::new();
    let _control = scene.control();
    let _application = scene.application(Pod::Cart);
    let knobs = [
        ("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true"),
        ("MINIMUM_DRAIN_DURATION", "300ms"),
    ];
    let mut cart = patient(&scene, Pod::Cart, &knobs);
    let _web = scene.sidecar(Pod::Web);
    scene.ready(Pod::Cart);
    scene.ready(Pod::Web);
    let mut open = scene.call().unwrap();
    let asked = Instant::now();
    cart.signal("TERM");
    stopping(&scene, Pod::Cart);
    ping(&mut open).unwrap();
    drop(open);
    assert_eq!(cart.end(), 0, "{}", cart.said());
    assert!(
        asked.elapsed() >= Duration::from_millis(300),
        "{:?}",
        asked.elapsed()
    );
}

#[test]
fn a_sidecar_that_watches_a_process_ends_with_it() {
    let scene = Scene::new();
    let _control = scene.control();
    // A name nobody else has.
    let program = scene.in_pod(Pod::Cart, &format!("job-{}", std::process::id()));
    std::fs::copy("/bin/sleep", &program).unwrap();
    let name = program.file_name().unwrap().to_str().unwrap().to_owned();
    let mut cart = patient(&scene, Pod::Cart, &[("REMORA_EXIT_WITH_PROCESS", &name)]);
    scene.ready(Pod::Cart);
    let mut job = std::process::Command::new(&program).arg("600").spawn().unwrap();
    cart.says("watches the process");
    job.kill().unwrap();
    job.wait().unwrap();
    assert_eq!(cart.end(), 0, "{}", cart.said());
}
