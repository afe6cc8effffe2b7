//! As the first process of a pid namespace, where the kernel drops signals nobody waits for.

use super::process::{PATIENCE, Process, binary};
use super::scene::{Pod, Scene};
use std::process::Command;
use std::time::{Duration, Instant};

/// The process that `unshare` made the first of a namespace, by its number outside.
pub(super) fn first(unshare: &Process) -> u32 {
    let started = Instant::now();
    loop {
        let path = format!("/proc/{0}/task/{0}/children", unshare.pid());
        let list = std::fs::read_to_string(path).unwrap_or_default();
        if let Some(pid) = list.split_whitespace().next() {
            return pid.parse().unwrap();
        }
        assert!(started.elapsed() < PATIENCE, "{}", unshare.said());
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// SIGTERM in the kernel's masks.
const TERM: u64 = 1 << 14;

fn terminate(pid: u32) {
    let sent = Command::new("kill").args(["-TERM", &pid.to_string()]).status();
    assert!(sent.unwrap().success());
}

/// Whether the sidecar runs and holds SIGTERM back or takes it. What made the namespace holds it back, too.
fn minds(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        u64::from_str_radix(line.unwrap_or("0").trim(), 16).unwrap_or(0)
    };
    status.starts_with("Name:\tremora\n") && (mask("SigBlk:") | mask("SigCgt:")) & TERM != 0
}

fn until_minded(unshare: &Process, pid: u32) {
    let started = Instant::now();
    while !minds(pid) {
        assert!(started.elapsed() < PATIENCE, "{}", unshare.said());
        std::hint::spin_loop();
    }
}

/// `remora proxy sidecar` with these flags as process 1.
fn unshared(scene: &Scene, flags: &[&str]) -> Process {
    let mut start = scene.start(Pod::Web, Scene::env(Pod::Web));
    start.uid = 0;
    start.env.insert("PATH".to_owned(), "/usr/bin:/bin".to_owned());
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.arg(binary()).args(["proxy", "sidecar"]).args(flags);
    start.run(command)
}

#[test]
fn a_sigterm_before_the_settings_are_read_is_not_lost() {
    let scene = Scene::new();
    // Reading the settings takes until somebody writes them.
    let slow = scene.in_pod(Pod::Web, "slow");
    let made = Command::new("mkfifo").arg(&slow).status().unwrap();
    assert!(made.success());
    let mut unshare = unshared(&scene, &["--meshConfig", "./slow"]);
    let sidecar = first(&unshare);
    // Opens when the sidecar reads.
    let writer = std::fs::File::options().write(true).open(&slow).unwrap();
    assert!(minds(sidecar));
    terminate(sidecar);
    drop(writer);
    assert_eq!(unshare.end(), 0, "{}", unshare.said());
    assert!(!unshare.said().contains("ready after"), "{}", unshare.said());
}

#[test]
fn a_sigterm_at_any_moment_from_the_first_one_ends_process_1() {
    let scene = Scene::new();
    let _control = scene.control();
    for step in 0..20 {
        let mut unshare = unshared(&scene, &[]);
        let sidecar = first(&unshare);
        until_minded(&unshare, sidecar);
        let moment = Instant::now() + Duration::from_micros(step * 1500);
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        terminate(sidecar);
        assert_eq!(unshare.end(), 0, "step {step}: {}", unshare.said());
    }
}

/// The demo application as a pod's first process: whoever ends it at once does not wait for its grace period.
#[test]
fn a_demo_application_that_is_stopped_at_once_ends_at_once() {
    let scene = Scene::new();
    for step in 0..20 {
        let mut start = scene.start(Pod::Web, Scene::env(Pod::Web));
        start.uid = 0;
        start.env.insert("PATH".to_owned(), "/usr/bin:/bin".to_owned());
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        command.arg(binary()).args(["demo", "hello", "--slow", "600"]);
        let mut unshare = start.run(command);
        let demo = first(&unshare);
        until_minded(&unshare, demo);
        let moment = Instant::now() + Duration::from_micros(step * 300);
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        terminate(demo);
        assert_eq!(unshare.end(), 0, "step {step}: {}", unshare.said());
    }
}
