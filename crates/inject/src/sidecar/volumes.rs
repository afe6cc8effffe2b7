//! Volumes of the pod and mounts of the proxy, in Istio's order.

use super::Inputs;
use crate::names::annotation;
use crate::values::truthy;
use remora_pod::{view, yaml};
use serde_json::{Value, json};

pub(super) fn mounts(inputs: &Inputs<'_>) -> Vec<Value> {
    let mut mounts = vec![
        mount("workload-socket", "/var/run/secrets/workload-spiffe-uds"),
        mount("credential-socket", "/var/run/secrets/credential-uds"),
    ];
    if uses_gke_certificates(inputs) {
        let path = "/var/run/secrets/workload-spiffe-credentials";
        mounts.push(json!({"name": "gke-workload-certificate", "mountPath": path, "readOnly": true}));
    } else {
        mounts.push(mount(
            "workload-certs",
            "/var/run/secrets/workload-spiffe-credentials",
        ));
    }
    if inputs.uses_istiod_certificates() {
        mounts.push(mount("istiod-ca-cert", "/var/run/secrets/istio"));
        mounts.push(mount("istio-ca-crl", "/var/run/secrets/istio/crl"));
    }
    mounts.push(mount("istio-data", "/var/lib/istio/data"));
    if inputs.own(annotation::BOOTSTRAP_OVERRIDE).is_some() {
        mounts.push(mount("custom-bootstrap-volume", "/etc/istio/custom-bootstrap"));
    }
    mounts.push(mount("istio-envoy", "/etc/istio/proxy"));
    mounts.push(mount("istio-token", "/var/run/secrets/tokens"));
    if mounts_secret_certificates(inputs) {
        mounts.push(json!({"name": "istio-certs", "mountPath": "/etc/certs/", "readOnly": true}));
    }
    mounts.push(mount("istio-podinfo", "/etc/istio/pod"));
    if let Some(directory) = lightstep_directory(inputs) {
        mounts.push(json!({"name": "lightstep-certs", "mountPath": directory, "readOnly": true}));
    }
    mounts.extend(user_entries(inputs.own(annotation::USER_VOLUME_MOUNT)));
    mounts
}

pub(super) fn volumes(inputs: &Inputs<'_>) -> Vec<Value> {
    // No source: the API server makes them emptyDirs, and a later template can put e.g. a CSI source there.
    let mut volumes = vec![
        json!({"name": "workload-socket"}),
        json!({"name": "credential-socket"}),
    ];
    if uses_gke_certificates(inputs) {
        let csi = json!({"driver": "workloadcertificates.security.cloud.google.com"});
        volumes.push(json!({"name": "gke-workload-certificate", "csi": csi}));
    } else {
        volumes.push(json!({"name": "workload-certs"}));
    }
    if let Some(name) = inputs.own(annotation::BOOTSTRAP_OVERRIDE) {
        volumes.push(json!({"name": "custom-bootstrap-volume", "configMap": {"name": name}}));
    }
    volumes.push(json!({"name": "istio-envoy", "emptyDir": {"medium": "Memory"}}));
    volumes.push(json!({"name": "istio-data", "emptyDir": {}}));
    volumes.push(pod_info());
    volumes.push(token(&inputs.text(&["global", "sds", "token", "aud"])));
    if inputs.uses_istiod_certificates() {
        volumes.push(root_certificate(inputs));
        let crl = json!({"name": "istio-ca-crl", "optional": true});
        volumes.push(json!({"name": "istio-ca-crl", "configMap": crl}));
    }
    if mounts_secret_certificates(inputs) {
        let account = view::text(inputs.pod, &["spec", "serviceAccountName"]).filter(|a| !a.is_empty());
        let secret = format!("istio.{}", account.unwrap_or("default"));
        volumes.push(json!({"name": "istio-certs", "secret": {"optional": true, "secretName": secret}}));
    }
    volumes.extend(user_entries(inputs.own(annotation::USER_VOLUME)));
    if lightstep_directory(inputs).is_some() {
        let secret = json!({"optional": true, "secretName": "lightstep.cacert"});
        volumes.push(json!({"name": "lightstep-certs", "secret": secret}));
    }
    volumes
}

fn mount(name: &str, path: &str) -> Value {
    json!({"name": name, "mountPath": path})
}

fn uses_gke_certificates(inputs: &Inputs<'_>) -> bool {
    inputs.text(&["global", "caName"]) == "GkeWorkloadCertificate"
}

fn mounts_secret_certificates(inputs: &Inputs<'_>) -> bool {
    inputs.settings.values.flag(&["global", "mountMtlsCerts"])
}

fn pod_info() -> Value {
    json!({"name": "istio-podinfo", "downwardAPI": {"items": [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}},
    ]}})
}

fn token(audience: &str) -> Value {
    let source = json!({"path": "istio-token", "expirationSeconds": 43200, "audience": audience});
    json!({"name": "istio-token", "projected": {"sources": [{"serviceAccountToken": source}]}})
}

fn root_certificate(inputs: &Inputs<'_>) -> Value {
    if truthy(
        inputs
            .settings
            .values
            .at(&["pilot", "env", "ENABLE_CLUSTER_TRUST_BUNDLE_API"]),
    ) {
        let bundle = json!({"name": format!("istio.io:{}:root-cert", "istiod-ca"), "path": "root-cert.pem"});
        return json!({"name": "istiod-ca-cert", "projected": {"sources": [{"clusterTrustBundle": bundle}]}});
    }
    let name = inputs.text(&["global", "trustBundleName"]);
    let name = if name.is_empty() {
        "istio-ca-root-cert"
    } else {
        &name
    };
    json!({"name": "istiod-ca-cert", "configMap": {"name": name}})
}

fn lightstep_directory(inputs: &Inputs<'_>) -> Option<String> {
    if inputs.proxy_value("tracer").as_str() != Some("lightstep") {
        return None;
    }
    let file = view::text(inputs.config.get("tracing")?, &["tlsSettings", "caCertificates"])?;
    file.rsplit_once('/').map(|(directory, _)| directory.to_owned())
}

/// Entries of a `userVolume` annotation, sorted by name; validated before, so that bad JSON is empty here.
///
/// istio: the working form is a map keyed by name; a list works where its items carry a `name`.
fn user_entries(text: Option<&str>) -> Vec<Value> {
    let Some(document) = text.and_then(|t| yaml::parse_str(t).ok().flatten().map(|d| d.value)) else {
        return Vec::new();
    };
    let mut entries: Vec<Value> = match document {
        Value::Object(map) => map
            .into_iter()
            .map(|(name, entry)| with_name(entry, name))
            .collect(),
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    entries.sort_by(|a, b| view::name(a).cmp(view::name(b)));
    entries
}

fn with_name(mut entry: Value, name: String) -> Value {
    view::map_mut(&mut entry, &[])
        .entry("name")
        .or_insert(Value::String(name));
    entry
}
