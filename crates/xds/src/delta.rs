//! The incremental protocol without IO.
//!
//! Both sides are driven from outside: something happened goes in, messages to send come out.

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

/// Stands for everything in a list of names.
pub const WILDCARD: &str = "*";
