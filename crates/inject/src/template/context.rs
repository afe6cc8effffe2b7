//! What a template sees: pod, workload and settings under the names Go's types give them.

use crate::names;
use crate::sidecar::Inputs;
use gotmpl::Value as Go;
use remora_pod::view;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) fn data(inputs: &Inputs<'_>) -> Go {
    let workload = inputs.workload;
    let settings = inputs.settings;
    let metadata = inputs.pod.get("metadata").cloned().unwrap_or_default();
    let spec = inputs.pod.get("spec").cloned().unwrap_or_default();
    let mut mesh = settings.mesh.document().clone();
    view::map_mut(&mut mesh, &[])
        .entry("trustDomain")
        .or_insert(json!(""));
    let fields = [
        (
            "TypeMeta",
            typed(&json!({"kind": workload.kind, "apiVersion": workload.api_version})),
        ),
        (
            "DeploymentMeta",
            typed(&json!({"name": workload.name, "namespace": workload.namespace})),
        ),
        ("ObjectMeta", typed(&with_maps(metadata))),
        ("Spec", typed(&spec)),
        ("ProxyConfig", typed(&inputs.config.to_value())),
        ("MeshConfig", typed(&mesh)),
        ("Values", plain(settings.values.document())),
        ("Revision", Go::String(settings.revision.as_str().into())),
        ("NativeSidecars", Go::Bool(inputs.native)),
        ("ProxyImage", Go::String(image(inputs, true).into())),
        ("InitImage", Go::String(image(inputs, false).into())),
        ("ProxyUID", Go::Int(names::PROXY_ID)),
        ("ProxyGID", Go::Int(names::PROXY_ID)),
        ("InboundTrafficPolicyMode", Go::String(inbound_mode(&mesh).into())),
        (
            "CompliancePolicy",
            Go::String(settings.compliance_policy.as_str().into()),
        ),
    ];
    Go::Map(Arc::new(
        fields
            .into_iter()
            .map(|(key, value)| (Arc::from(key), value))
            .collect(),
    ))
}

fn image(inputs: &Inputs<'_>, proxy: bool) -> String {
    let (base, kind) = if proxy {
        (
            view::scalar(inputs.proxy_value("image")),
            inputs.config.image_type(),
        )
    } else {
        (inputs.text(&["global", "proxy_init", "image"]), None)
    };
    crate::image::reference(inputs.settings, inputs.pod, &base, kind)
}

fn inbound_mode(mesh: &Value) -> &str {
    view::text(mesh, &["inboundTrafficPolicy", "mode"]).unwrap_or("PASSTHROUGH")
}

/// Templates read labels and annotations without checking whether there are any.
fn with_maps(mut metadata: Value) -> Value {
    let map = view::map_mut(&mut metadata, &[]);
    for key in ["labels", "annotations"] {
        if !map.get(key).is_some_and(Value::is_object) {
            map.insert(key.to_owned(), Value::Object(Map::new()));
        }
    }
    metadata
}

/// A value as a plain Go map: keys as they are written.
pub(super) fn plain(value: &Value) -> Go {
    convert(value, &|map, key, value| {
        map.insert(Arc::from(key), value);
    })
}

/// A value as a Go struct: each field under its JSON name and its Go name (and as a getter, for protobufs).
fn typed(value: &Value) -> Go {
    convert(value, &|map, key, value| {
        let name = go_name(key);
        if name != key {
            map.insert(Arc::from(format!("Get{name}")), value.clone());
            map.insert(Arc::from(name), value.clone());
        }
        map.insert(Arc::from(key), value);
    })
}

type Insert = dyn Fn(&mut BTreeMap<Arc<str>, Go>, &str, Go);

fn convert(value: &Value, insert: &Insert) -> Go {
    match value {
        Value::Null => Go::Nil,
        Value::Bool(flag) => Go::Bool(*flag),
        Value::Number(number) => number
            .as_i64()
            .map(Go::Int)
            .or_else(|| number.as_u64().map(Go::Uint))
            .unwrap_or_else(|| Go::Float(number.as_f64().unwrap_or_default())),
        Value::String(text) => Go::String(Arc::from(text.as_str())),
        Value::Array(items) => Go::List(items.iter().map(|item| convert(item, insert)).collect()),
        Value::Object(fields) => {
            let mut map = BTreeMap::new();
            for (key, value) in fields {
                insert(&mut map, key, convert(value, insert));
            }
            Go::Map(Arc::new(map))
        }
    }
}

/// The Go field of a JSON name. Keys with other characters (annotations) are no fields.
fn go_name(key: &str) -> String {
    const INITIALISMS: [(&str, &str); 15] = [
        ("apiVersion", "APIVersion"),
        ("uid", "UID"),
        ("dnsPolicy", "DNSPolicy"),
        ("dnsConfig", "DNSConfig"),
        ("hostPID", "HostPID"),
        ("hostIPC", "HostIPC"),
        ("httpGet", "HTTPGet"),
        ("httpHeaders", "HTTPHeaders"),
        ("tcpSocket", "TCPSocket"),
        ("grpc", "GRPC"),
        ("tty", "TTY"),
        ("fsGroup", "FSGroup"),
        ("seLinuxOptions", "SELinuxOptions"),
        ("ip", "IP"),
        ("meshId", "MeshId"),
    ];
    if let Some((_, name)) = INITIALISMS.iter().find(|(json, _)| *json == key) {
        return (*name).to_owned();
    }
    let mut chars = key.chars();
    match chars.next() {
        Some(first) if first.is_ascii_lowercase() && key.chars().all(|c| c.is_ascii_alphanumeric()) => {
            first.to_ascii_uppercase().to_string() + chars.as_str()
        }
        _ => key.to_owned(),
    }
}

/// Back from Go's values; fields under their JSON names only.
pub(super) fn to_json(value: &Go) -> Value {
    match value {
        Go::Bool(flag) => json!(flag),
        Go::Int(number) => json!(number),
        Go::Uint(number) => json!(number),
        Go::Float(number) => json!(number),
        Go::String(text) => json!(&**text),
        Go::List(items) => items.iter().map(to_json).collect(),
        Go::Map(map) => {
            let is_alias = |key: &str| {
                key.starts_with(|c: char| c.is_ascii_uppercase())
                    && map.keys().any(|other| {
                        &**other != key && (go_name(other) == key || format!("Get{}", go_name(other)) == key)
                    })
            };
            let fields: Map<String, Value> = map
                .iter()
                .filter(|(key, _)| !is_alias(key))
                .map(|(key, value)| (key.to_string(), to_json(value)))
                .collect();
            Value::Object(fields)
        }
        _ => Value::Null,
    }
}
