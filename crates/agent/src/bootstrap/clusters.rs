//! Static clusters, which Envoy can reach before discovery: itself, the agent, collectors.

use super::{BootstrapError, Description, Family, socket_address, tracing};
use serde_json::{Value, json};

/// Discovery, through the agent.
pub(super) const XDS: &str = "xds-grpc";
const SDS: &str = "sds-grpc";
/// Envoy's own administration, for its metrics.
pub(super) const ADMIN: &str = "prometheus_stats";
/// The agent's status port.
pub(super) const AGENT: &str = "agent";

pub(super) fn all(description: &Description) -> Result<Vec<Value>, BootstrapError> {
    let local = |port| socket_address(description.loopback(), port);
    let mut clusters = vec![
        cluster(ADMIN, "STATIC", "0.250s", &local(description.ports.admin)),
        cluster(AGENT, "STATIC", "0.250s", &local(description.ports.status)),
        over_http2(cluster(SDS, "STATIC", "1s", &pipe(&description.sds_socket))),
        discovery(&description.xds_socket),
    ];
    for collector in tracing::collectors(description)? {
        let cluster = cluster(collector.name, "STRICT_DNS", "1s", &collector.address);
        let cluster = looked_up(cluster, description);
        clusters.push(if collector.http2 {
            over_http2(cluster)
        } else {
            cluster
        });
    }
    Ok(clusters)
}

fn discovery(path: &str) -> Value {
    let limits = |priority: &str| {
        json!({
            "priority": priority,
            "max_connections": 100_000, "max_pending_requests": 100_000, "max_requests": 100_000,
        })
    };
    let mut cluster = over_http2(cluster(XDS, "STATIC", "1s", &pipe(path)));
    cluster["circuit_breakers"] = json!({"thresholds": [limits("DEFAULT"), limits("HIGH")]});
    cluster["upstream_connection_options"] = json!({"tcp_keepalive": {"keepalive_time": 300}});
    // One stream a connection: the end of a stream is then never the end of another's connection.
    cluster["max_requests_per_connection"] = json!(1);
    cluster
}

fn cluster(name: &str, kind: &str, connect_timeout: &str, address: &Value) -> Value {
    json!({
        "name": name,
        "alt_stat_name": format!("{name};"),
        "type": kind,
        "connect_timeout": connect_timeout,
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    })
}

fn over_http2(mut cluster: Value) -> Value {
    cluster["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        },
    });
    cluster
}

fn looked_up(mut cluster: Value, description: &Description) -> Value {
    let family = match description.family() {
        Family::V4 => "V4_ONLY",
        Family::V6 => "V6_ONLY",
        Family::Dual => "ALL",
    };
    cluster["dns_lookup_family"] = json!(family);
    cluster["respect_dns_ttl"] = json!(true);
    cluster["dns_refresh_rate"] = json!("30s");
    cluster
}

fn pipe(path: &str) -> Value {
    json!({"pipe": {"path": path}})
}
