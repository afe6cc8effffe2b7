//! `remora proxy sidecar --proxy envoy` as a process, with a real Envoy where its program is at hand: a pod in a
//! namespace of its own, and a control plane beside it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "envoy/agent.rs"]
mod agent;
#[path = "envoy/faults.rs"]
mod faults;
#[path = "envoy/last_good.rs"]
mod last_good;
#[path = "envoy/life.rs"]
mod life;
#[path = "envoy/plane.rs"]
mod plane;
#[path = "sidecar/process.rs"]
#[allow(dead_code, reason = "shared with the tests of the built-in proxy")]
mod process;
#[path = "envoy/protos.rs"]
mod protos;
#[path = "envoy/scene.rs"]
#[allow(dead_code, reason = "shared with a bench")]
mod scene;
#[path = "envoy/traffic.rs"]
mod traffic;
