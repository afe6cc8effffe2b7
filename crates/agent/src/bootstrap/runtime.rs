//! Switches of Envoy's runtime, and what it does when it is overloaded.

use super::Description;
use serde_json::{Map, Value, json};

const CONNECTION_LIMIT: &str = "overload.global_downstream_max_connections";
/// Value that means no limit.
const NO_LIMIT: u64 = 2_147_483_647;

pub(super) fn layers(description: &Description) -> Value {
    json!({"layers": [
        {"name": "global config", "static_layer": values(description)},
        {"name": "admin", "admin_layer": {}},
    ]})
}

/// Istio's defaults, changed by the `ProxyConfig`: an empty string removes a default.
fn values(description: &Description) -> Map<String, Value> {
    let mut values = defaults();
    let configured = description.config(&["runtimeValues"]).and_then(Value::as_object);
    for (name, value) in configured.into_iter().flatten() {
        match value.as_str() {
            Some("") => {
                values.remove(name);
            }
            Some("true") => {
                values.insert(name.clone(), json!(true));
            }
            Some("false") => {
                values.insert(name.clone(), json!(false));
            }
            _ => {
                values.insert(name.clone(), value.clone());
            }
        }
    }
    // The limit is a resource of the overload manager, not a switch.
    values.remove(CONNECTION_LIMIT);
    values
}

// istio: the values its bootstrap starts from.
fn defaults() -> Map<String, Value> {
    [
        ("re2.max_program_size.error_level", json!("32768")),
        (
            "envoy.deprecated_features:envoy.config.listener.v3.Listener.hidden_envoy_deprecated_use_original_dst",
            json!(true),
        ),
        ("envoy.reloadable_features.http_reject_path_with_fragment", json!(false)),
        ("envoy.reloadable_features.fixed_heap_use_allocated", json!(true)),
        (
            "envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update",
            json!(false),
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .collect()
}

/// How many connections from outside there may be at a time.
pub(super) fn overload(description: &Description) -> Value {
    let named = description.node.metadata.get("GLOBAL_DOWNSTREAM_MAX_CONNECTIONS");
    let configured = description.config(&["runtimeValues", CONNECTION_LIMIT]);
    let limit = [named, configured]
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .find_map(|text| text.trim().parse::<u64>().ok())
        .filter(|limit| *limit > 0)
        .unwrap_or(NO_LIMIT);
    json!({"resource_monitors": [{
        "name": "envoy.resource_monitors.global_downstream_max_connections",
        "typed_config": {
            "@type":
                "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
            "max_active_downstream_connections": limit.to_string(),
        },
    }]})
}
