//! Admission webhooks: `/inject` changes pods before they exist, `/check` judges what came of them, `/policy` judges
//! Istio's policies.
//!
//! What is decided is decided without IO: [`review`] reads the API server's question and writes the answer,
//! [`variables`] reads the path, [`mutate`] injects, [`judge`] runs the start-up model, [`policy`] reads policies.
//! [`server`] carries bytes.
//!
//! Promises: every question that can be read is answered with its uid and version; a mistake refuses that pod with a
//! sentence a person can act on, and no other; the rules of an answer are those in force when the question came; a
//! question may be asked twice (`reinvocationPolicy: IfNeeded`) and the second answer restores the order after other
//! webhooks.

pub mod counts;
pub mod judge;
pub mod mutate;
pub mod nodes;
pub mod policy;
pub mod review;
pub mod server;
pub mod variables;

pub use counts::Counts;
pub use judge::Enforcement;
pub use nodes::{Native, Node};
pub use server::{Limits, Webhook};

use remora_inject::{Settings, otel};

/// What pods are injected with and judged by. Built anew when any of its sources changes.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Mesh configuration, values, templates.
    pub settings: Settings,
    /// Instrumentations, and the namespaces' annotations and labels.
    pub inventory: otel::Inventory,
    /// Whether sidecars are native.
    pub native: Native,
    /// Whether a pod that will not start is refused.
    pub enforcement: Enforcement,
    /// The mesh that policies belong to.
    pub policies: crate::policy::Mesh,
}
