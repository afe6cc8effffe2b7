//! Collectors of traces and metrics that the bootstrap names: Zipkin, Datadog, statsd, Envoy's metrics and access log
//! services. Tracing that telemetry resources ask for comes from the control plane instead.

use super::{BootstrapError, Description, socket_address};
use serde_json::{Value, json};

const ZIPKIN: &str = "zipkin";
const DATADOG: &str = "datadog_agent";
const METRICS: &str = "envoy_metrics_service";
const ACCESS_LOG: &str = "envoy_accesslog_service";

const ZIPKIN_ADDRESS: &[&str] = &["tracing", "zipkin", "address"];
const DATADOG_ADDRESS: &[&str] = &["tracing", "datadog", "address"];
const METRICS_ADDRESS: &[&str] = &["envoyMetricsService", "address"];
const ACCESS_LOG_ADDRESS: &[&str] = &["envoyAccessLogService", "address"];

/// A collector that the `ProxyConfig` names.
pub(super) struct Collector {
    /// Name of its cluster.
    pub(super) name: &'static str,
    /// Where it is.
    pub(super) address: Value,
    /// Whether the collector uses HTTP/2.
    pub(super) http2: bool,
}

/// Those for which a cluster is needed.
pub(super) fn collectors(description: &Description) -> Result<Vec<Collector>, BootstrapError> {
    let mut found = Vec::new();
    for (name, path, http2) in [
        (ZIPKIN, ZIPKIN_ADDRESS, false),
        (DATADOG, DATADOG_ADDRESS, false),
        (METRICS, METRICS_ADDRESS, true),
        (ACCESS_LOG, ACCESS_LOG_ADDRESS, true),
    ] {
        let address = address(description, path)?;
        found.extend(address.map(|address| Collector { name, address, http2 }));
    }
    Ok(found)
}

/// The tracer of listeners that name none; null for none.
pub(super) fn tracer(description: &Description, node: &Value) -> Result<Value, BootstrapError> {
    let http = if address(description, ZIPKIN_ADDRESS)?.is_some() {
        json!({"name": "envoy.tracers.zipkin", "typed_config": {
            "@type": "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig",
            "collector_cluster": ZIPKIN,
            "collector_endpoint": "/api/v2/spans",
            "collector_endpoint_version": "HTTP_JSON",
            "trace_id_128bit": true,
            "shared_span_context": false,
        }})
    } else if address(description, DATADOG_ADDRESS)?.is_some() {
        json!({"name": "envoy.tracers.datadog", "typed_config": {
            "@type": "type.googleapis.com/envoy.config.trace.v3.DatadogConfig",
            "collector_cluster": DATADOG,
            "service_name": node["cluster"],
        }})
    } else {
        return Ok(Value::Null);
    };
    Ok(json!({"http": http}))
}

/// Where statistics are pushed to; null for nowhere.
pub(super) fn sinks(description: &Description) -> Result<Value, BootstrapError> {
    let mut sinks = Vec::new();
    if address(description, METRICS_ADDRESS)?.is_some() {
        sinks.push(
            json!({"name": "envoy.stat_sinks.metrics_service", "typed_config": {
                "@type": "type.googleapis.com/envoy.config.metrics.v3.MetricsServiceConfig",
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": METRICS}},
            }}),
        );
    }
    if let Some(mut address) = address(description, &["statsdUdpAddress"])? {
        address["socket_address"]["protocol"] = json!("UDP");
        sinks.push(json!({"name": "envoy.stat_sinks.statsd", "typed_config": {
            "@type": "type.googleapis.com/envoy.config.metrics.v3.StatsdSink",
            "address": address,
        }}));
    }
    if sinks.is_empty() {
        return Ok(Value::Null);
    }
    Ok(json!(sinks))
}

/// `host:port` somewhere in the `ProxyConfig`, if there is something.
fn address(description: &Description, path: &[&str]) -> Result<Option<Value>, BootstrapError> {
    let text = description.config(path).and_then(Value::as_str);
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let parts = text.rsplit_once(':').and_then(|(host, port)| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port: u16 = port.parse().ok()?;
        (!host.is_empty()).then_some((host, port))
    });
    match parts {
        Some((host, port)) => Ok(Some(socket_address(host, port))),
        None => Err(BootstrapError::Address {
            field: path.join("."),
            value: text.to_owned(),
        }),
    }
}
