//! Whatever goes wrong, nothing is left behind.

use crate::machine::{Machine, assert_nothing_left};
use crate::running::Running;
use std::process::Command;
use std::time::Duration;

/// A meshed pod with everything a pod can have, and a Job.
const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 2
  initContainers:
  - {name: init, image: remora, args: [demo, call, 'http://127.0.0.1:1/', --tries, '1']}
  containers:
  - name: web
    image: remora
    args: [demo, hello, --port, '8080', --slow, '0.5']
    resources: {limits: {memory: 200Mi}}
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes: [{name: scratch, emptyDir: {medium: Memory}}]
";

/// The manifest with an init container that ends well at once.
fn pods() -> String {
    PODS.replace(
        "[demo, call, 'http://127.0.0.1:1/', --tries, '1']",
        "[demo, --help]",
    )
}

/// Ends in every way at many moments, and looks at what is left.
#[test]
fn nothing_is_left_after_an_interrupt_at_any_moment() {
    for millis in [0, 30, 80, 150, 250, 400, 700, 1200, 2000] {
        let mut run = Running::start(&pods(), &["--inject", "always"]);
        std::thread::park_timeout(Duration::from_millis(millis));
        let seen = Machine::of(&run);
        run.signal(2);
        run.wait();
        assert_nothing_left(&run, &seen, &format!("after {millis} ms"));
    }
}

/// The runner itself is killed: its processes die with it, and the next start or `--clean` removes the rest.
#[test]
fn a_killed_runner_takes_its_processes_along_and_is_cleaned_up_after() {
    let mut run = Running::start(&pods(), &["--inject", "always"]);
    run.wait_for("2/2 Running");
    let seen = Machine::of(&run);
    assert!(!seen.namespaces.is_empty());
    run.signal(9);
    run.wait();
    seen.assert_deserted();
    let cleaned = Command::new(env!("CARGO_BIN_EXE_remora"))
        .args(["run", "--clean", "--state-dir"])
        .arg(run.state())
        .output()
        .unwrap();
    assert!(
        cleaned.status.success(),
        "{}",
        String::from_utf8_lossy(&cleaned.stderr)
    );
    let left = Machine::of(&run);
    assert!(left.mounts.is_empty(), "{left:?}");
    let files: Vec<_> = std::fs::read_dir(run.state()).unwrap().flatten().collect();
    assert!(files.is_empty(), "{files:?}");
}

/// Any process of a pod may be killed: it is started again, and the end is clean.
#[test]
fn killed_containers_are_started_again() {
    let mut run = Running::start(&pods(), &["--inject", "always", "--fast-backoff", "10"]);
    run.wait_for("2/2 Running");
    for (word, restarts) in [("demo hello", "1 restarts"), ("proxy sidecar", "2 restarts")] {
        let pid = *run.processes(word).first().unwrap();
        remora_net::process::signal(pid, 9).unwrap();
        run.wait_for(restarts);
    }
    run.wait_for("2/2 Running, 2 restarts");
    let seen = Machine::of(&run);
    run.stop();
    seen.assert_deserted();
    assert!(Machine::of(&run).is_clean());
}

#[test]
fn images_that_are_missing_and_ports_that_are_taken_are_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let publish = format!("127.0.0.1:{port}:web:8080");
    let mut run = Running::start(&pods(), &["--inject", "never", "-p", &publish]);
    assert_eq!(run.wait().code(), Some(1));
    assert!(
        run.said().contains("another program listens there"),
        "{}",
        run.said()
    );
    assert!(Machine::of(&run).is_clean());
    let missing = PODS
        .replace("image: remora\n", "image: localhost:1/nothing:1\n")
        .replace("init, image: remora", "init, image: localhost:1/nothing:1");
    let args = ["--inject", "never", "--until", "ready", "--timeout", "6s"];
    let mut run = Running::start(&missing, &args);
    assert_eq!(run.wait().code(), Some(1), "{}", run.said());
    assert!(
        run.said().contains("ErrImagePull") || run.said().contains("ImagePullBackOff"),
        "{}",
        run.said()
    );
    assert!(Machine::of(&run).is_clean());
}

/// A disk of a few kilobytes.
#[test]
fn a_full_disk_is_said_and_nothing_is_left() {
    let disk = tempfile::tempdir().unwrap();
    let mount = |args: &[&str]| {
        let status = Command::new(args[0])
            .args(&args[1..])
            .arg(disk.path())
            .status()
            .unwrap();
        assert!(status.success(), "{args:?}");
    };
    mount(&["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs"]);
    let state = tempfile::tempdir_in(disk.path()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args([
        "run",
        "-f",
        "-",
        "--until",
        "ready",
        "--timeout",
        "8s",
        "--inject",
        "always",
        "--state-dir",
    ]);
    command.arg(state.path()).arg("--image-store").arg(state.path());
    let mut run = Running::spawn(command, state, &pods());
    let code = run.wait().code();
    let said = run.said();
    let left = Machine::of(&run);
    drop(run);
    mount(&["umount", "-l"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert!(left.groups.is_empty(), "{left:?}");
}
