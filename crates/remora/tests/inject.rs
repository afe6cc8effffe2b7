//! `remora inject` through the real binary: every flag, success and failure.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::{Scene, binary, run};
use std::io::Read as _;
use std::process::Stdio;

const APP: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: shop
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
    spec:
      initContainers:
      - {name: migrate, image: 'registry.example/web:1'}
      containers:
      - name: web
        image: registry.example/web:1
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /ready, port: http}}
";

const SERVICE: &str = "# a comment that stays\napiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n";

fn app() -> Scene {
    Scene::new(&[("app.yaml", APP)])
}

/// Names of the containers of a printed manifest, in order.
fn order(stdout: &str) -> String {
    let mut lists = Vec::new();
    for raw in remora_pod::yaml::split(stdout) {
        let Some(document) = remora_pod::yaml::parse(&raw, remora_pod::yaml::Limits::default()).unwrap()
        else {
            continue;
        };
        for workload in remora_pod::workload::workloads(&document.value) {
            let pod = workload.template.get(&document.value).unwrap();
            for list in [
                remora_pod::view::init_containers(pod),
                remora_pod::view::containers(pod),
            ] {
                lists.push(
                    list.iter()
                        .map(remora_pod::view::name)
                        .collect::<Vec<_>>()
                        .join(" "),
                );
            }
        }
    }
    lists.join(" | ")
}

#[test]
fn injects_a_deployment() {
    insta::assert_snapshot!(app().remora(&["inject", "-f", "app.yaml"]).shown());
}

#[test]
fn other_kinds_pass_through_as_they_are_written() {
    let scene = Scene::new(&[("all.yaml", &format!("{SERVICE}---\n{APP}"))]);
    let outcome = scene.remora(&["inject", "-f", "all.yaml"]);
    assert!(
        outcome
            .stdout
            .starts_with(&format!("{SERVICE}---\napiVersion: apps/v1\n")),
        "{}",
        outcome.stdout
    );
    assert!(outcome.stdout.ends_with("---\n"));
}

#[test]
fn injecting_the_output_changes_nothing() {
    let scene = app();
    for mode in [["--native", "on"], ["--native", "off"]] {
        let once = scene.remora(&["inject", "-f", "app.yaml", mode[0], mode[1]]);
        let twice = scene.remora_with(&["inject", "-f", "-", mode[0], mode[1]], &once.stdout);
        assert_eq!((twice.code, &twice.stdout), (Some(0), &once.stdout));
    }
}

#[test]
fn modes_and_orders() {
    let scene = Scene::new(&[("app.yaml", APP), ("cni.yaml", "pilot: {cni: {enabled: true}}\n")]);
    let cases: &[(&[&str], &str)] = &[
        (&[], "istio-init istio-proxy migrate | web"),
        (&["--native", "on"], "istio-init istio-proxy migrate | web"),
        (&["--native", "off"], "migrate istio-init | istio-proxy web"),
        (
            &["--native", "off", "--order", "istio"],
            "migrate istio-init | web istio-proxy",
        ),
        (&["--kubelet-min", "1.33"], "istio-init istio-proxy migrate | web"),
        (
            &["--kubelet-min", "v1.32.4"],
            "migrate istio-init | istio-proxy web",
        ),
        (
            &["--valuesFile", "cni.yaml"],
            "istio-validation istio-proxy migrate | web",
        ),
        (&["--injectors", "otel"], "migrate | web"),
        (&["--injectors", "mesh"], "istio-init istio-proxy migrate | web"),
    ];
    for (flags, wanted) in cases {
        let mut arguments = vec!["inject", "-f", "app.yaml"];
        arguments.extend_from_slice(flags);
        let outcome = scene.remora(&arguments);
        assert_eq!(outcome.code, Some(0), "{flags:?}: {}", outcome.stderr);
        assert_eq!(order(&outcome.stdout), *wanted, "{flags:?}");
    }
}

#[test]
fn files_directories_and_standard_input_together() {
    let scene = Scene::new(&[
        ("dir/b.yml", APP),
        ("dir/a.yaml", SERVICE),
        ("dir/notes.txt", "not: a manifest"),
        (
            "dir/deep/c.json",
            "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"p\"},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\"}]}}",
        ),
    ]);
    let flat = scene.remora_with(&["inject", "-f", "dir", "-f", "-"], APP);
    assert_eq!(order(&flat.stdout).matches("istio-proxy").count(), 2);
    let deep = scene.remora(&["inject", "-R", "-f", "dir"]);
    assert_eq!(order(&deep.stdout).matches("istio-proxy").count(), 2);
    assert!(deep.stdout.contains("name: p\n"));
}

