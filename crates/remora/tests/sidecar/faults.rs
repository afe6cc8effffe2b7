//! What goes wrong around a sidecar, and what must not happen then.

use super::process::{PATIENCE, binary};
use super::scene::{Pod, Scene};
use remora_testkit::Actor;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_sigterm_at_any_moment_of_the_start_ends_it() {
    let scene = Scene::new();
    let control = scene.control();
    for step in 0..40 {
        let mut web = scene.sidecar(Pod::Web);
        // From before the program runs to after it is ready.
        let moment = Instant::now() + Duration::from_micros(step * 1500);
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        let code = web.stop();
        // Before it could say how it takes signals the kernel ends it: 128 + 15.
        assert!(code == 0 || code == 143, "step {step}: {code}\n{}", web.said());
    }
    // Without the control plane, while it asks for the certificate.
    drop(control);
    let mut web = scene.sidecar(Pod::Web);
    scene.readiness(Pod::Web, |_, body| body.contains("trouble"));
    assert_eq!(web.stop(), 0);
    // With one that never answers.
    let _silent = scene.elsewhere(|| {
        let at = SocketAddr::from(([10, 2, 0, 1], 15012));
        remora_net::socket::TcpOptions::default().listen(at).unwrap()
    });
    let mut web = scene.sidecar(Pod::Web);
    scene.readiness(Pod::Web, |status, _| status == 503);
    assert_eq!(web.stop(), 0);
}

#[test]
fn one_that_was_killed_starts_again_at_once() {
    let scene = Scene::new();
    let _control = scene.control();
    let _application = scene.application(Pod::Cart);
    let mut cart = scene.sidecar(Pod::Cart);
    let _web = scene.sidecar(Pod::Web);
    scene.ready(Pod::Cart);
    scene.ready(Pod::Web);
    for _ in 0..3 {
        let open = scene.call().unwrap();
        cart.signal("KILL");
        assert_eq!(cart.end(), 137);
        drop(open);
        cart = scene.sidecar(Pod::Cart);
        scene.ready(Pod::Cart);
        // The tunnel of before is gone; a new one is made.
        let started = Instant::now();
        while scene.call().is_err() {
            assert!(started.elapsed() < PATIENCE, "{}", cart.said());
        }
    }
}

#[test]
fn without_descriptors_it_neither_ends_nor_forgets() {
    let scene = Scene::new();
    let _control = scene.control();
    let mut command = Command::new("prlimit");
    command
        .arg("--nofile=48:48")
        .arg(binary())
        .args(["proxy", "sidecar"]);
    let mut start = scene.start(Pod::Web, Scene::env(Pod::Web));
    start.env.insert("PATH".to_owned(), "/usr/bin:/bin".to_owned());
    let mut web = start.run(command);
    scene.ready(Pod::Web);
    let many: Vec<TcpStream> = Actor::new(scene.namespace(Pod::Web), 1000, 1000).run(|| {
        let to = SocketAddr::from(([127, 0, 0, 1], 15021));
        (0..80).map(|_| TcpStream::connect(to).unwrap()).collect()
    });
    let used = || {
        std::fs::read_dir(format!("/proc/{}/fd", web.pid()))
            .unwrap()
            .count()
    };
    let started = Instant::now();
    while used() < 48 {
        assert!(started.elapsed() < PATIENCE, "{} descriptors", used());
        std::thread::park_timeout(Duration::from_millis(2));
    }
    drop(many);
    scene.ready(Pod::Web);
    assert_eq!(web.stop(), 0, "{}", web.said());
}

#[test]
fn it_needs_no_capabilities_and_no_place_to_write() {
    let scene = Scene::new();
    let _control = scene.control();
    let _application = scene.application(Pod::Cart);
    let _cart = scene.sidecar(Pod::Cart);
    let mut start = scene.start(Pod::Web, Scene::env(Pod::Web));
    start.uid = 0;
    start
        .env
        .insert("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
    // Every mount becomes read-only in a namespace of its own; then rights and user are dropped.
    let script = format!(
        "while read -r _ at _; do case $at in /proc*|/dev*|/sys*) ;; *) mount -o remount,bind,ro \"$at\" || true ;; esac; \
         done < /proc/mounts; touch ./x 2>/dev/null && exit 99; \
         exec setpriv --reuid 1337 --regid 1337 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs \
         {} proxy sidecar",
        binary().display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let mut web = start.run(command);
    scene.ready(Pod::Web);
    scene.ready(Pod::Cart);
    scene.call().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", web.pid())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(
        (field("Uid:").as_str(), field("CapEff:").as_str()),
        ("1337", "0000000000000000")
    );
    assert_eq!(field("CapBnd:"), "0000000000000000");
    assert_eq!(web.stop(), 0, "{}", web.said());
}
