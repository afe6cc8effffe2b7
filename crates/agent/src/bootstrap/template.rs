//! A bootstrap from the user's template, as Istio's agent renders it: Go template text with Istio's names.
//!
//! The values come from the bootstrap that would be made without the template, so both always agree.

use super::{BootstrapError, Description, Family, node, render};
use gotmpl::{FuncMap, Value as Go};
use remora_pod::yaml;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Iteration limit of one `range`.
const MAX_RANGE_ITERATIONS: u64 = 10_000;

/// Renders a template; the result is JSON or YAML.
pub fn from_template(description: &Description, text: &str) -> Result<Value, BootstrapError> {
    let failed = |why: String| BootstrapError::Template { why };
    let template = gotmpl::Template::new("bootstrap")
        .max_range_iters(MAX_RANGE_ITERATIONS)
        .funcs(functions())
        .parse(text)
        .map_err(|error| failed(error.to_string()))?;
    let mut output = String::new();
    template
        .execute_fmt(&mut output, &go(&Value::Object(names(description)?)))
        .map_err(|error| failed(error.to_string()))?;
    // istio: a missing value is rendered as this.
    let output = output.replace("<no value>", "");
    let document = yaml::parse_str(&output).map_err(|error| failed(error.to_string()))?;
    match document.map(|document| document.value) {
        Some(value) if value.is_object() => Ok(value),
        _ => Err(failed("what came out is no object".to_owned())),
    }
}

fn functions() -> FuncMap {
    let mut map = FuncMap::new();
    let to_json = |arguments: &[Go]| {
        let value = arguments.first().map(back).unwrap_or_default();
        Ok(Go::String(value.to_string().into()))
    };
    for name in ["toJson", "toJSON"] {
        map.insert(name.to_owned(), Arc::new(to_json));
    }
    map
}

// istio: the names of its own template and of those made from it.
fn names(description: &Description) -> Result<Map<String, Value>, BootstrapError> {
    let made = render(description)?;
    let at = |pointer: &str| made.pointer(pointer).cloned().unwrap_or_default();
    let node = node::node(description);
    let family = description.family();
    let (wildcard, localhost, lookup) = match family {
        Family::V4 => ("0.0.0.0", "127.0.0.1", "V4_ONLY"),
        Family::V6 => ("::", "::1", "V6_ONLY"),
        Family::Dual => ("0.0.0.0", "127.0.0.1", "ALL"),
    };
    let discovery = description.config_text("discoveryAddress").unwrap_or_default();
    let mut all = Map::new();
    let mut put = |name: &str, value: Value| {
        if !value.is_null() {
            all.insert(name.to_owned(), value);
        }
    };
    put("nodeID", node["id"].clone());
    put("nodeType", json!("sidecar"));
    put("cluster", node["cluster"].clone());
    put("metadata", node["metadata"].clone());
    put("meta_json_str", json!(node["metadata"].to_string()));
    for part in ["region", "zone", "sub_zone"] {
        put(part, node["locality"].get(part).cloned().unwrap_or_default());
    }
    put(
        "pilot_SAN",
        node["metadata"].get("PILOT_SAN").cloned().unwrap_or_default(),
    );
    put("config", Value::Object(description.proxy_config.clone()));
    put(
        "runtime_flags",
        json!(at("/layered_runtime/layers/0/static_layer").to_string()),
    );
    put("xds_type", at("/dynamic_resources/ads_config/api_type"));
    put("discovery_address", json!(discovery));
    put(
        "discovery_host",
        json!(discovery.rsplit_once(':').map_or(discovery, |(host, _)| host)),
    );
    put("localhost", json!(localhost));
    put("wildcard", json!(wildcard));
    put("dual_stack", json!(family == Family::Dual));
    if family == Family::Dual {
        put("additional_localhost", json!("::1"));
        put("additional_wildcard", json!("::"));
    }
    put("dns_lookup_family", json!(lookup));
    put("envoy_status_port", json!(description.ports.readiness));
    put("envoy_prometheus_port", json!(description.ports.prometheus));
    put("log_json", json!(description.log_as_json));
    put(
        "outlier_log_path",
        Some(&description.outlier_log_path)
            .filter(|path| !path.is_empty())
            .map_or(Value::Null, |path| json!(path)),
    );
    let socket = description.sds_socket.rsplit('/').next().unwrap_or_default();
    put("workload_identity_socket_file", json!(socket));
    put("connect_timeout", json!("1s"));
    put("metadata_discovery", json!(false));
    put("deferred_stats_creation", json!(true));
    put("bypass_overload_manager", json!(true));
    for (name, cluster) in [
        ("zipkin", "zipkin"),
        ("datadog", "datadog_agent"),
        ("envoy_metrics_service_address", "envoy_metrics_service"),
        ("envoy_accesslog_service_address", "envoy_accesslog_service"),
    ] {
        put(name, collector(&made, cluster));
    }
    for (name, kind) in [
        ("inclusionPrefix", "/prefix"),
        ("inclusionSuffix", "/suffix"),
        ("inclusionRegexps", "/safe_regex/regex"),
    ] {
        put(name, kept(&made, kind));
    }
    Ok(all)
}

