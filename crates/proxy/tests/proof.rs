//! What must hold when everything else does not: real clients and servers, hostile ones, great numbers, restarts,
//! faults.
//!
//! Everything happens in network namespaces made here. Without the rights for that the tests fail.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and says what it measured; the helpers of this file are tests too"
)]

#[path = "proof/crash.rs"]
mod crash;
#[path = "proof/ends.rs"]
mod ends;
#[path = "proof/expiry.rs"]
mod expiry;
#[path = "proof/hostile.rs"]
mod hostile;
#[path = "proof/interop.rs"]
mod interop;
#[path = "proof/lossless.rs"]
mod lossless;
#[path = "proof/matrix.rs"]
mod matrix;
#[path = "proof/peer.rs"]
mod peer;
#[path = "proof/plane.rs"]
mod plane;
#[path = "proof/pooling.rs"]
mod pooling;
#[path = "proof/process.rs"]
mod process;
#[path = "pods/scene.rs"]
#[allow(dead_code, reason = "shared with other tests, which use the rest")]
mod scene;
#[path = "proof/sizes.rs"]
mod sizes;
#[path = "proof/time.rs"]
mod time;
