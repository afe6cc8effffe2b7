//! `remora run` on real namespaces: pods that call each other, and what is left afterwards.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with another test, which uses more of it")]
#[path = "proof/running.rs"]
mod running;

use running::Running;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A program that answers, a Service in front of it, and a Job that calls it.
const SHOP: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: http}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: remora
        args: [demo, hello, --port, '8080']
        ports:
        - {name: http, containerPort: 8080}
---
apiVersion: batch/v1
kind: Job
metadata: {name: caller, namespace: shop}
spec:
  backoffLimit: 0
  template:
    metadata: {labels: {app: caller}}
    spec:
      restartPolicy: Never
      containers:
      - name: caller
        image: remora
        args: [demo, call, 'http://web.shop.svc.cluster.local/', --tries, '60']
";

struct Run {
    state: tempfile::TempDir,
    images: tempfile::TempDir,
}

impl Run {
    fn new() -> Self {
        Self {
            state: tempfile::tempdir().unwrap(),
            images: tempfile::tempdir().unwrap(),
        }
    }

    fn go(&self, manifest: &str, args: &[&str]) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_remora"))
            .args(["run", "-f", "-", "--state-dir"])
            .arg(self.state.path())
            .arg("--image-store")
            .arg(self.images.path())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(manifest.as_bytes())
            .unwrap();
        child.wait_with_output().unwrap()
    }

    fn assert_nothing_left(&self) {
        let left: Vec<_> = std::fs::read_dir(self.state.path()).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn text(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn a_job_reaches_a_service_with_and_without_the_mesh() {
    for inject in ["never", "always"] {
        let run = Run::new();
        let began = Instant::now();
        let output = run.go(
            SHOP,
            &[
                "--inject",
                inject,
                "--until",
                "complete",
                "--timeout",
                "90s",
                "--logs",
            ],
        );
        let text = text(&output);
        assert_eq!(output.status.code(), Some(0), "{inject}: {text}");
        assert!(
            text.contains("http://web.shop.svc.cluster.local/ answered 200"),
            "{text}"
        );
        assert!(began.elapsed() < Duration::from_secs(90));
        run.assert_nothing_left();
    }
}

/// The oldest complaint about sidecars: the proxy outlives the Job's own container.
#[test]
fn a_job_with_a_classic_sidecar_never_ends() {
    let run = Run::new();
    let output = run.go(
        SHOP,
        &[
            "--mode",
            "classic",
            "--until",
            "complete",
            "--timeout",
            "12s",
            "--logs",
        ],
    );
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("answered 200"), "the Job itself succeeds: {text}");
    assert!(text.contains("NotReady"), "{text}");
    run.assert_nothing_left();
}

#[test]
fn what_cannot_be_run_is_said() {
    let run = Run::new();
    let output = run.go("{kind: ConfigMap, metadata: {name: a}}", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("no pod"), "{}", text(&output));
    let secret = "{kind: Secret, metadata: {name: s, namespace: shop}, data: {key: '***'}}";
    let output = run.go(&format!("{secret}\n---\n{SHOP}"), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("Secret shop/s: data.key is not base64"),
        "{}",
        text(&output)
    );
    let archive = run.images.path().join("text");
    std::fs::write(&archive, "not an archive").unwrap();
    let output = run.go(SHOP, &["--image-archive", &archive.display().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("take images from"), "{}", text(&output));
    let output = run.go(SHOP, &["-p", "18080:nobody:80"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("called \"nobody\""), "{}", text(&output));
}

/// Somebody outside the mesh to call, by Service and, while stopping, by name alone.
const OUTSIDE: &str = "
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: shop}
spec:
  selector: {app: outside}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: still, namespace: shop}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {app: outside}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: outside, namespace: shop}
spec:
  selector: {matchLabels: {app: outside}}
  template:
    metadata: {labels: {app: outside, sidecar.istio.io/inject: 'false'}}
    spec:
      containers:
      - name: outside
        image: remora
        args: [demo, hello, --port, '8080']
        lifecycle: {preStop: {sleep: {seconds: 14}}}
---
";

/// A pod that begins when somebody is there to call: the proxy's user is never captured.
fn pod(more: &str) -> String {
    format!(
        "{OUTSIDE}
apiVersion: v1
kind: Pod
metadata: {{name: app, namespace: shop}}
spec:
  terminationGracePeriodSeconds: 20
  initContainers:
  - name: begin
    image: remora
    args: [demo, call, 'http://outside/', --tries, '200']
    securityContext: {{runAsUser: 1337, runAsGroup: 1337}}
{more}"
    )
}

