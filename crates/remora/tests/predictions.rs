//! What `remora check` says about a manifest is what happens when `remora run` runs the very same manifest: each of the
//! usual troubles broken and mended.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;
#[allow(dead_code, reason = "others look for processes too")]
#[path = "proof/running.rs"]
mod running;

use common::Scene;
use remora_pod::yaml;
use running::Running;
use serde_json::Value;

/// Somebody outside the mesh, whom everybody calls.
const OUTSIDE: &str = "
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: shop}
spec:
  selector: {app: outside}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: outside, namespace: shop, labels: {app: outside, sidecar.istio.io/inject: 'false'}}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - {name: outside, image: remora, args: [demo, hello, --port, '8080'], lifecycle: {preStop: {sleep: {seconds: 1}}}}
---
";

/// How a pod is injected.
#[derive(Debug, Clone, Copy)]
enum Mesh {
    Native,
    Classic,
    Hold,
    Cni,
    NativeCni,
    /// Classic, and whoever injected after the mesh put the init container `fetch` behind the rules.
    ClassicThenFetch,
}

/// What is found, and what happens.
struct Version {
    mesh: Mesh,
    annotations: &'static str,
    /// A code that is found at a severity that counts, or none of the codes of this trouble.
    found: Option<&'static str>,
    /// In the words of the run, and how it ends.
    seen: &'static str,
    unseen: &'static str,
    well: bool,
}

struct Trouble {
    name: &'static str,
    pod: &'static str,
    more: &'static str,
    check: &'static [&'static str],
    until: [&'static str; 2],
    code: &'static str,
    versions: &'static [Version],
}

const fn broken(mesh: Mesh, code: &'static str, seen: &'static str, well: bool) -> Version {
    Version {
        mesh,
        annotations: "",
        found: Some(code),
        seen,
        unseen: "never said by anybody",
        well,
    }
}

const fn mended(mesh: Mesh, seen: &'static str, unseen: &'static str) -> Version {
    Version {
        mesh,
        annotations: "",
        found: None,
        seen,
        unseen,
        well: true,
    }
}

const STRICT: &str = "
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
";

/// The first init container waits for the one outside as the proxy's user, who is never captured.
const BEGIN: &str = "
  terminationGracePeriodSeconds: 8
  initContainers:
  - name: begin
    image: remora
    args: [demo, call, 'http://outside/', --tries, '200']
    securityContext: {runAsUser: 1337, runAsGroup: 1337}
";

/// One that needs the network before the application.
const FETCH: &str =
    "  - {name: fetch, image: remora, args: [demo, call, 'http://outside/?fetch', --tries, '1']}
  containers:
  - {name: app, image: remora, args: [demo, hello]}";

