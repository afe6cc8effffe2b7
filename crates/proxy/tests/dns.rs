//! Names: what is decided about any message, how name servers are asked, and a pod whose real resolver is captured.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking; the helpers of this file are tests too"
)]

#[path = "dns/pod.rs"]
mod pod;
#[path = "dns/properties.rs"]
mod properties;
#[path = "dns/servers.rs"]
mod servers;
#[path = "dns/wire.rs"]
mod wire;
