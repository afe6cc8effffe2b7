//! A mesh that a Kubernetes cluster describes, and webhooks that serve it.
//!
//! [`world`] turns objects into documents of the mesh and `sources` into rules of the webhooks, both without IO.
//! `watch` brings the objects, `tokens` asks the API server who a caller is (and `beside` whom it may speak for),
//! `follower` keeps discovery and rules in step, `keeper` has the cluster keep what the control plane needs there
//! (`keep` writes it, `root` decides about the root certificate without IO), `status_writer` writes the status conditions
//! that `conditions` decides without IO. `plane` ties them together.
//!
//! Several control planes may run at once, and nobody is elected: each write is one that all of them would make, or one
//! that only the first can make because it names the version it is based on.

mod beside;
mod conditions;
mod follower;
mod keep;
mod keeper;
mod plane;
mod pod;
mod pods;
mod policies;
mod root;
mod service;
mod shared;
mod slice;
mod sources;
mod status_writer;
mod tokens;
mod watch;
pub mod world;

pub use keep::KeepError;
pub use plane::{Cluster, Notice, Settings, StartError};
pub use policies::Report;
pub use sources::SourceError;
pub use world::{Kind, World};