const TROUBLES: &[Trouble] = &[
    Trouble {
        name: "application before its proxy",
        pod: "  containers:
  - {name: app, image: remora, args: [demo, call, 'http://outside/?app', --tries, '1', --hold, '600']}",
        more: "",
        check: &["--fail-on", "warning"],
        until: ["10s", "90s"],
        code: "RM002",
        versions: &[
            broken(Mesh::Classic, "RM002", "?app: Connection refused", true),
            mended(Mesh::Hold, "?app answered 200 at attempt 1", "?app: Connection refused"),
            mended(Mesh::Native, "?app answered 200 at attempt 1", "?app: Connection refused"),
        ],
    },
    Trouble {
        name: "init container behind the rules",
        pod: FETCH,
        more: "",
        check: &[],
        until: ["ready", "12s"],
        code: "RM001",
        versions: &[
            broken(Mesh::ClassicThenFetch, "RM001", "?fetch: Connection refused", false),
            mended(Mesh::Native, "?fetch answered 200 at attempt 1", "?fetch: Connection"),
        ],
    },
    Trouble {
        name: "init container in a captured sandbox",
        pod: FETCH,
        more: "",
        check: &[],
        until: ["ready", "12s"],
        code: "RM001",
        versions: &[
            broken(Mesh::Cni, "RM001", "?fetch: Connection refused", false),
            mended(Mesh::NativeCni, "?fetch answered 200 at attempt 1", "?fetch: Connection"),
        ],
    },
    Trouble {
        name: "hook that waits for the proxy",
        pod: "  containers:
  - name: app
    image: remora
    args: [demo, hello]
    lifecycle: {postStart: {exec: {command: [remora, demo, call, 'http://outside/', --tries, '40']}}}",
        more: "",
        check: &[],
        until: ["ready", "12s"],
        code: "RM004",
        versions: &[
            broken(Mesh::Classic, "RM004", "PodInitializing", false),
            mended(Mesh::Native, "everything is ready", "FailedPostStartHook"),
        ],
    },
    Trouble {
        name: "probe of a strict pod",
        pod: "  containers:
  - {name: app, image: remora, args: [demo, hello, --port, '8080'], readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}}",
        more: STRICT,
        check: &["--strict-mtls"],
        until: ["ready", "12s"],
        code: "RM011",
        versions: &[
            Version {
                annotations: "sidecar.istio.io/rewriteAppHTTPProbers: 'false'",
                ..broken(Mesh::Native, "RM011", "1/2 Running", false)
            },
            mended(Mesh::Native, "everything is ready", "never said by anybody"),
        ],
    },
    Trouble {
        // The run stops as soon as the application was started: it may not listen yet when its hook calls.
        name: "stop of an application that still calls others",
        pod: "  containers:
  - name: app
    image: remora
    args: [demo, hello]
    lifecycle: {preStop: {exec: {command: [remora, demo, call, 'http://127.0.0.1:9080/', --tries, '50', --hold, '3']}}}",
        more: "",
        check: &[],
        until: ["ready", "90s"],
        code: "RM006",
        versions: &[
            mended(Mesh::Native, "everything is ready", "FailedPreStopHook app"),
            // Our own proxy follows its application in a classic pod too, so that this is worth no more than a note.
            mended(Mesh::Classic, "everything is ready", "FailedPreStopHook app"),
        ],
    },
];

/// The injected manifest.
fn injected(scene: &Scene, pod: &str, mesh: Mesh) -> String {
    let hold = "defaultConfig: {holdApplicationUntilProxyStarts: true}";
    let cni = "pilot: {cni: {enabled: true}}";
    std::fs::write(scene.path("hold.yaml"), hold).unwrap();
    std::fs::write(scene.path("cni.yaml"), cni).unwrap();
    let classic = &["--native", "off", "--order", "istio"][..];
    let args = match mesh {
        Mesh::Native => &["--native", "on"][..],
        Mesh::Classic | Mesh::ClassicThenFetch => classic,
        Mesh::Hold => &[
            "--native",
            "off",
            "--order",
            "istio",
            "--meshConfigFile",
            "hold.yaml",
        ],
        Mesh::Cni => &["--native", "off", "--order", "istio", "--valuesFile", "cni.yaml"],
        Mesh::NativeCni => &["--native", "on", "--valuesFile", "cni.yaml"],
    };
    let outcome = scene.remora_with(&[&["inject", "-f", "-"], args].concat(), pod);
    assert_eq!(outcome.code, Some(0), "{}", outcome.shown());
    match mesh {
        Mesh::ClassicThenFetch => fetch_last(&outcome.stdout),
        _ => outcome.stdout,
    }
}

fn fetch_last(text: &str) -> String {
    let mut pod = yaml::parse_str(text).unwrap().unwrap().value;
    let list = pod
        .pointer_mut("/spec/initContainers")
        .and_then(Value::as_array_mut)
        .unwrap();
    let at = list.iter().position(|c| c["name"] == "fetch").unwrap();
    let fetch = list.remove(at);
    list.push(fetch);
    pod.to_string()
}

/// Codes that `check` finds at a severity that makes it fail.
fn found(scene: &Scene, manifest: &str, args: &[&str]) -> Vec<String> {
    let outcome = scene.remora_with(
        &[&["check", "-f", "-", "--format", "json"], args].concat(),
        manifest,
    );
    let report: Value =
        serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{}", outcome.shown()));
    let warnings = args.contains(&"warning");
    let pods = report["pods"].as_array().unwrap().iter();
    pods.flat_map(|pod| pod["findings"].as_array().unwrap())
        .filter(|finding| finding["severity"] == "error" || (warnings && finding["severity"] == "warning"))
        .map(|finding| finding["code"].as_str().unwrap().to_owned())
        .collect()
}

