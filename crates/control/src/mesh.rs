//! The mesh as people describe it, and as proxies are told.

mod policy;
mod service;
mod workload;

pub use policy::{Action, Match, Policy, Rule, Scope};
pub use service::{Service, ServicePort};
pub use workload::{Tunnel, Workload};

use remora_xds::Message;
use remora_xds::delta::{Snapshot, Versioned};
use remora_xds::server::Snapshots;
use remora_xds::types::{ADDRESS, AUTHORIZATION};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// One document of a mesh description.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind")]
pub enum Document {
    /// Something that runs.
    Workload(Workload),
    /// A name and addresses for several of them.
    Service(Service),
    /// Who may connect.
    Policy(Policy),
}

/// A description that contradicts itself or cannot be expressed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    /// Two documents for the same thing.
    #[error("{name} is described twice")]
    Twice {
        /// Which.
        name: String,
    },
    /// An address range that is none.
    #[error("{text} is no address range")]
    Range {
        /// As written.
        text: String,
    },
    /// A port mapping that is none.
    #[error("{text} is no port mapping like 80:8080")]
    Ports {
        /// As written.
        text: String,
    },
    /// A policy that would select nothing, or be dropped by proxies.
    #[error("policy {name} has a rule without any condition")]
    EmptyRule {
        /// Which.
        name: String,
    },
}

/// Encodes documents for proxies. The trust domain is the one of workloads that name none.
pub fn encode(documents: &[Document], trust_domain: &str) -> Result<Snapshots, MeshError> {
    let mut addresses = BTreeMap::new();
    let mut policies = BTreeMap::new();
    for document in documents {
        let (kind, name, resource) = match document {
            Document::Workload(workload) => (
                &mut addresses,
                workload.uid(),
                versioned(&workload.encode(trust_domain)?, workload.aliases()),
            ),
            Document::Service(service) => (
                &mut addresses,
                service.key(),
                versioned(&service.encode(), service.aliases()),
            ),
            Document::Policy(policy) => (
                &mut policies,
                policy.key(),
                versioned(&policy.encode()?, Vec::new()),
            ),
        };
        match kind.entry(name) {
            Entry::Vacant(free) => drop(free.insert(resource)),
            Entry::Occupied(taken) => {
                return Err(MeshError::Twice {
                    name: taken.key().clone(),
                });
            }
        }
    }
    Ok(BTreeMap::from([
        (ADDRESS, Snapshot::new(addresses)),
        (AUTHORIZATION, Snapshot::new(policies)),
    ]))
}

/// The version is a fingerprint of the content: the same after a restart of the control plane.
fn versioned(message: &impl Message, aliases: Vec<String>) -> Arc<Versioned> {
    let bytes = message.encode_to_vec();
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    Arc::new(Versioned {
        version: format!("{:016x}", hasher.finish()),
        bytes,
        aliases,
    })
}

fn octets(address: std::net::IpAddr) -> Vec<u8> {
    match address {
        std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
        std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// `NETWORK/ADDRESS`, by which an address can be asked for.
fn alias(network: &str, address: std::net::IpAddr) -> String {
    format!("{network}/{address}")
}

#[cfg(test)]
mod tests;
