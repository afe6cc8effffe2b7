//! `remora run --egress`: pods reach the outside through this machine, and only if that is asked for.
//!
//! The outside is an address in a network namespace of the test's own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::process::{Command, Stdio};

/// A Job that calls somebody who is no pod.
const JOB: &str = "
apiVersion: batch/v1
kind: Job
metadata: {name: caller, namespace: shop}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: caller
        image: remora
        args: [demo, call, 'http://192.0.2.1:8099/', --tries, '4']
";

fn run(more: &str) -> (Option<i32>, String) {
    let scene = tempfile::tempdir().unwrap();
    let directory = scene.path().display().to_string();
    std::fs::write(scene.path().join("job.yaml"), JOB).unwrap();
    // Interfaces and rules of the machine (here: of this namespace) are the same afterwards.
    let script = format!(
        "set -e
         ip link set lo up
         ip addr add 192.0.2.1/32 dev lo
         before=$(ip -o addr; ip route show table all; ip -o link)
         \"$REMORA\" demo hello --port 8099 >/dev/null 2>&1 &
         server=$!
         code=0
         \"$REMORA\" run -f {directory}/job.yaml --state-dir {directory}/state --image-store {directory}/images \
             --until complete --timeout 60s --logs {more} 2>&1 || code=$?
         kill $server
         after=$(ip -o addr; ip route show table all; ip -o link)
         [ \"$before\" = \"$after\" ] || echo CHANGED
         exit $code"
    );
    let output = Command::new("unshare")
        .args(["-n", "sh", "-c", &script])
        .env("REMORA", env!("CARGO_BIN_EXE_remora"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.code(), text)
}

#[test]
fn the_outside_is_reached_when_it_is_asked_for() {
    for inject in ["never", "always"] {
        let (code, text) = run(&format!("--egress --inject {inject}"));
        assert_eq!(code, Some(0), "{inject}: {text}");
        assert!(
            text.contains("http://192.0.2.1:8099/ answered 200"),
            "{inject}: {text}"
        );
        assert!(!text.contains("CHANGED"), "{inject}: {text}");
    }
}

#[test]
fn there_is_no_outside_otherwise() {
    let (code, text) = run("--inject never");
    assert_eq!(code, Some(1), "{text}");
    assert!(!text.contains("answered 200"), "{text}");
}
