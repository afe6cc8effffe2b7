//! `remora run --runtime`: the same pods, their containers run by `runc`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "proof/machine.rs"]
mod machine;
#[allow(dead_code, reason = "others look for processes too")]
#[path = "proof/running.rs"]
mod running;

use machine::{Machine, assert_nothing_left};
use remora_testkit::has_programs;
use running::Running;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// A pod with everything a runtime is asked for: an init container, limits, volumes, hooks and probes.
const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 5
  initContainers:
  - {name: init, image: remora, args: [demo, --help]}
  containers:
  - name: web
    image: remora
    args: [demo, hello, --port, '8080']
    resources: {limits: {memory: 200Mi}}
    readinessProbe: {exec: {command: [remora, demo, call, 'http://127.0.0.1:8080/', --tries, '50']}, timeoutSeconds: 30}
    lifecycle:
      postStart: {exec: {command: [remora, demo, call, 'http://127.0.0.1:8080/', --tries, '50']}}
      preStop: {exec: {command: [remora, demo, --help]}}
    volumeMounts:
    - {name: bin, mountPath: /bin}
    - {name: lib, mountPath: /lib}
    - {name: lib64, mountPath: /lib64}
    - {name: scratch, mountPath: /scratch}
  volumes:
  - {name: bin, hostPath: {path: /bin}}
  - {name: lib, hostPath: {path: /lib}}
  - {name: lib64, hostPath: {path: /lib64}}
  - {name: scratch, emptyDir: {}}
";
const ARGS: [&str; 4] = ["--inject", "always", "--runtime", "runc"];

fn runc() -> bool {
    has_programs(&[("runc", "apt-get install runc")])
}

fn exec(run: &Running, flags: &[&str], command: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_remora"))
        .args(["exec", "--state-dir"])
        .arg(run.state())
        .args(flags)
        .args(["web", "--"])
        .args(command)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_meshed_pod_lives_and_is_talked_to() {
    if !runc() {
        return;
    }
    let mut run = Running::start(POD, &ARGS);
    run.wait_for("2/2 Running");
    let seen = Machine::of(&run);
    assert!(!seen.namespaces.is_empty() && !seen.groups.is_empty(), "{seen:?}");
    assert!(
        seen.groups.iter().any(|g| g.contains("remora-oci-")),
        "runc runs it: {seen:?}"
    );
    let output = exec(
        &run,
        &["-c", "web"],
        &["/bin/sh", "-c", "echo out; echo err >&2; exit 7"],
    );
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(
        (&output.stdout[..], &output.stderr[..]),
        (&b"out\n"[..], &b"err\n"[..])
    );
    on_a_terminal(&run);
    let logs = run.ask(&["logs", "-c", "web", "web"]);
    assert!(logs.contains("listening on port 8080"), "{logs}");
    let deleted = run.ask(&["delete", "web"]);
    assert!(deleted.contains("pod/web deleted"), "{deleted}");
    assert!(run.said().contains("stopped"), "{}", run.said());
    for unwanted in ["FailedPostStartHook", "FailedPreStopHook", "Unhealthy"] {
        assert!(!run.said().contains(unwanted), "{}", run.said());
    }
    run.stop();
    assert_nothing_left(&run, &seen, "after a deletion");
}

/// `script` gives us a terminal, and hands on the exit code.
fn on_a_terminal(run: &Running) {
    let inner = format!(
        "{} exec --state-dir {} -it -c web web -- /bin/sh -c 'tty; stty size; exit 5'",
        env!("CARGO_BIN_EXE_remora"),
        run.state().display()
    );
    let output = Command::new("script")
        .args(["-qec", &format!("stty rows 33 cols 99; {inner}"), "/dev/null"])
        .stdin(Stdio::piped())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert!(text.contains("/dev/pts/0") && text.contains("33 99"), "{text}");
}

#[test]
fn an_interrupt_at_any_moment_leaves_nothing() {
    if !runc() {
        return;
    }
    for millis in [50, 200, 400, 700, 1500, 2500] {
        let mut run = Running::start(POD, &ARGS);
        std::thread::park_timeout(Duration::from_millis(millis));
        let seen = Machine::of(&run);
        // Not patient: three of them end a run at once.
        for _ in 0..3 {
            run.signal(2);
            std::thread::park_timeout(Duration::from_millis(20));
        }
        run.wait();
        assert_nothing_left(&run, &seen, &format!("after {millis} ms"));
    }
}

#[test]
fn a_killed_runner_leaves_nothing_that_is_not_removed() {
    if !runc() {
        return;
    }
    // In the middle of a start, and when all is well.
    for moment in ["Init:0/", "Init:1/", "2/2 Running"] {
        let mut run = Running::start(POD, &ARGS);
        run.wait_for(moment);
        let seen = Machine::of(&run);
        run.signal(9);
        run.wait();
        let output = Command::new(env!("CARGO_BIN_EXE_remora"))
            .args(["run", "--clean", "--state-dir"])
            .arg(run.state())
            .output()
            .unwrap();
        assert!(output.status.success(), "{moment}: {output:?}");
        assert_nothing_left(&run, &seen, moment);
    }
}

#[test]
fn a_runtime_that_is_none_is_said_before_anything_starts() {
    for (name, wanted) in [
        ("no-such-runtime", "there is no such program in PATH"),
        ("/no/such/runtime", "start /no/such/runtime"),
        ("false", "it has to be an OCI runtime"),
    ] {
        let mut run = Running::start(POD, &["--inject", "always", "--runtime", name]);
        assert_eq!(run.wait().code(), Some(1), "{}", run.said());
        run.wait_for(wanted);
        assert_eq!(run.said().matches("error:").count(), 1, "{}", run.said());
        assert!(!run.said().contains("shop/web"), "{}", run.said());
    }
}
