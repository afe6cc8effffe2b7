//! xDS: the messages, the delta protocol as two state machines without IO, and their gRPC transport.
//!
//! [`delta::Client`] and [`delta::Server`] decide what to send when something arrives; they have no sockets, no
//! timers and no tasks, so tests drive them through thousands of orders of events. [`client`] and [`server`] carry their
//! messages over gRPC. [`raw`] forwards messages without decoding them.
//!
//! The crate does not interpret resources: a resource is a name, a version and bytes.

pub mod affinity;
pub mod client;
pub mod csr_metadata;
pub mod delta;
pub mod fuzz;
pub mod raw;
pub mod server;
pub mod types;

/// Generated from `proto/`: same packages, names and numbers as the peers use.
#[expect(
    missing_docs,
    clippy::pedantic,
    clippy::large_enum_variant,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]
pub mod proto {
    pub mod discovery {
        tonic::include_proto!("envoy.service.discovery.v3");
    }
    pub mod workload {
        tonic::include_proto!("istio.workload");
    }
    pub mod security {
        tonic::include_proto!("istio.security");
    }
    pub mod certificate {
        tonic::include_proto!("istio.v1.auth");
    }
    pub mod secret {
        tonic::include_proto!("envoy.service.secret.v3");
    }
    pub mod tls {
        tonic::include_proto!("envoy.extensions.transport_sockets.tls.v3");
    }
}

pub use prost::Message;