/// The address of a collector, as text for the place of an address in the template.
fn collector(made: &Value, name: &str) -> Value {
    let clusters = made
        .pointer("/static_resources/clusters")
        .and_then(Value::as_array);
    let found = clusters
        .into_iter()
        .flatten()
        .find(|cluster| cluster["name"] == name);
    let place = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address";
    let address = found.and_then(|cluster| cluster.pointer(place));
    address.map_or(Value::Null, |address| json!(address.to_string()))
}

/// Statistics that are kept, of one way to name them; those every template names itself are left out.
fn kept(made: &Value, pointer: &str) -> Value {
    let patterns = made.pointer("/stats_config/stats_matcher/inclusion_list/patterns");
    let texts = patterns.and_then(Value::as_array).into_iter().flatten();
    texts
        .filter_map(|pattern| pattern.pointer(pointer).cloned())
        .filter(|text| !["reporter=", "component", "istio"].iter().any(|own| text == own))
        .collect()
}

/// As Go sees it: fields of objects also under the names of Go's fields.
fn go(value: &Value) -> Go {
    match value {
        Value::Null => Go::Nil,
        Value::Bool(flag) => Go::Bool(*flag),
        Value::Number(number) => number
            .as_i64()
            .map_or_else(|| Go::Float(number.as_f64().unwrap_or_default()), Go::Int),
        Value::String(text) => Go::String(text.as_str().into()),
        Value::Array(items) => Go::List(items.iter().map(go).collect()),
        Value::Object(fields) => {
            let mut map: BTreeMap<Arc<str>, Go> = BTreeMap::new();
            for (key, value) in fields {
                let mut letters = key.chars();
                if let Some(first) = letters.next().filter(char::is_ascii_lowercase) {
                    let field = format!("{}{}", first.to_ascii_uppercase(), letters.as_str());
                    map.entry(field.into()).or_insert_with(|| go(value));
                }
                map.insert(key.as_str().into(), go(value));
            }
            Go::Map(Arc::new(map))
        }
    }
}

/// Back, without the names that were added.
fn back(value: &Go) -> Value {
    match value {
        Go::Bool(flag) => json!(flag),
        Go::Int(number) => json!(number),
        Go::Uint(number) => json!(number),
        Go::Float(number) => json!(number),
        Go::String(text) => json!(&**text),
        Go::List(items) => items.iter().map(back).collect(),
        Go::Map(map) => {
            let added = |key: &str| {
                let mut letters = key.chars();
                letters.next().is_some_and(|first| {
                    let original = format!("{}{}", first.to_ascii_lowercase(), letters.as_str());
                    first.is_ascii_uppercase() && map.contains_key(original.as_str())
                })
            };
            let fields = map.iter().filter(|(key, _)| !added(key));
            Value::Object(
                fields
                    .map(|(key, value)| (key.to_string(), back(value)))
                    .collect(),
            )
        }
        _ => Value::Null,
    }
}
