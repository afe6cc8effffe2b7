//! A clock that jumps under a running sidecar.

use super::process::{PATIENCE, Process};
use super::scene::{Pod, Scene};
use remora_testkit::has_programs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Shows another time than it is: so many seconds later as a file says.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, t);
    if (result == 0 && id == CLOCK_REALTIME) {
        char text[32] = {0};
        int file = open(getenv("CLOCK_FILE"), O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            if (read(file, text, sizeof text - 1) > 0) t->tv_sec += atol(text);
            close(file);
        }
    }
    return result;
}
"#;

fn shim(directory: &Path) -> String {
    let (source, library) = (directory.join("clock.c"), directory.join("clock.so"));
    std::fs::write(&source, SHIM).unwrap();
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status()
        .unwrap();
    assert!(made.success());
    library.to_str().unwrap().to_owned()
}

/// How often it got a certificate.
fn certified(process: &Process) -> usize {
    process.said().matches("certified for").count()
}

#[test]
fn a_clock_that_jumps_renews_the_certificate_and_costs_no_connection() {
    if !has_programs(&[("cc", "the compiler that links Rust programs")]) {
        return;
    }
    let scene = Scene::new();
    let _control = scene.control();
    let _application = scene.application(Pod::Cart);
    let _cart = scene.sidecar(Pod::Cart);
    scene.write("shift", "0");
    let shift = scene.directory.path().join("shift");
    let mut env = Scene::env(Pod::Web);
    env.insert("LD_PRELOAD".to_owned(), shim(scene.directory.path()));
    env.insert("CLOCK_FILE".to_owned(), shift.to_str().unwrap().to_owned());
    let mut web = scene.start(Pod::Web, env).remora(&["proxy", "sidecar"]);
    scene.ready(Pod::Web);
    scene.ready(Pod::Cart);
    let mut open = scene.call().unwrap();
    assert_eq!(certified(&web), 1);
    // Past half of a certificate's life, which is noticed within a quarter of a minute.
    scene.write("shift", "46800");
    let started = Instant::now();
    while certified(&web) < 2 {
        assert!(started.elapsed() < PATIENCE, "{}", web.said());
        super::scene::ping(&mut open).unwrap();
        std::thread::park_timeout(Duration::from_millis(50));
    }
    // A new one is past its half at once, by that clock: no reason to hurry.
    super::scene::ping(&mut open).unwrap();
    scene.call().unwrap();
    assert!(certified(&web) < 12, "{}", web.said());
    // Back again, and further than a certificate is back-dated: everything goes on.
    scene.write("shift", "-3600");
    super::scene::ping(&mut open).unwrap();
    assert_eq!(scene.ask(Pod::Web, 15021, "/healthz/ready").unwrap().0, 200);
    scene.write("shift", "0");
    scene.call().unwrap();
    super::scene::ping(&mut open).unwrap();
    drop(open);
    assert_eq!(web.stop(), 0, "{}", web.said());
}
