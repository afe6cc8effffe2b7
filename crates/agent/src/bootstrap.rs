//! The bootstrap configuration of an Envoy: a pure function from a description to JSON.
//!
//! What Istio's control plane and its dashboards rely on has the same names and values as in Istio's own bootstrap:
//! the node with its metadata, ports, clusters, listeners, which statistics exist and what their labels are called.
//! Only extensions of a stock Envoy are named, so every build of it starts.
//!
//! It reads no files, finds no addresses and merges no `ProxyConfig` documents; the caller supplies the effective values.

mod clusters;
mod grpc;
mod listeners;
mod node;
mod runtime;
mod stats;
mod template;
mod tracing;

pub use grpc::grpc;
pub use template::from_template;

use crate::settings::Node;
use serde_json::{Map, Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Why no bootstrap can be made.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// Not `host:port`.
    #[error("read {value:?} in {field} of the ProxyConfig as host:port")]
    Address {
        /// Path of the field.
        field: String,
        /// Value of the field.
        value: String,
    },
    /// The template fails, or its result is not a bootstrap.
    #[error("render the bootstrap template: {why}")]
    Template {
        /// The error.
        why: String,
    },
}

impl BootstrapError {
    /// How to fix it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Address { .. } => "give a host name or an address, a colon and a port",
            Self::Template { .. } => {
                "a template is Go template text that gives JSON, with the names of Istio's own; \
                 ISTIO_BOOTSTRAP_OVERRIDE changes single fields without one"
            }
        }
    }
}

/// Inputs of a bootstrap.
#[derive(Debug, Clone)]
pub struct Description {
    /// The xDS node of the pod.
    pub node: Node,
    /// Own addresses, the pod's first.
    pub addresses: Vec<IpAddr>,
    /// The `ProxyConfig` in force.
    pub proxy_config: Map<String, Value>,
    /// Ports of Envoy and of the agent.
    pub ports: Ports,
    /// Unix socket of the xDS proxy.
    pub xds_socket: String,
    /// Unix socket of the secrets.
    pub sds_socket: String,
    /// Delta xDS instead of state of the world.
    pub delta: bool,
    /// File for outlier ejection events; empty for none.
    pub outlier_log_path: String,
    /// Connections are counted to end early.
    pub exit_on_zero_active_connections: bool,
    /// Log lines as JSON.
    pub log_as_json: bool,
}

/// Ports of Envoy and the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// Administration, on loopback.
    pub admin: u16,
    /// The agent's status port.
    pub status: u16,
    /// Readiness, forwarded to the agent.
    pub readiness: u16,
    /// Metrics.
    pub prometheus: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            admin: 15000,
            status: 15020,
            readiness: 15021,
            prometheus: 15090,
        }
    }
}

/// Address families of the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4 only, or no address known.
    V4,
    /// IPv6 only.
    V6,
    /// IPv4 and IPv6.
    Dual,
}

impl Description {
    /// Address families of the pod.
    pub fn family(&self) -> Family {
        let six = self.addresses.iter().filter(|address| address.is_ipv6()).count();
        match (six, self.addresses.len() - six) {
            (0, _) => Family::V4,
            (_, 0) => Family::V6,
            _ => Family::Dual,
        }
    }

    /// Address of Envoy's admin interface.
    pub fn admin_address(&self) -> SocketAddr {
        let loopback = match self.family() {
            Family::V6 => IpAddr::from(Ipv6Addr::LOCALHOST),
            Family::V4 | Family::Dual => IpAddr::from(Ipv4Addr::LOCALHOST),
        };
        SocketAddr::new(loopback, self.ports.admin)
    }

    fn loopback(&self) -> &'static str {
        match self.family() {
            Family::V6 => "::1",
            Family::V4 | Family::Dual => "127.0.0.1",
        }
    }

    /// A text of the `ProxyConfig`, by its JSON name.
    fn config_text(&self, name: &str) -> Option<&str> {
        self.config(&[name])?.as_str().filter(|text| !text.is_empty())
    }

    /// Something in the `ProxyConfig`, by the names on the way to it.
    fn config(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        let value = self.proxy_config.get(*first)?;
        rest.iter().try_fold(value, |value, name| value.get(name))
    }

    /// A label or an annotation of the pod.
    fn pod_text(&self, kind: &str, name: &str) -> Option<&str> {
        self.node.metadata.get(kind)?.get(name)?.as_str()
    }
}

/// The whole bootstrap.
pub fn render(description: &Description) -> Result<Value, BootstrapError> {
    let node = node::node(description);
    let mut root = Map::new();
    let mut put = |name: &str, value: Value| {
        if !value.is_null() {
            root.insert(name.to_owned(), value);
        }
    };
    put("application_log_config", log_format(description));
    put("stats_config", stats::config(description));
    put("stats_sinks", tracing::sinks(description)?);
    put("tracing", tracing::tracer(description, &node)?);
    put("node", node);
    put("layered_runtime", runtime::layers(description));
    put("bootstrap_extensions", extensions());
    put("admin", admin(description));
    put("dynamic_resources", dynamic_resources(description));
    put(
        "static_resources",
        json!({"clusters": clusters::all(description)?, "listeners": listeners::all(description)}),
    );
    put("overload_manager", runtime::overload(description));
    put(
        "deferred_stat_options",
        json!({"enable_deferred_creation_stats": true}),
    );
    if !description.outlier_log_path.is_empty() {
        put(
            "cluster_manager",
            json!({"outlier_detection": {"event_log_path": description.outlier_log_path}}),
        );
    }
    Ok(Value::Object(root))
}

fn log_format(description: &Description) -> Value {
    if description.log_as_json {
        let line = json!({
            "level": "%l", "time": "%Y-%m-%dT%T.%fZ", "scope": "envoy %n", "msg": "%j", "caller": "%g:%#", "thread": "%t"
        });
        json!({"log_format": {"json_format": line}})
    } else {
        json!({"log_format": {"text_format": "%Y-%m-%dT%T.%fZ\t%l\tenvoy %n %g:%#\t%v\tthread=%t"}})
    }
}

/// Listeners inside Envoy, which configurations with tunnels use.
fn extensions() -> Value {
    json!([{
        "name": "envoy.bootstrap.internal_listener",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
            "buffer_size_kb": 64,
        },
    }])
}

fn admin(description: &Description) -> Value {
    json!({
        "access_log": [{
            "name": "envoy.access_loggers.file",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
                "path": "/dev/null",
            },
        }],
        "profile_path": "/var/lib/istio/data/envoy.prof",
        "address": socket_address(description.loopback(), description.ports.admin),
    })
}

/// Listeners and clusters come from the control plane, and are waited for: an Envoy without them is not ready.
fn dynamic_resources(description: &Description) -> Value {
    let source = json!({"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"});
    json!({
        "lds_config": source,
        "cds_config": source,
        "ads_config": {
            "api_type": if description.delta { "DELTA_GRPC" } else { "GRPC" },
            "set_node_on_first_message_only": true,
            "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": {"cluster_name": clusters::XDS}}],
        },
    })
}

fn socket_address(address: &str, port: u16) -> Value {
    json!({"socket_address": {"protocol": "TCP", "address": address, "port_value": port}})
}

#[cfg(test)]
mod tests;
