//! A mesh that a Kubernetes cluster describes, and webhooks that serve it.
//!
//! [`world`] turns objects into documents of the mesh and `sources` into rules of the webhooks, both without IO.
//! `watch` brings the objects, `tokens` asks the API server who a caller is, `keep` writes what the control
//! plane keeps in the cluster. `plane` ties them together.
//!
//! Several control planes may run at once: they share the root certificate and write the same things.

mod keep;
mod plane;
mod pod;
mod policy;
mod service;
mod slice;
mod sources;
mod tokens;
mod watch;
pub mod world;

pub use keep::KeepError;
pub use plane::{Cluster, Notice, Settings, StartError};
pub use sources::SourceError;
pub use world::{Kind, World};
