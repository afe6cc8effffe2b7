//! The xDS node of the pod: id, cluster and metadata.

use super::read::Environment;
use super::{Inputs, ProxyConfig, SettingsError};
use prost_types::Struct;
use prost_types::value::Kind;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// An xDS node.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// `sidecar~ADDRESS~POD.NAMESPACE~DOMAIN`.
    pub id: String,
    /// The workload's cluster name.
    pub cluster: String,
    /// Node metadata. Booleans and lists of addresses are strings.
    pub metadata: Map<String, Value>,
}

impl Node {
    /// As a protobuf message.
    pub fn to_message(&self) -> remora_xds::proto::discovery::Node {
        remora_xds::proto::discovery::Node {
            id: self.id.clone(),
            cluster: self.cluster.clone(),
            metadata: Some(message(&self.metadata)),
        }
    }

    pub(super) fn new(
        inputs: &Inputs,
        config: &ProxyConfig,
        addresses: &[IpAddr],
    ) -> Result<Self, SettingsError> {
        let env = Environment(&inputs.env);
        let (name, namespace) = (env.required("POD_NAME")?, env.required("POD_NAMESPACE")?);
        let domain = match inputs.flags.get("domain") {
            Some(domain) => domain.to_owned(),
            None => format!("{namespace}.svc.cluster.local"),
        };
        let pod = inputs
            .flags
            .get("id")
            .map_or_else(|| format!("{name}.{namespace}"), str::to_owned);
        let address = addresses.first().map(ToString::to_string).unwrap_or_default();
        let labels = inputs.pod_labels();
        let metadata = metadata(inputs, config, addresses, &labels)?;
        Ok(Self {
            id: format!("sidecar~{address}~{pod}~{domain}"),
            cluster: cluster(config, &labels, &metadata, namespace),
            metadata,
        })
    }
}

fn message(fields: &Map<String, Value>) -> Struct {
    let field = |(key, value): (&String, &Value)| (key.clone(), message_value(value));
    Struct {
        fields: fields.iter().map(field).collect(),
    }
}

fn message_value(value: &Value) -> prost_types::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(flag) => Kind::BoolValue(*flag),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(list) => Kind::ListValue(prost_types::ListValue {
            values: list.iter().map(message_value).collect(),
        }),
        Value::Object(fields) => Kind::StructValue(message(fields)),
    };
    prost_types::Value { kind: Some(kind) }
}

// istio: the configured name, the label `app`, the workload, in this order.
fn cluster(
    config: &ProxyConfig,
    labels: &BTreeMap<String, String>,
    metadata: &Map<String, Value>,
    namespace: &str,
) -> String {
    if let Some(chosen) = config
        .text("serviceCluster")
        .filter(|name| *name != "istio-proxy")
    {
        return chosen.to_owned();
    }
    let workload = metadata.get("WORKLOAD_NAME").and_then(Value::as_str);
    let name = labels
        .get("app")
        .map(String::as_str)
        .or(workload)
        .unwrap_or("istio-proxy");
    format!("{name}.{namespace}")
}

fn metadata(
    inputs: &Inputs,
    config: &ProxyConfig,
    addresses: &[IpAddr],
    labels: &BTreeMap<String, String>,
) -> Result<Map<String, Value>, SettingsError> {
    let env = Environment(&inputs.env);
    let mut all = Map::new();
    // istio: the environment is applied after proxyMetadata, so it wins.
    for (name, value) in config.metadata() {
        meta(&mut all, name, &value)?;
    }
    for (name, value) in &inputs.env {
        meta(&mut all, name, value)?;
    }
    let mut set = |key: &str, value: Value| all.insert(key.to_owned(), value);
    if !labels.is_empty() {
        set("LABELS", json!(labels));
    }
    let annotations = inputs.pod_annotations();
    if !annotations.is_empty() {
        set("ANNOTATIONS", json!(annotations));
    }
    for (key, variable) in [
        ("NAME", "POD_NAME"),
        ("NAMESPACE", "POD_NAMESPACE"),
        ("SERVICE_ACCOUNT", "SERVICE_ACCOUNT"),
        ("DNS_PROXY_ADDR", "DNS_PROXY_ADDR"),
    ] {
        if let Some(value) = env.text(variable) {
            set(key, json!(value));
        }
    }
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    set("INSTANCE_IPS", json!(addresses.join(",")));
    set("PROXY_CONFIG", Value::Object(config.fields.clone()));
    Ok(all)
}

fn meta(all: &mut Map<String, Value>, name: &str, value: &str) -> Result<(), SettingsError> {
    if let Some(key) = name.strip_prefix("ISTIO_META_") {
        all.insert(key.to_owned(), json!(value));
        return Ok(());
    }
    let Some(key) = name.strip_prefix("ISTIO_METAJSON_") else {
        return Ok(());
    };
    let wrong = || SettingsError::Value {
        name: name.to_owned(),
        value: value.to_owned(),
        expected: "a JSON object",
    };
    // istio: the object's fields become metadata themselves; labels are kept together as well.
    let parsed: Map<String, Value> = serde_json::from_str(value).map_err(|_| wrong())?;
    if key == "LABELS" {
        all.insert("LABELS".to_owned(), Value::Object(parsed.clone()));
    }
    all.extend(parsed);
    Ok(())
}

impl Inputs {
    /// The pod's labels.
    pub fn pod_labels(&self) -> BTreeMap<String, String> {
        let mut labels = pairs(self.labels.as_deref());
        // istio: omitted, because it differs for every version of a workload and carries no information.
        labels.remove("pod-template-hash");
        labels
    }

    /// The pod's annotations.
    pub fn pod_annotations(&self) -> BTreeMap<String, String> {
        pairs(self.annotations.as_deref())
    }
}

/// Lines `key="value"`, the value as Go quotes it.
// k8s: the downward API's way to write labels and annotations.
fn pairs(text: Option<&str>) -> BTreeMap<String, String> {
    let lines = text.into_iter().flat_map(str::lines);
    lines
        .filter_map(|line| {
            let (key, quoted) = line.split_once('=')?;
            Some((key.trim().to_owned(), unquote(quoted.trim())?))
        })
        .collect()
}

fn unquote(quoted: &str) -> Option<String> {
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::new();
    let mut rest = inner.chars();
    while let Some(next) = rest.next() {
        if next != '\\' {
            text.push(next);
            continue;
        }
        let digits = match rest.next()? {
            'n' => {
                text.push('\n');
                continue;
            }
            't' => {
                text.push('\t');
                continue;
            }
            'r' => {
                text.push('\r');
                continue;
            }
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other => {
                text.push(other);
                continue;
            }
        };
        let hex: String = rest.by_ref().take(digits).collect();
        text.push(char::from_u32(u32::from_str_radix(&hex, 16).ok()?)?);
    }
    Some(text)
}
