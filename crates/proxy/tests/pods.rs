//! Two pods with real capture rules, two proxies, and applications that know of neither.
//!
//! Everything happens in network namespaces made here. Without the rights for that the tests fail.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking; the helpers of this file are tests too"
)]

#[path = "pods/drain.rs"]
mod drain;
#[path = "pods/endpoints.rs"]
mod endpoints;
#[path = "pods/envoy.rs"]
mod envoy;
#[path = "pods/inbound.rs"]
mod inbound;
#[path = "pods/limits.rs"]
mod limits;
#[path = "pods/load.rs"]
mod load;
#[path = "pods/policy.rs"]
mod policy;
#[path = "pods/scene.rs"]
#[allow(dead_code, reason = "shared with other tests, which use the rest")]
mod scene;
#[path = "pods/telemetry.rs"]
mod telemetry;
#[path = "pods/tproxy.rs"]
mod tproxy;
#[path = "pods/traffic.rs"]
mod traffic;
#[path = "pods/tunnel.rs"]
mod tunnel;