#[test]
fn output_file_is_replaced_in_one_step() {
    let scene = app();
    let outcome = scene.remora(&["inject", "-f", "app.yaml", "-o", "app.yaml"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""));
    assert!(scene.read("app.yaml").contains("istio-proxy"));
    let failing = Scene::new(&[("bad.yaml", "kind: [\n"), ("out.yaml", "precious")]);
    assert_eq!(
        failing
            .remora(&["inject", "-f", "bad.yaml", "-o", "out.yaml"])
            .code,
        Some(1)
    );
    assert_eq!(failing.read("out.yaml"), "precious");
    insta::assert_snapshot!(
        "output_in_no_directory",
        app()
            .remora(&["inject", "-f", "app.yaml", "-o", "no/such/out.yaml"])
            .shown()
    );
}

#[test]
fn mesh_values_and_operator_files() {
    let scene = Scene::new(&[
        ("app.yaml", APP),
        (
            "mesh.yaml",
            "trustDomain: example.org\ndefaultConfig: {concurrency: 2, noSuchField: 1}\n",
        ),
        (
            "values.yaml",
            "global: {hub: registry.example/mesh, tag: v9, logAsJson: true}\n",
        ),
        (
            "operator.yaml",
            "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: {values: {global: {tag: v10}}}\n",
        ),
    ]);
    let outcome = scene.remora(&[
        "inject",
        "-f",
        "app.yaml",
        "--meshConfigFile",
        "mesh.yaml",
        "--valuesFile",
        "values.yaml",
        "--operatorFileName",
        "operator.yaml",
        "--revision",
        "canary",
    ]);
    for text in [
        "image: registry.example/mesh/proxyv2:v10",
        "--log_as_json",
        "value: example.org",
        "{\"concurrency\":2}",
        "istio.io/rev: canary",
    ] {
        assert!(outcome.stdout.contains(text), "{text} in\n{}", outcome.stdout);
    }
    insta::assert_snapshot!("unknown_mesh_field", outcome.stderr);
}

#[test]
fn templates_from_a_file() {
    let bare = "spec:\n  containers:\n  - name: istio-proxy\n    image: x:{{ .Values.global.tag }}\n";
    let document = "templates:\n  sidecar: |\n    spec:\n      containers:\n      - name: istio-proxy\n        image: x:{{ .Values.global.tag }}\n";
    let scene = Scene::new(&[
        ("app.yaml", APP),
        ("bare.yaml", bare),
        ("config.yaml", document),
        ("odd.yaml", "a: 1\n"),
        ("broken.yaml", "templates: {sidecar: '{{ if }}'}\n"),
    ]);
    for file in ["bare.yaml", "config.yaml"] {
        let outcome = scene.remora(&[
            "inject",
            "-f",
            "app.yaml",
            "--native",
            "off",
            "--injectConfigFile",
            file,
        ]);
        assert!(
            outcome.stdout.contains("image: x:1.28.0"),
            "{}{}",
            outcome.stdout,
            outcome.stderr
        );
        assert_eq!(order(&outcome.stdout), "migrate | istio-proxy web");
    }
    insta::assert_snapshot!(
        "template_odd",
        scene
            .remora(&["inject", "-f", "app.yaml", "--injectConfigFile", "odd.yaml"])
            .shown()
    );
    insta::assert_snapshot!(
        "template_broken",
        scene
            .remora(&["inject", "-f", "app.yaml", "--injectConfigFile", "broken.yaml"])
            .shown()
    );
}

#[test]
fn namespace_decides_about_instrumentation() {
    let cr = "apiVersion: opentelemetry.io/v1alpha1\nkind: Instrumentation\nmetadata: {name: i, namespace: other}\nspec: {}\n";
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {instrumentation.opentelemetry.io/inject-sdk: 'true'}}\nspec: {containers: [{name: c, image: i}]}\n";
    let scene = Scene::new(&[("in.yaml", &format!("{cr}---\n{pod}"))]);
    let found = scene.remora(&["inject", "-f", "in.yaml", "-n", "other"]);
    assert!(
        found.stdout.contains("k8s.namespace.name=other"),
        "{}",
        found.stdout
    );
    insta::assert_snapshot!(
        "instrumentation_not_found",
        scene
            .remora(&["inject", "-f", "in.yaml", "--injectors", "otel"])
            .shown()
    );
}

