//! The kinds of resources, by their type URLs.

/// Workloads and services ([`crate::proto::workload::Address`]).
pub const ADDRESS: &str = "type.googleapis.com/istio.workload.Address";

/// Policies ([`crate::proto::security::Authorization`]).
pub const AUTHORIZATION: &str = "type.googleapis.com/istio.security.Authorization";