/// One case: how the mesh meets the pod, and what is seen or not seen then.
struct Case<'a> {
    args: &'a [&'a str],
    code: i32,
    seen: &'a [&'a str],
    unseen: &'a [&'a str],
}

fn play(manifest: &str, cases: &[Case<'_>]) {
    for case in cases {
        let run = Run::new();
        let output = run.go(manifest, &[case.args, &["--logs", "--inject", "always"]].concat());
        let text = text(&output);
        let shown = format!("{:?}\n{text}", case.args);
        assert_eq!(output.status.code(), Some(case.code), "{shown}");
        for wanted in case.seen {
            assert!(text.contains(wanted), "{wanted:?} is missing: {shown}");
        }
        for unwanted in case.unseen {
            assert!(!text.contains(unwanted), "{unwanted:?} is there: {shown}");
        }
        run.assert_nothing_left();
    }
}

/// The same for runs that last until everything was seen and is ready, however long that takes here.
fn watch(manifest: &str, cases: &[Case<'_>]) {
    for case in cases {
        let mut run = Running::start(manifest, &[case.args, &["--inject", "always"]].concat());
        for wanted in case.seen.iter().chain(&["everything is ready"]) {
            run.wait_for(wanted);
        }
        let status = run.stop();
        let shown = format!("{:?}\n{}", case.args, run.said());
        assert_eq!(status.code(), Some(case.code), "{shown}");
        for unwanted in case.unseen {
            assert!(!run.said().contains(unwanted), "{unwanted:?} is there: {shown}");
        }
    }
}

#[test]
fn an_application_before_its_proxy_fails_and_one_behind_it_does_not() {
    let manifest = pod("  containers:
  - name: app
    image: remora
    args: [demo, call, 'http://outside/?app', --tries, '1', --hold, '600']
");
    let refused = "http://outside/?app: Connection refused";
    watch(
        &manifest,
        &[
            Case {
                args: &["--mode", "classic", "--order", "istio"],
                code: 0,
                seen: &[refused, "1 restarts"],
                unseen: &[],
            },
            Case {
                args: &["--mode", "hold", "--order", "istio"],
                code: 0,
                seen: &["http://outside/?app answered 200 at attempt 1"],
                unseen: &[refused, "restarts"],
            },
            Case {
                args: &["--mode", "native"],
                code: 0,
                seen: &["http://outside/?app answered 200 at attempt 1"],
                unseen: &[refused, "restarts"],
            },
        ],
    );
}

#[test]
fn an_init_container_has_no_network_when_the_sandbox_is_captured_before_the_proxy() {
    let manifest = pod("  - name: migrate
    image: remora
    args: [demo, call, 'http://outside/?migrate', --tries, '1']
  containers:
  - name: app
    image: remora
    args: [demo, hello]
");
    let refused = "http://outside/?migrate: Connection refused";
    play(
        &manifest,
        &[
            Case {
                args: &[
                    "--mode",
                    "cni",
                    "--order",
                    "istio",
                    "--until",
                    "ready",
                    "--timeout",
                    "10s",
                ],
                code: 1,
                seen: &[refused, "Init:"],
                unseen: &["?migrate answered 200"],
            },
            Case {
                args: &["--mode", "native-cni", "--until", "ready", "--timeout", "90s"],
                code: 0,
                seen: &["?migrate answered 200 at attempt 1"],
                unseen: &[refused],
            },
        ],
    );
}

#[test]
fn a_hook_that_needs_network_fails_when_the_proxy_comes_later() {
    let manifest = pod("  containers:
  - name: app
    image: remora
    args: [demo, hello]
    lifecycle:
      postStart: {exec: {command: [remora, demo, call, 'http://outside/', --tries, '2']}}
");
    play(
        &manifest,
        &[
            Case {
                args: &["--mode", "classic", "--order", "istio", "--until", "12s"],
                code: 0,
                seen: &["FailedPostStartHook app"],
                unseen: &[],
            },
            Case {
                args: &["--mode", "native", "--until", "ready", "--timeout", "90s"],
                code: 0,
                seen: &[],
                unseen: &["FailedPostStartHook app"],
            },
        ],
    );
}

/// Everything is deleted at once, and the application still calls out for eight seconds.
#[test]
fn a_draining_application_keeps_its_network() {
    let manifest = pod("  containers:
  - name: app
    image: remora
    args: [demo, hello]
    lifecycle:
      preStop: {exec: {command: [remora, demo, call, 'http://still:8080/', --tries, '1', --hold, '8']}}
");
    play(
        &manifest,
        &[Case {
            args: &["--mode", "native", "--until", "ready", "--timeout", "90s"],
            code: 0,
            seen: &[],
            unseen: &["FailedPreStopHook app"],
        }],
    );
}
