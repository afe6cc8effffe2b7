//! The effective `ProxyConfig`: defaults, then the mesh file, then `PROXY_CONFIG`, then the pod's annotation, then flags.
// istio: later ones win field by field; lists are replaced, objects merged.

use super::read::duration;
use super::{Inputs, SettingsError};
use remora_pod::yaml;
use serde_json::{Map, Value, json};
use std::time::Duration;

const ANNOTATION: &str = "proxy.istio.io/config";

/// `ProxyConfig` and the mesh configuration around it, as documents.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxyConfig {
    /// All fields that are set, by their JSON names.
    pub fields: Map<String, Value>,
    mesh: Value,
}

impl ProxyConfig {
    pub(super) fn effective(inputs: &Inputs) -> Result<Self, SettingsError> {
        let mesh = document("the mesh configuration", inputs.mesh.as_deref())?;
        let mut value = defaults();
        if let Some(layer) = mesh.get("defaultConfig") {
            merge(&mut value, layer);
        }
        let given = inputs.env.get("PROXY_CONFIG").map(String::as_str);
        merge(&mut value, &document("PROXY_CONFIG", given)?);
        let annotations = inputs.pod_annotations();
        let given = annotations.get(ANNOTATION).map(String::as_str);
        merge(
            &mut value,
            &document("the annotation proxy.istio.io/config", given)?,
        );
        let single = [
            ("sidecar.istio.io/discoveryAddress", "discoveryAddress"),
            ("status.sidecar.istio.io/port", "statusPort"),
        ];
        for (annotation, field) in single {
            if let Some(text) = annotations.get(annotation).filter(|text| !text.is_empty()) {
                value[field] = json!(text);
            }
        }
        // istio: flags of 1.5 that became fields.
        for flag in [
            "configPath",
            "binaryPath",
            "serviceCluster",
            "drainDuration",
            "discoveryAddress",
            "proxyAdminPort",
            "controlPlaneAuthPolicy",
            "customConfigFile",
            "statusPort",
            "statsdUdpAddress",
        ] {
            if let Some(text) = inputs.flags.get(flag) {
                value[flag] = json!(text);
            }
        }
        for (flag, collector) in [("zipkinAddress", "zipkin"), ("datadogAgentAddress", "datadog")] {
            if let Some(text) = inputs.flags.get(flag) {
                merge(&mut value, &json!({"tracing": {collector: {"address": text}}}));
            }
        }
        for flag in ["envoyMetricsService", "envoyAccessLogService"] {
            let layer = document("a service of Envoy's", inputs.flags.get(flag))?;
            if layer.as_object().is_some_and(|fields| !fields.is_empty()) {
                merge(&mut value, &json!({flag: layer}));
            }
        }
        let fields = match value {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        Ok(Self { fields, mesh })
    }

    /// A field that is a text.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.fields
            .get(field)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
    }

    pub(super) fn required_text(&self, field: &'static str) -> Result<&str, SettingsError> {
        self.text(field).ok_or(SettingsError::Missing(field))
    }

    /// A field that is a text or a number, as text.
    pub fn scalar(&self, field: &str) -> Option<String> {
        scalar(self.fields.get(field)?)
    }

    /// A field that is a duration, if it is set.
    pub fn duration(&self, field: &str) -> Result<Option<Duration>, SettingsError> {
        self.scalar(field).map(|text| duration(field, &text)).transpose()
    }

    /// A field that is a port; 0 if it is not set.
    pub fn port(&self, field: &str) -> Result<u16, SettingsError> {
        self.scalar(field).map_or(Ok(0), |text| port(field, &text))
    }

    /// `proxyMetadata`: variables for the agent.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, String)> {
        let entries = self.fields.get("proxyMetadata").and_then(Value::as_object);
        entries
            .into_iter()
            .flatten()
            .filter_map(|(name, value)| Some((name.as_str(), scalar(value)?)))
    }

    pub(super) fn mesh_text(&self, pointer: &str) -> Option<&str> {
        let text = self.mesh.pointer(pointer)?.as_str()?;
        Some(text).filter(|text| !text.is_empty())
    }

    pub(super) fn mesh_list(&self, pointer: &str) -> Vec<&str> {
        let list = self.mesh.pointer(pointer).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    pub(super) fn mesh_port(&self, field: &str, default: u16) -> Result<u16, SettingsError> {
        let given = self.mesh.get(field).and_then(scalar);
        given.map_or(Ok(default), |text| port(field, &text))
    }
}

// istio: the defaults of the agent.
fn defaults() -> Value {
    json!({
        "configPath": "./etc/istio/proxy",
        "binaryPath": "/usr/local/bin/envoy",
        "serviceCluster": "istio-proxy",
        "drainDuration": "45s",
        "proxyAdminPort": 15000,
        "controlPlaneAuthPolicy": "MUTUAL_TLS",
        "discoveryAddress": "istiod.istio-system.svc:15012",
        "statNameLength": 189,
        "statusPort": 15020,
    })
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

fn port(name: &str, text: &str) -> Result<u16, SettingsError> {
    text.parse().map_err(|_| SettingsError::Value {
        name: name.to_owned(),
        value: text.to_owned(),
        expected: "a port",
    })
}

fn document(name: &'static str, text: Option<&str>) -> Result<Value, SettingsError> {
    let Some(text) = text else {
        return Ok(json!({}));
    };
    let read = yaml::parse_str(text).map_err(|source| SettingsError::Yaml { name, source })?;
    match read {
        None => Ok(json!({})),
        Some(document) if document.value.is_object() => Ok(document.value),
        Some(document) => Err(SettingsError::Value {
            name: name.to_owned(),
            value: document.value.to_string(),
            expected: "an object",
        }),
    }
}

fn merge(into: &mut Value, layer: &Value) {
    match (into, layer) {
        (Value::Object(into), Value::Object(layer)) => {
            for (key, value) in layer {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, layer) => into.clone_from(layer),
    }
}
