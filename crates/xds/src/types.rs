//! Type URLs of the resources.

/// Workloads and services ([`crate::proto::workload::Address`]).
pub const ADDRESS: &str = "type.googleapis.com/istio.workload.Address";

/// Policies ([`crate::proto::security::Authorization`]).
pub const AUTHORIZATION: &str = "type.googleapis.com/istio.security.Authorization";

/// Certificates and roots for Envoy ([`crate::proto::tls::Secret`]).
pub const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";

/// Envoy's clusters.
pub const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// Envoy's listeners.
pub const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";

/// Names and their addresses, for the agent's DNS.
pub const NAME_TABLE: &str = "type.googleapis.com/istio.networking.nds.v1.NameTable";

/// Configuration of the agent itself.
pub const PROXY_CONFIG: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";

/// Health of a workload that is not a pod (for example a VM).
pub const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";
