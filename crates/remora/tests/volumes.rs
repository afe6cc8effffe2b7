//! Volumes of `remora run` that a directory alone would not be: memory, and tokens that are renewed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "proof/machine.rs"]
mod machine;
#[allow(dead_code, reason = "others look for processes too")]
#[path = "proof/running.rs"]
mod running;

use machine::{Machine, assert_nothing_left};
use running::{PATIENCE, Running};
use std::time::Instant;

/// Two containers that share memory, parts of it, and a token of few seconds.
const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  terminationGracePeriodSeconds: 2
  securityContext: {fsGroup: 4711}
  containers:
  - name: web
    image: remora
    args: [demo, hello, --port, '8080']
    volumeMounts: &mounts
    - {name: bin, mountPath: /bin}
    - {name: lib, mountPath: /lib}
    - {name: lib64, mountPath: /lib64}
    - {name: fast, mountPath: /fast}
    - {name: fast, mountPath: /part, subPath: a/part}
    - {name: token, mountPath: /token}
  - name: other
    image: remora
    args: [demo, hello, --port, '8081']
    volumeMounts: *mounts
  volumes:
  - {name: bin, hostPath: {path: /bin}}
  - {name: lib, hostPath: {path: /lib}}
  - {name: lib64, hostPath: {path: /lib64}}
  - {name: fast, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - name: token
    projected: {sources: [{serviceAccountToken: {path: token, expirationSeconds: 3, audience: bank}}]}
";

fn shell(run: &Running, container: &str, script: &str) -> String {
    run.ask(&["exec", "-c", container, "web", "--", "/bin/sh", "-c", script])
}

#[test]
fn memory_is_memory_and_tokens_are_renewed() {
    let mut run = Running::start(POD, &["--inject", "never"]);
    run.wait_for("2/2 Running");
    let mounted = shell(&run, "web", "/bin/grep ' /fast ' /proc/mounts");
    assert!(mounted.starts_with("tmpfs /fast tmpfs rw"), "{mounted}");
    assert!(mounted.contains("size=1024k"), "{mounted}");
    // Both see it, and the part of it; it belongs to the pod's group; it has an end.
    let full = shell(
        &run,
        "web",
        "echo hello > /part/word; /bin/head -c 3000000 /dev/zero > /fast/much",
    );
    assert!(full.contains("No space left on device"), "{full}");
    let seen = shell(
        &run,
        "other",
        "/bin/cat /fast/a/part/word; /bin/stat -c '%g %a' /fast",
    );
    assert_eq!(seen, "hello\n4711 2777\n");
    let token = shell(&run, "web", "/bin/cat /token/token");
    assert_eq!(token.split('.').count(), 3, "{token}");
    let end = Instant::now() + PATIENCE;
    loop {
        let now = shell(&run, "web", "/bin/cat /token/token");
        // Whenever it is read it is whole.
        assert_eq!(now.split('.').count(), 3, "{now}");
        if now != token {
            break;
        }
        assert!(Instant::now() < end, "the token stays");
    }
    let seen = Machine::of(&run);
    run.stop();
    assert_nothing_left(&run, &seen, "after a run with memory");
}

#[test]
fn memory_of_a_run_that_was_ended_at_once_is_gone() {
    let mut run = Running::start(POD, &["--inject", "never"]);
    run.wait_for("2/2 Running");
    let seen = Machine::of(&run);
    for _ in 0..3 {
        run.signal(2);
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    run.wait();
    assert_nothing_left(&run, &seen, "after three interrupts");
}
