//! The agent: PID 1 of a sidecar. It makes the sidecar ready, renews its certificate and stops it last.
//!
//! [`settings`] turns Istio's flags, environment and files into one value; [`sidecar`] runs it: sockets first, then
//! certificate and discovery at the same time, then connections. [`readiness`] can be queried at any time.
//!
//! Promises: readiness probes are answered from the start, with the missing stage. The exit code is 0 only after a
//! requested stop. Every wait has a timeout.

mod access;
mod application;
pub mod bootstrap;
mod certificates;
pub mod children;
pub mod client;
mod dial;
pub mod envoy;
mod fetch;
mod file_stamp;
pub mod flags;
mod health;
mod http;
pub mod kubelet;
mod log;
mod metrics;
mod output;
pub mod probes;
pub mod readiness;
pub mod scrape;
pub mod sds;
pub mod settings;
pub mod sidecar;
pub mod snapshot;
mod sockets;
mod status;
pub mod stop;
pub mod wait;
pub mod xds_proxy;

pub use log::{Level, Log};
pub use remora_net::process::block_stop_signals;
pub use settings::{Inputs, Settings, SettingsError};
pub use sidecar::{RunError, run};
