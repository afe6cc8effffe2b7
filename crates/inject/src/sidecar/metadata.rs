//! Labels and annotations that the template adds.

use super::Inputs;
use crate::multus;
use crate::names::{annotation, label};
use remora_pod::view;
use serde_json::{Map, Value, json};

pub(super) fn metadata(inputs: &Inputs<'_>) -> Value {
    json!({"labels": labels(inputs), "annotations": annotations(inputs)})
}

fn labels(inputs: &Inputs<'_>) -> Map<String, Value> {
    let own = |key: &str| view::label(inputs.pod, key).filter(|v| !v.is_empty());
    let first = |keys: &[&str]| keys.iter().find_map(|key| own(key));
    let mut labels = Map::new();
    let mut set = |key: &str, value: &str| labels.insert(key.to_owned(), json!(value));
    set(
        label::TLS_MODE,
        view::label(inputs.pod, label::TLS_MODE).unwrap_or("istio"),
    );
    if inputs.config.metadata_of("ISTIO_META_ENABLE_HBONE") == Some("true") {
        set(
            label::TUNNEL,
            view::label(inputs.pod, label::TUNNEL).unwrap_or("http"),
        );
    }
    let name =
        first(&[label::CANONICAL_NAME, "app.kubernetes.io/name", "app"]).unwrap_or(&inputs.workload.name);
    let name = canonical_name(name);
    if !name.is_empty() {
        set(label::CANONICAL_NAME, &name);
    }
    let revision = first(&[label::CANONICAL_REVISION, "app.kubernetes.io/version", "version"]);
    set(label::CANONICAL_REVISION, revision.unwrap_or("latest"));
    labels
}

/// Cut to a label's length, then freed of what a label may not end in.
fn canonical_name(name: &str) -> String {
    let cut: String = name.chars().take(63).collect();
    cut.trim_matches(['-', '_', '.']).to_owned()
}

fn annotations(inputs: &Inputs<'_>) -> Map<String, Value> {
    let mut annotations = Map::new();
    let mut set = |key: &str, value: String| annotations.insert(key.to_owned(), json!(value));
    set(annotation::REVISION, inputs.settings.revision_name().to_owned());
    if let Some(app) = inputs.apps().next() {
        for key in [annotation::DEFAULT_LOGS_CONTAINER, annotation::DEFAULT_CONTAINER] {
            if inputs.own(key).is_none() {
                set(key, app.to_owned());
            }
        }
    }
    if inputs.cni {
        for (key, value) in capture_annotations(inputs) {
            set(key, value);
        }
    }
    annotations
}

/// What a CNI plugin reads instead of the init container's arguments.
fn capture_annotations(inputs: &Inputs<'_>) -> Vec<(&'static str, String)> {
    let mut out = vec![
        (annotation::INTERCEPTION_MODE, inputs.mode.clone()),
        (
            annotation::INCLUDE_IN_PORTS,
            inputs.own_or(
                annotation::INCLUDE_IN_PORTS,
                inputs.proxy_value("includeInboundPorts"),
            ),
        ),
        (annotation::EXCLUDE_IN_PORTS, inputs.excluded_inbound.clone()),
    ];
    let ranges = [
        (annotation::INCLUDE_OUT_RANGES, "includeIPRanges"),
        (annotation::EXCLUDE_OUT_RANGES, "excludeIPRanges"),
    ];
    for (key, setting) in ranges {
        let value = inputs.own_or(key, inputs.proxy_value(setting));
        if !value.is_empty() {
            out.push((key, value));
        }
    }
    let ports = [
        (annotation::INCLUDE_OUT_PORTS, "includeOutboundPorts"),
        (annotation::EXCLUDE_OUT_PORTS, "excludeOutboundPorts"),
    ];
    for (key, setting) in ports {
        out.extend(inputs.given(key, setting).map(|value| (key, value)));
    }
    for key in [
        annotation::REROUTE_INTERFACES,
        annotation::KUBEVIRT_INTERFACES,
        annotation::EXCLUDE_INTERFACES,
    ] {
        out.extend(inputs.own(key).map(|value| (key, value.to_owned())));
    }
    if inputs.settings.values.at(&["pilot", "cni", "provider"]).as_str() == Some("multus") {
        let networks = inputs.own(annotation::MULTUS_NETWORKS).unwrap_or_default();
        out.push((
            annotation::MULTUS_NETWORKS,
            multus::with_network(networks, "default/istio-cni"),
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::canonical_name;

    #[test]
    fn canonical_names_fit_a_label() {
        assert_eq!(canonical_name("web"), "web");
        assert_eq!(canonical_name(&"a".repeat(70)).len(), 63);
        assert_eq!(
            canonical_name(&format!("{}-more", "a".repeat(62))),
            "a".repeat(62)
        );
    }
}