#[test]
fn operator_switches() {
    let cr = "apiVersion: opentelemetry.io/v1alpha1\nkind: Instrumentation\nmetadata: {name: i}\nspec: {go: {image: go}}\n";
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {instrumentation.opentelemetry.io/inject-go: 'true', instrumentation.opentelemetry.io/otel-go-auto-target-exe: /app}}\nspec: {containers: [{name: c, image: i}]}\n";
    let scene = Scene::new(&[("in.yaml", &format!("{cr}---\n{pod}"))]);
    let off = scene.remora(&["inject", "-f", "in.yaml", "--injectors", "otel"]);
    assert_eq!(order(&off.stdout), " | c");
    let on = scene.remora(&[
        "inject",
        "-f",
        "in.yaml",
        "--injectors",
        "otel",
        "--otel-operator-config",
        "{\"EnableGoAutoInstrumentation\": true}",
    ]);
    assert_eq!(order(&on.stdout), " | c opentelemetry-auto-instrumentation");
    insta::assert_snapshot!(
        "operator_switches_bad",
        scene
            .remora(&["inject", "-f", "in.yaml", "--otel-operator-config", "[1]"])
            .shown()
    );
}

#[test]
fn diff_shows_what_changes() {
    insta::assert_snapshot!(
        app()
            .remora(&["inject", "-f", "app.yaml", "--diff", "--native", "off"])
            .shown()
    );
}

#[test]
fn strict_makes_warnings_errors() {
    let text = APP.replace(
        "labels: {app: web}\n    spec",
        "labels: {app: web}\n      annotations: {sidecar.istio.io/injct: 'true'}\n    spec",
    );
    let scene = Scene::new(&[("app.yaml", &text)]);
    assert_eq!(scene.remora(&["inject", "-f", "app.yaml"]).code, Some(0));
    insta::assert_snapshot!(scene.remora(&["inject", "-f", "app.yaml", "--strict"]).shown());
}

#[test]
fn every_error_of_every_file_is_reported() {
    let bad = "\
apiVersion: v1
kind: Pod
metadata:
  name: bad
  annotations:
    status.sidecar.istio.io/port: \"99999\"
    traffic.sidecar.istio.io/includeOutboundIPRanges: 10.0.0.1
spec:
  containers: [{name: c, image: i}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: empty}
spec: {replicas: 1}
";
    let scene = Scene::new(&[
        ("a.yaml", bad),
        ("b.yaml", "kind: Pod\nspec:\n  containers: []\n  containers: []\n"),
        ("c.yaml", APP),
    ]);
    insta::assert_snapshot!(
        scene
            .remora(&["inject", "-f", "a.yaml", "-f", "b.yaml", "-f", "c.yaml"])
            .shown()
    );
}

