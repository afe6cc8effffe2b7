//! Real packets through real rules, in network namespaces made by the tests.
//!
//! Needs root, and the programs of Debian's packages `iptables` and `nftables` for the tests that compare
//! with them. A test that lacks something fails and says what.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; the helpers of this file are tests too"
)]

#[path = "kernel/bench_pod.rs"]
mod bench_pod;
#[path = "kernel/classic.rs"]
mod classic;
#[path = "kernel/differential.rs"]
mod differential;
#[path = "kernel/lifecycle.rs"]
mod lifecycle;
#[path = "kernel/switch.rs"]
mod switch;
#[path = "kernel/traffic.rs"]
mod traffic;
