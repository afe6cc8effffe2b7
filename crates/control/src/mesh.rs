//! The mesh as people describe it, and as proxies are told.

mod policy;
mod service;
mod workload;

pub(crate) use policy::is_range;
pub use policy::{Action, Match, Policy, Rule, Scope, Translation};
pub use remora_xds::server::Snapshots;
pub use service::{Affinity, Distribution, InternalPolicy, Protocol, Service, ServicePort, Visibility};
pub use workload::{Tunnel, Workload};

use remora_xds::Message;
use remora_xds::delta::{Amendment, Audience, Snapshot, Versioned};
use remora_xds::types::{ADDRESS, AUTHORIZATION};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};

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
    /// An account that is none.
    #[error("{text} is no account like NAMESPACE/ACCOUNT")]
    Account {
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

/// What a document is called: one name, one document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// Of a workload (its uid) or a service (`NAMESPACE/HOSTNAME`).
    Address(String),
    /// Of a policy, `NAMESPACE/NAME`.
    Policy(String),
}

impl Document {
    /// What it is called.
    pub fn name(&self) -> Name {
        match self {
            Self::Workload(workload) => Name::Address(workload.uid()),
            Self::Service(service) => Name::Address(service.key()),
            Self::Policy(policy) => Name::Policy(policy.key()),
        }
    }

    fn resource(&self, trust_domain: &str) -> Result<Versioned, MeshError> {
        let audience = self.audience();
        Ok(match self {
            Self::Workload(workload) => {
                versioned(&workload.encode(trust_domain)?, workload.aliases(), audience)
            }
            Self::Service(service) => versioned(&service.encode(), service.aliases(), audience),
            Self::Policy(policy) => versioned(&policy.encode()?, Vec::new(), audience),
        })
    }

    /// Which sidecars are told. Policies are needed where they are kept; who calls has to ask anyway.
    pub(crate) fn audience(&self) -> Audience {
        let (namespace, private) = match self {
            Self::Workload(workload) => (&workload.namespace, workload.visibility == Visibility::Namespace),
            Self::Service(service) => (&service.namespace, service.visibility == Visibility::Namespace),
            Self::Policy(policy) => {
                let own = policy.scope != Scope::Global && policy.visibility == Visibility::Namespace;
                (&policy.namespace, own)
            }
        };
        if private {
            Audience::Namespace(namespace.as_str().into())
        } else {
            Audience::Everyone
        }
    }
}

/// Resources by name, by type.
#[derive(Default)]
struct Resources {
    addresses: BTreeMap<String, Versioned>,
    policies: BTreeMap<String, Versioned>,
}

impl Resources {
    fn entry(&mut self, name: Name) -> Entry<'_, String, Versioned> {
        match name {
            Name::Address(name) => self.addresses.entry(name),
            Name::Policy(name) => self.policies.entry(name),
        }
    }

    fn snapshots(self) -> Snapshots {
        BTreeMap::from([
            (ADDRESS, Snapshot::new(self.addresses)),
            (AUTHORIZATION, Snapshot::new(self.policies)),
        ])
    }
}

/// Encodes documents for proxies. The trust domain is the one of workloads that name none.
pub fn encode(documents: &[Document], trust_domain: &str) -> Result<Snapshots, MeshError> {
    let mut resources = Resources::default();
    for document in documents {
        match resources.entry(document.name()) {
            Entry::Vacant(free) => drop(free.insert(document.resource(trust_domain)?)),
            Entry::Occupied(taken) => {
                return Err(MeshError::Twice {
                    name: taken.key().clone(),
                });
            }
        }
    }
    Ok(resources.snapshots())
}

/// The snapshots with some documents added, exchanged or taken away, and what could not be expressed: what was served
/// under that name stays, except a policy, which is replaced by one that admits nothing. Documents are taken one by one and not kept: a large mesh is never in memory twice.
pub fn amend(
    now: &Snapshots,
    changes: impl IntoIterator<Item = (Name, Option<Document>)>,
    trust_domain: &str,
) -> (Snapshots, Vec<(Name, MeshError)>) {
    let begin = |url| now.get(url).cloned().unwrap_or_default().amend();
    let (mut addresses, mut policies) = (begin(ADDRESS), begin(AUTHORIZATION));
    let mut refused = Vec::new();
    for (name, document) in changes {
        let resource = document.as_ref().map(|document| document.resource(trust_domain));
        match (resource.transpose(), &name) {
            (Ok(resource), Name::Address(name)) => addresses.exchange(name, resource),
            (Ok(resource), Name::Policy(name)) => policies.exchange(name, resource),
            (Err(error), _) => {
                let stand_in = document.as_ref().and_then(|document| stand_in(document, &error));
                if let (Name::Policy(name), Some(stand_in)) = (&name, stand_in) {
                    policies.exchange(name, stand_in.resource(trust_domain).ok());
                }
                refused.push((name, error));
            }
        }
    }
    let next = [(ADDRESS, addresses), (AUTHORIZATION, policies)].map(finished);
    (next.into(), refused)
}

/// A policy that is not served leaves workloads open, or lets them wait for it.
fn stand_in(document: &Document, error: &MeshError) -> Option<Document> {
    match document {
        Document::Policy(policy) => Some(Document::Policy(policy.stand_in(error))),
        Document::Workload(_) | Document::Service(_) => None,
    }
}

fn finished((url, amendment): (&'static str, Amendment)) -> (&'static str, Snapshot) {
    (url, amendment.finish())
}

/// The version is a fingerprint of the content: the same after a restart of the control plane.
fn versioned(message: &impl Message, aliases: Vec<String>, audience: Audience) -> Versioned {
    let bytes = message.encode_to_vec();
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    Versioned {
        version: format!("{:016x}", hasher.finish()),
        bytes,
        aliases,
        audience,
    }
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