#[test]
fn warnings_are_printed_with_their_place() {
    let text = "\
apiVersion: v1
kind: Pod
metadata: {name: host}
spec: {hostNetwork: true, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: odd
  labels: {sidecar.istio.io/inject: maybe}
  annotations: {proxy.istio.io/config: 'holdApplicationUntilProxyStarts: true'}
spec:
  containers: [{name: c, image: i}]
";
    let scene = Scene::new(&[
        ("pods.yaml", text),
        ("cni.yaml", "pilot: {cni: {enabled: true}}\n"),
        ("app.yaml", APP),
    ]);
    insta::assert_snapshot!("warnings", scene.remora(&["inject", "-f", "pods.yaml"]).stderr);
    insta::assert_snapshot!(
        "warnings_cni",
        scene
            .remora(&[
                "inject",
                "-f",
                "app.yaml",
                "--native",
                "off",
                "--valuesFile",
                "cni.yaml"
            ])
            .stderr
    );
}

#[test]
fn mistakes_on_the_command_line() {
    let scene = Scene::new(&[("app.yaml", APP), ("empty/readme.txt", ""), ("bytes.yaml", "")]);
    std::fs::write(scene.path("bytes.yaml"), [0xff, 0xfe, 0x00]).unwrap();
    let cases: &[(&str, &[&str])] = &[
        ("no_filename", &["inject"]),
        ("missing_file", &["inject", "-f", "missing.yaml"]),
        (
            "missing_values",
            &["inject", "-f", "app.yaml", "--valuesFile", "nope.yaml"],
        ),
        ("bad_order", &["inject", "-f", "app.yaml", "--order", "best"]),
        (
            "bad_kubelet",
            &["inject", "-f", "app.yaml", "--kubelet-min", "new"],
        ),
        ("unknown_flag", &["inject", "-f", "app.yaml", "--frobnicate"]),
        ("stdin_twice", &["inject", "-f", "-", "-f", "-"]),
        ("empty_directory", &["inject", "-f", "empty"]),
        ("not_text", &["inject", "-f", "bytes.yaml"]),
        (
            "diff_and_output",
            &["inject", "-f", "app.yaml", "--diff", "-o", "x"],
        ),
        ("unknown_command", &["injct"]),
    ];
    for (name, arguments) in cases {
        insta::assert_snapshot!(format!("mistake_{name}"), scene.remora(arguments).shown());
    }
}

#[test]
fn help_needs_no_manual() {
    let scene = app();
    insta::assert_snapshot!("help", scene.remora(&["--help"]).shown());
    insta::assert_snapshot!("help_inject", scene.remora(&["inject", "--help"]).shown());
    assert!(scene.remora(&["--version"]).stdout.starts_with("remora 0."));
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            scene
                .remora(&["completions", shell])
                .stdout
                .contains("kubelet-min"),
            "{shell}"
        );
    }
    assert!(scene.remora(&["man", "inject"]).stdout.contains(".TH"));
    assert_eq!(scene.remora(&["man", "nothing"]).code, Some(1));
}

#[test]
fn invoked_as_kube_inject_it_is_kube_inject() {
    let scene = app();
    let link = scene.path("kube-inject");
    std::os::unix::fs::symlink(binary(), &link).unwrap();
    let outcome = run(scene.command(&link, &["-f", "app.yaml"]), "");
    assert_eq!(outcome.stdout, scene.remora(&["inject", "-f", "app.yaml"]).stdout);
    assert!(outcome.stdout.contains("istio-proxy"));
}

/// `remora inject … | head` is not an error.
#[test]
fn a_reader_that_goes_away_is_fine() {
    let many = format!("{APP}---\n").repeat(200);
    let scene = Scene::new(&[("many.yaml", &many)]);
    let mut command = scene.command(&binary(), &["inject", "-f", "many.yaml"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).as_ref()
        ),
        (Some(0), "")
    );
}

/// A full disk loses nothing and says so.
#[test]
fn a_full_disk_is_an_error() {
    let many = format!("{APP}---\n").repeat(50);
    let scene = Scene::new(&[("many.yaml", &many)]);
    let outcome = scene.remora(&["inject", "-f", "many.yaml", "-o", "/dev/full"]);
    insta::assert_snapshot!(outcome.shown());
}

/// Any number of documents needs memory for one: five times as many must not cost what they are long.
#[test]
fn memory_does_not_grow_with_the_number_of_documents() {
    // Enough for the first run to last until its memory has been looked at.
    let (few, _) = memory_for(400);
    let (many, written) = memory_for(2_000);
    assert!(
        few > 0 && many < few + written / 4,
        "{few} KB for 400 documents, {many} KB for 2000 of {written} KB"
    );
}

/// Most memory held and length written for so many documents, in KB.
fn memory_for(documents: usize) -> (u64, u64) {
    let many = format!("{APP}---\n").repeat(documents);
    let scene = Scene::new(&[("many.yaml", &many)]);
    let mut command = scene.command(&binary(), &["inject", "-f", "many.yaml", "-o", "out.yaml"]);
    let mut child = command.spawn().unwrap();
    let mut peak = 0;
    // The high-water mark only ever grows, so the last value seen before the end counts.
    while child.try_wait().unwrap().is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap_or("0");
        peak = peak.max(
            line.split_whitespace()
                .nth(1)
                .and_then(|n| n.parse::<u64>().ok())
                .unwrap_or(0),
        );
        std::thread::yield_now();
    }
    let written = scene.read("out.yaml");
    assert_eq!(written.matches("        name: istio-proxy\n").count(), documents);
    (peak, written.len() as u64 / 1024)
}
