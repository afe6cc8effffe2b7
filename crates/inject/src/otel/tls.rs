//! Certificates for the exporter: volumes, read-only mounts and the variables that point at the files.

use serde_json::{Map, Value, json};

use super::instrumentation::{Instrumentation, Tls};
use super::inventory::Inventory;
use super::names;
use super::pod;
use super::request::quoted;
use super::{Options, Subject};
use crate::warning::Warning;

/// What the exporter of one Instrumentation needs in a pod.
#[derive(Debug, Default)]
pub(crate) struct Certificates {
    /// Variables and the paths they hold.
    pub(crate) env: Vec<(&'static str, String)>,
    /// Volumes and where each is mounted.
    pub(crate) volumes: Vec<(Value, String)>,
}

/// Works out variables and volumes; volume names already taken for something else are avoided.
pub(crate) fn plan(instrumentation: &Instrumentation, spec: &Map<String, Value>) -> Certificates {
    let mut out = Certificates::default();
    let Some(tls) = &instrumentation.tls else {
        return out;
    };
    let secret_dir = directory("secret", &tls.secret);
    let config_dir = directory("configmap", &tls.config_map).or_else(|| secret_dir.clone());
    let files = [
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", &tls.ca_file, &config_dir),
        (
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
            &tls.cert_file,
            &secret_dir,
        ),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", &tls.key_file, &secret_dir),
    ];
    for (variable, file, dir) in files {
        if let Some(path) = path(file, dir.as_deref()) {
            out.env.push((variable, path));
        }
    }
    if let Some(dir) = secret_dir {
        let source = json!({"secret": {"secretName": tls.secret}});
        out.volumes
            .push((volume(spec, "otel-auto-secret", &tls.secret, source), dir));
    }
    if let Some(dir) = directory("configmap", &tls.config_map) {
        let source = json!({"configMap": {"name": tls.config_map}});
        out.volumes
            .push((volume(spec, "otel-auto-configmap", &tls.config_map, source), dir));
    }
    out
}

/// Absolute files are used as they are, others relative to the mounted directory.
fn path(file: &str, dir: Option<&str>) -> Option<String> {
    match (file, dir) {
        ("", _) => None,
        (absolute, _) if absolute.starts_with('/') => Some(absolute.to_owned()),
        (relative, Some(dir)) => Some(format!("{dir}/{relative}")),
        (_, None) => None,
    }
}

fn directory(kind: &str, name: &str) -> Option<String> {
    (!name.is_empty()).then(|| format!("{}-{kind}-{name}", names::AGENT_DIR))
}

fn volume(spec: &Map<String, Value>, stem: &str, name: &str, mut source: Value) -> Value {
    let mut own = operator_name(stem, name);
    let same = |found: &Value| {
        source
            .as_object()
            .is_some_and(|map| map.iter().all(|(k, v)| has_all_fields(found.get(k), v)))
    };
    if pod::volume(spec, &own).is_some_and(|found| !same(found)) {
        own = names::joined(&own, &format!("{:08x}", names::digest(name)));
    }
    if let Some(map) = source.as_object_mut() {
        map.insert("name".to_owned(), Value::from(own));
    }
    source
}

/// Whether `found` has every field of `wanted` (an API server may have added more).
fn has_all_fields(found: Option<&Value>, wanted: &Value) -> bool {
    let Some(wanted) = wanted.as_object() else {
        return false;
    };
    wanted
        .iter()
        .all(|(key, value)| found.and_then(|map| map.get(key)) == Some(value))
}

/// operator: cut at 63. Dots, which object names may have and volume names may not, become dashes.
fn operator_name(stem: &str, name: &str) -> String {
    let full = format!("{stem}-{}", name.replace('.', "-"));
    let cut: String = full.chars().take(63).collect();
    cut.trim_end_matches('-').to_owned()
}

/// Adds the volumes that some container mounts.
pub(crate) fn add_volumes(
    certificates: &Certificates,
    spec: &mut Map<String, Value>,
) -> Result<(), pod::Malformed> {
    for (volume, _) in &certificates.volumes {
        let mounts = |container: &Value| {
            container
                .as_object()
                .is_some_and(|map| pod::mounts_volume(map, pod::name(volume)))
        };
        if pod::containers(spec).any(|(_, container)| mounts(container)) {
            pod::add_volume(spec, volume.clone())?;
        }
    }
    Ok(())
}

/// Mounts the volumes in a container, each once.
pub(crate) fn mount(
    certificates: &Certificates,
    container: &mut Map<String, Value>,
) -> Result<(), pod::Malformed> {
    for (volume, dir) in &certificates.volumes {
        pod::add_mount(container, pod::name(volume), dir, true)?;
    }
    Ok(())
}

/// Whether Secret and ConfigMap are known. With a complete inventory a missing one stops instrumentation,
/// as in the operator; offline it may well be in the cluster, so it is only said.
pub(crate) fn check(
    instrumentation: &Instrumentation,
    subject: &Subject<'_>,
    inventory: &Inventory,
    options: Options,
) -> Result<Vec<Warning>, Warning> {
    let Some(tls) = &instrumentation.tls else {
        return Ok(Vec::new());
    };
    let missing = missing(tls, subject.namespace, inventory);
    if !options.inventory_complete {
        return Ok(missing
            .iter()
            .map(|what| unconfirmed(what, subject.namespace))
            .collect());
    }
    match missing.first() {
        None => Ok(Vec::new()),
        Some(what) => {
            let text = format!(
                "{what} with the exporter's certificates does not exist in namespace {}, so nothing was \
                 instrumented; create it or correct spec.exporter.tls of Instrumentation {}",
                quoted(subject.namespace),
                quoted(&instrumentation.name),
            );
            Err(Warning::pod("otel-tls-missing", text))
        }
    }
}

fn missing(tls: &Tls, namespace: &str, inventory: &Inventory) -> Vec<String> {
    let mut out = Vec::new();
    if !tls.secret.is_empty() && !inventory.has_secret(namespace, &tls.secret) {
        out.push(format!("Secret {}", quoted(&tls.secret)));
    }
    if !tls.config_map.is_empty() && !inventory.has_config_map(namespace, &tls.config_map) {
        out.push(format!("ConfigMap {}", quoted(&tls.config_map)));
    }
    out
}

fn unconfirmed(what: &str, namespace: &str) -> Warning {
    let text = format!(
        "{what} with the exporter's certificates is not in the input; the pod will not start unless it exists \
         in namespace {}",
        quoted(namespace)
    );
    Warning::pod("otel-tls-unconfirmed", text)
}
