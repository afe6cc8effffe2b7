//! `remora proxy sidecar --proxy envoy` as a process, with a real Envoy where its program is at hand: a pod in a
//! namespace of its own, and a control plane beside it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod envoy {
    mod life;
    mod plane;
    mod protos;
    mod scene;
    mod traffic;
}
#[path = "sidecar/process.rs"]
#[allow(dead_code, reason = "shared with the tests of the built-in proxy")]
mod process;
