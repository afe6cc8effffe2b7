//! The xDS node of an Envoy: the node of the pod, plus the fields that only an Envoy has.

use super::Description;
use serde_json::{Map, Value, json};

pub(super) fn node(description: &Description) -> Value {
    let mut metadata = description.node.metadata.clone();
    metadata.extend(envoys_own(description));
    json!({
        "id": description.node.id,
        "cluster": description.node.cluster,
        "locality": locality(description.pod_text("LABELS", "istio-locality").unwrap_or_default()),
        "metadata": metadata,
    })
}

/// Where the workload runs, from a label.
// istio: labels cannot hold slashes, so dots stand for them, unless there are slashes.
fn locality(text: &str) -> Map<String, Value> {
    let separator = if text.contains('/') { '/' } else { '.' };
    let parts = ["region", "zone", "sub_zone"]
        .into_iter()
        .zip(text.splitn(3, separator));
    parts
        .filter(|(_, part)| !part.is_empty())
        .map(|(name, part)| (name.to_owned(), json!(part)))
        .collect()
}

/// Texts, even for numbers and switches: that is how istiod reads them.
fn envoys_own(description: &Description) -> Map<String, Value> {
    let mut own = Map::new();
    let mut put = |name: &str, value: Value| own.insert(name.to_owned(), value);
    let ports = description.ports;
    put("ENVOY_STATUS_PORT", json!(ports.readiness.to_string()));
    put("ENVOY_PROMETHEUS_PORT", json!(ports.prometheus.to_string()));
    if let Some(labels) = description.node.metadata.get("LABELS") {
        put("STATIC_LABELS", labels.clone());
    }
    if let Some(name) = control_plane_name(description) {
        put("PILOT_SAN", json!([name]));
    }
    if !description.outlier_log_path.is_empty() {
        put("OUTLIER_LOG_PATH", json!(description.outlier_log_path));
    }
    if description.exit_on_zero_active_connections {
        put("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", json!("true"));
    }
    own
}

/// The server name of the control plane, if it is reached over TLS.
fn control_plane_name(description: &Description) -> Option<&str> {
    if description.config_text("controlPlaneAuthPolicy") == Some("NONE") {
        return None;
    }
    let address = description.config_text("discoveryAddress")?;
    match address.rsplit_once(':').map_or(address, |(host, _)| host) {
        "localhost" => Some("istiod.istio-system.svc"),
        host => Some(host),
    }
}