fn look(trouble: &Trouble, version: &Version) {
    let scene = Scene::new(&[]);
    let Trouble { name, pod, more, .. } = trouble;
    let head = "apiVersion: v1\nkind: Pod\nmetadata: {name: app, namespace: shop, labels: {app: app}";
    let pod = format!(
        "{head}, annotations: {{{}}}}}\nspec:{BEGIN}{pod}\n",
        version.annotations
    );
    let pod = injected(&scene, &pod, version.mesh);
    let shown = format!("{name}, {:?}", version.mesh);
    let codes = found(&scene, &pod, trouble.check);
    match version.found {
        Some(code) => assert!(codes.iter().any(|c| c == code), "{shown}: {codes:?}\n{pod}"),
        None => assert!(
            !codes.iter().any(|c| c == trouble.code),
            "{shown}: {codes:?}\n{pod}"
        ),
    }
    let [until, mut timeout] = trouble.until;
    if version.well {
        timeout = "90s";
    }
    let manifest = format!("{OUTSIDE}{pod}\n{more}");
    let args = [
        "--inject",
        "never",
        "--fast-backoff",
        "10",
        "--until",
        until,
        "--timeout",
        timeout,
    ];
    let mut run = Running::start(&manifest, &args);
    let code = run.wait().code();
    let said = run.said();
    assert!(
        said.contains(version.seen),
        "{shown}: {:?} is missing: {said}",
        version.seen
    );
    assert!(
        !said.contains(version.unseen),
        "{shown}: {:?} is there: {said}",
        version.unseen
    );
    assert_eq!(code == Some(0), version.well, "{shown}: {said}");
}

/// What is found happens, and what is mended does not.
fn play(name: &str) {
    let trouble = TROUBLES.iter().find(|trouble| trouble.name == name).unwrap();
    for version in trouble.versions {
        look(trouble, version);
    }
}

#[test]
fn application_before_its_proxy() {
    play("application before its proxy");
}

#[test]
fn init_container_behind_the_rules() {
    play("init container behind the rules");
}

#[test]
fn init_container_in_a_captured_sandbox() {
    play("init container in a captured sandbox");
}

#[test]
fn hook_that_waits_for_the_proxy() {
    play("hook that waits for the proxy");
}

#[test]
fn probe_of_a_strict_pod() {
    play("probe of a strict pod");
}

#[test]
fn stop_of_an_application_that_still_calls_others() {
    play("stop of an application that still calls others");
}

#[test]
fn a_job_with_a_classic_sidecar_never_ends_and_is_found() {
    const JOB: &str = "
apiVersion: batch/v1
kind: Job
metadata: {name: report, namespace: shop}
spec:
  backoffLimit: 0
  template:
    metadata: {labels: {app: report}}
    spec:
      restartPolicy: Never
      containers:
      - {name: report, image: remora, args: [demo, call, 'http://outside/?report', --tries, '60']}
";
    for (mesh, condemned) in [(Mesh::Classic, true), (Mesh::Native, false)] {
        let scene = Scene::new(&[]);
        let job = injected(&scene, JOB, mesh);
        let codes = found(&scene, &job, &[]);
        assert_eq!(
            codes.iter().any(|c| c == "RM005"),
            condemned,
            "{mesh:?}: {codes:?}"
        );
        let timeout = if condemned { "12s" } else { "90s" };
        let args = ["--inject", "never", "--until", "complete", "--timeout", timeout];
        let mut run = Running::start(&format!("{OUTSIDE}{job}"), &args);
        let code = run.wait().code();
        assert!(
            run.said().contains("?report answered 200"),
            "{mesh:?}: {}",
            run.said()
        );
        assert_eq!(code == Some(0), !condemned, "{mesh:?}: {}", run.said());
    }
}
