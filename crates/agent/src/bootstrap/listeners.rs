//! Static listeners, independent of the control plane: metrics and readiness.
//!
//! Neither counts as load: an Envoy that sheds connections must still answer its probes.

use super::clusters::{ADMIN, AGENT};
use super::{Description, Family, socket_address};
use serde_json::{Value, json};

pub(super) fn all(description: &Description) -> Vec<Value> {
    let compressors = ["brotli", "zstd", "gzip"].map(compressor).to_vec();
    vec![
        listener(
            description,
            description.ports.prometheus,
            &chain("stats", "/stats/prometheus", ADMIN, compressors),
        ),
        listener(
            description,
            description.ports.readiness,
            &chain("agent", "/healthz/ready", AGENT, Vec::new()),
        ),
    ]
}

fn listener(description: &Description, port: u16, chain: &Value) -> Value {
    let wildcard = match description.family() {
        Family::V6 => "::",
        Family::V4 | Family::Dual => "0.0.0.0",
    };
    let mut listener = json!({
        "name": format!("{wildcard}_{port}"),
        "address": socket_address(wildcard, port),
        "filter_chains": [chain],
        "ignore_global_conn_limit": true,
        "bypass_overload_manager": true,
    });
    if description.family() == Family::Dual {
        listener["additional_addresses"] = json!([{"address": socket_address("::", port)}]);
    }
    listener
}

fn chain(name: &str, prefix: &str, cluster: &str, mut filters: Vec<Value>) -> Value {
    filters.push(json!({
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
    }));
    // Envoy's default route timeout of 15 s is disabled: a client may wait longer for readiness, and sets its own limit.
    let host = json!({
        "name": "backend",
        "domains": ["*"],
        "routes": [{"match": {"prefix": prefix}, "route": {"cluster": cluster, "timeout": "0s"}}],
    });
    json!({"filters": [{
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type":
                "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "codec_type": "AUTO",
            "stat_prefix": name,
            "route_config": {"virtual_hosts": [host]},
            "http_filters": filters,
        },
    }]})
}

fn compressor(name: &str) -> Value {
    let message = match name {
        "brotli" => "Brotli",
        "zstd" => "Zstd",
        _ => "Gzip",
    };
    let library = format!("type.googleapis.com/envoy.extensions.compression.{name}.compressor.v3.{message}");
    json!({
        "name": "envoy.filters.http.compressor",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.compressor.v3.Compressor",
            "compressor_library": {"name": "text_optimized", "typed_config": {"@type": library}},
            "response_direction_config": {"remove_accept_encoding_header": true},
        },
    })
}
