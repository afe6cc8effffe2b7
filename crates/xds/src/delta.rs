//! The delta xDS protocol without IO.
//!
//! The caller drives both sides: events go in, messages to send come out.

mod client;
#[cfg(test)]
mod limits_tests;
mod resource;
mod response;
mod server;
#[cfg(test)]
mod simulation;
mod snapshot;

pub use client::{Change, Client, Interest, Received};
pub use resource::{Audience, Encoded, Versioned, View};
pub use response::Response;
pub use server::{LimitExceeded, Server};
pub use snapshot::{Amendment, Snapshot};

/// The name that subscribes to every resource of a type.
pub const WILDCARD: &str = "*";
