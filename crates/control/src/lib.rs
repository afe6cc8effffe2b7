//! The control plane: tells proxies what the mesh looks like and gives workloads their certificates.
//!
//! Today the mesh is described by files ([`mesh`], read by [`files`] and again whenever they change). [`plane`] serves
//! it: discovery and the certificate authority over TLS on one port, callers known by tokens ([`token`], pluggable).
//!
//! Promises: a description that cannot be read whole is not served at all, the last good one stays in force; proxies
//! are sent only what changed; a certificate names whom the token belongs to, whatever the request says.

mod certificates;
mod chain;
pub mod config;
pub mod files;
pub mod fuzz;
pub mod install;
pub mod kubernetes;
pub mod mesh;
pub mod plane;
pub mod policy;
mod root_files;
pub mod status;
mod tls;
pub mod token;
pub mod webhook;

pub use config::Config;
pub use plane::{Notice, Plane, PlaneError};
