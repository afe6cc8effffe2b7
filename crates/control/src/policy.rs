//! Istio's `AuthorizationPolicy` and `PeerAuthentication`, translated into what a proxy enforces. Pure, no IO.
//!
//! A document is read with an allow-list. A field that is unknown, has the wrong type, is empty or has a value that
//! cannot be parsed is a [`Problem`], and the translation becomes stricter:
//!
//! * an ALLOW rule with a problem allows nothing;
//! * a DENY rule matches as if the condition with the problem were absent, so it denies more;
//! * a policy whose action is not known denies everything;
//! * a `PeerAuthentication` with a problem demands mutual TLS.
//!
//! A policy is never dropped because of a problem, and never opens more than its author wrote. Conditions on HTTP
//! requests are well-formed, but a proxy of connections cannot see them: they are reported and treated the same way,
//! as ztunnel documents it.

mod attribute;
pub mod authorization;
pub mod peer_authentication;
pub mod problem;
mod reader;

pub use authorization::Authorization;
pub use peer_authentication::PeerAuthentication;
pub use problem::{Consequence, Fault, Problem};

use remora_mtls::TrustDomains;
use remora_pod::object;
use serde_json::Value;

/// The mesh that policies belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mesh {
    /// Policies of this namespace apply to workloads of all namespaces.
    pub root_namespace: String,
    /// The trust domain and its aliases, which principals in policies may name.
    pub trust_domains: TrustDomains,
}

impl Default for Mesh {
    // istio: the root namespace and the trust domain unless others are configured.
    fn default() -> Self {
        Self {
            root_namespace: "istio-system".to_owned(),
            trust_domains: TrustDomains::default(),
        }
    }
}

/// The API group of both kinds.
pub const GROUP: &str = "security.istio.io";

/// The problems of a document, if it is a policy.
pub fn problems(document: &Value, mesh: &Mesh) -> Option<Vec<Problem>> {
    let api_version = document.get("apiVersion").and_then(Value::as_str)?;
    if api_version.split('/').next() != Some(GROUP) {
        return None;
    }
    match object::kind(document) {
        "AuthorizationPolicy" => Some(authorization::translate(document, mesh).problems),
        "PeerAuthentication" => Some(peer_authentication::read(document, &mesh.root_namespace).1),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
