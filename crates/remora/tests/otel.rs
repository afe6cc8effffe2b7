//! OpenTelemetry's real SDK for Python, put into a pod by an init container: spans of every part of the pod's life reach
//! a collector through the mesh, and in a pod that is put together wrongly they do not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with another test, which uses more of it")]
#[path = "proof/running.rs"]
mod running;

use remora_testkit::{given_directory, has_programs};
use running::Running;
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Weak};

const REMEDY: &str = "python3 -m pip download -d DIRECTORY opentelemetry-distro opentelemetry-exporter-otlp-proto-http \
                      opentelemetry-instrumentation-urllib";

/// What the pods need of this machine.
struct Images {
    directory: tempfile::TempDir,
}

impl Images {
    fn archive(&self) -> PathBuf {
        self.directory.path().join("images.tar")
    }

    fn make(wheels: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/otel/images.py");
        let images = Self { directory };
        let made = Command::new("python3")
            .arg(script)
            .arg(wheels)
            .arg(images.archive())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        images
    }
}

/// Shared by tests that run at the same time, and removed with the last of them. Nothing where the SDK or a program is
/// missing, which is said.
fn images() -> Option<Arc<Images>> {
    static MADE: Mutex<Weak<Images>> = Mutex::new(Weak::new());
    let programs = [
        ("python3", "apt-get install python3"),
        ("ldd", "install libc-bin"),
    ];
    if !has_programs(&programs) {
        return None;
    }
    let wheels = given_directory("REMORA_OTEL_WHEELS", REMEDY)?;
    let mut made = MADE.lock().unwrap();
    let images = made.upgrade().unwrap_or_else(|| Arc::new(Images::make(&wheels)));
    *made = Arc::downgrade(&images);
    Some(images)
}

fn manifest() -> String {
    let scripts = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "scripts", "namespace": "shop"},
        "data": {"app.py": include_str!("otel/app.py"), "collector.py": include_str!("otel/collector.py")}});
    format!("{scripts}\n---\n{}", include_str!("otel/scene.yaml"))
}

fn start(images: &Images, args: &[&str]) -> Running {
    let state = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command
        .args(["run", "-f", "-", "--logs", "--inject", "always", "--state-dir"])
        .arg(state.path());
    command
        .arg("--image-store")
        .arg(images.directory.path().join("store"));
    command.arg("--image-archive").arg(images.archive()).args(args);
    Running::spawn(command, state, &manifest())
}

/// What `check` finds in the pod of the application, as (code, container).
fn findings(native: &str) -> Vec<(String, String)> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_remora"))
        .args([
            "check", "-f", "-", "--inject", "--order", "istio", "--native", native,
        ])
        .args(["--format", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(manifest().as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pods = report["pods"].as_array().unwrap().iter();
    let found = pods.flat_map(|pod| pod["findings"].as_array().unwrap());
    let word = |finding: &Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    found.map(|f| (word(f, "code"), word(f, "container"))).collect()
}

/// The collector's lines about a span.
fn spans<'a>(said: &'a str, name: &str) -> Vec<&'a str> {
    let wanted = format!("span '{name}' of ");
    said.lines().filter(|line| line.contains(&wanted)).collect()
}

fn wait_for_span(run: &Running, name: &str) {
    run.wait_until(&format!("a span {name:?}"), |said| !spans(said, name).is_empty());
}

#[test]
fn spans_of_a_whole_life_reach_the_collector_through_the_mesh() {
    let Some(images) = images() else { return };
    assert_eq!(findings("on"), [], "check has nothing to say");
    let mut run = start(&images, &[]);
    for name in ["before", "starting", "running"] {
        wait_for_span(&run, name);
    }
    run.wait_for("everything is ready");
    let deleted = run.ask(&["delete", "-n", "shop", "cart"]);
    wait_for_span(&run, "stopping");
    run.stop();
    let said = run.said();
    assert!(deleted.contains("cart"), "{deleted}");
    for (name, container) in [
        ("before", "migrate"),
        ("starting", "cart"),
        ("running", "cart"),
        ("stopping", "cart"),
    ] {
        let line = spans(&said, name)[0];
        for wanted in [
            "service.name=cart",
            "k8s.namespace.name=shop",
            "k8s.pod.name=cart",
            &format!("k8s.container.name={container}"),
            "telemetry.auto.version=",
        ] {
            assert!(line.contains(wanted), "{wanted} is missing: {line}");
        }
    }
    // Nobody wrote this one: the agent found the library in use.
    let own = spans(&said, "GET");
    assert!(
        own.iter().any(|line| line.contains("instrumentation.urllib")),
        "{said}"
    );
    // The collector's own proxy knows who sent them.
    let from_the_application = "src.identity=\"spiffe://cluster.local/ns/shop/sa/cart\"";
    let taken = |line: &&str| line.starts_with("shop/collector istio-proxy |") && line.contains(":4318 ");
    assert!(said.lines().any(|line| taken(&line)), "{said}");
    for line in said.lines().filter(taken) {
        assert!(line.contains(from_the_application), "{line}");
    }
}

/// The same pod with Istio's order around a classic sidecar: its init container has no certificate to show.
#[test]
fn spans_before_a_classic_sidecar_are_lost_as_foretold() {
    let Some(images) = images() else { return };
    let foretold = findings("off");
    for (code, container) in [("RM007", "migrate"), ("RM002", "cart")] {
        let wanted = (code.to_owned(), container.to_owned());
        assert!(foretold.contains(&wanted), "{foretold:?}");
    }
    let mut run = start(&images, &["--mode", "classic", "--order", "istio"]);
    wait_for_span(&run, "running");
    run.stop();
    let said = run.said();
    assert!(spans(&said, "before").is_empty(), "{said}");
    let complained = |line: &str| line.starts_with("shop/cart migrate") && line.contains("Failed to export");
    assert!(said.lines().any(complained), "{said}");
}
