//! Shared by the tests of this crate: settings by name and short ways to look at pods.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use remora_inject::{
    InjectConfig, Injected, Injectors, Inventory, Mesh, Order, Settings, Subject, Values, Warning, Workload,
    inject_object, inject_pod,
};
use remora_pod::{view, yaml};
use serde_json::{Value, json};

/// The sidecar only, planned order.
pub fn mesh(native: bool, values: &Value) -> Settings {
    let values = Values::new(values);
    Settings {
        config: InjectConfig::from_values(&values).unwrap(),
        values,
        native,
        mesh: Mesh::new(json!({"trustDomain": "cluster.local"})).unwrap(),
        injectors: Injectors {
            mesh: true,
            otel: true,
        },
        ..Settings::default()
    }
}

pub fn native() -> Settings {
    mesh(true, &json!({}))
}

pub fn classic() -> Settings {
    mesh(false, &json!({}))
}

pub fn with_order(mut settings: Settings, order: Order) -> Settings {
    settings.order = order;
    settings
}

pub fn cni() -> Value {
    json!({"pilot": {"cni": {"enabled": true}}})
}

pub fn parse(text: &str) -> Value {
    yaml::parse_str(text).unwrap().unwrap().value
}

/// Injects one pod that must be injectable.
pub fn inject(pod: &Value, settings: &Settings) -> Injected {
    try_inject(pod, settings).unwrap_or_else(|e| panic!("{e:?}\n{}", yaml::write(pod)))
}

pub fn try_inject(pod: &Value, settings: &Settings) -> Result<Injected, Vec<remora_inject::InjectError>> {
    let workload = Workload {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: "p".into(),
        namespace: "n".into(),
    };
    let subject = Subject {
        pod,
        workload: &workload,
        namespace: "n",
        native: None,
    };
    inject_pod(subject, settings, &Inventory::default().otel)
}

/// Injects a whole document.
pub fn inject_document(text: &str, settings: &Settings) -> (Value, Vec<Warning>, Vec<String>) {
    let mut inventory = Inventory::default();
    let mut last = Value::Null;
    for raw in yaml::split(text) {
        if let Some(document) = yaml::parse(&raw, yaml::Limits::default()).unwrap() {
            inventory.add(&document.value);
            last = document.value;
        }
    }
    inventory.finish();
    let report = inject_object(&mut last, settings, &inventory);
    let warnings = report.pods.into_iter().flat_map(|p| p.warnings).collect();
    (
        last,
        warnings,
        report.errors.into_iter().map(|e| e.error.to_string()).collect(),
    )
}

/// Names of the init containers and the containers, e.g. `istio-init istio-proxy | app`.
pub fn order(pod: &Value) -> String {
    let names = |list: &[Value]| list.iter().map(view::name).collect::<Vec<_>>().join(" ");
    format!(
        "{} | {}",
        names(view::init_containers(pod)),
        names(view::containers(pod))
    )
}

pub fn codes(warnings: &[Warning]) -> Vec<&str> {
    warnings.iter().map(|w| w.code).collect()
}

pub fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    view::container(pod, name).unwrap_or_else(|| panic!("no container {name} in {}", order(pod)))
}

pub fn variable<'a>(pod: &'a Value, name: &str) -> Option<&'a str> {
    view::find(view::list(container(pod, "istio-proxy"), &["env"]), name)?
        .get("value")?
        .as_str()
}
