//! The agent: what runs as the first process of a sidecar and makes it ready, keeps it certified and stops it last.
//!
//! [`settings`] turns Istio's flags, environment and files into one value; [`sidecar`] walks it: sockets first, then
//! certificate and discovery at the same time, then connections. [`readiness`] is what everybody may ask at any moment.
//!
//! Promises: readiness is answered from the start, with the stage that is missing; the exit code says what happened,
//! 0 only after a stop that was asked for; every wait has an end.

mod access;
mod application;
pub mod bootstrap;
mod certificates;
pub mod children;
pub mod client;
mod dial;
pub mod envoy;
mod fetch;
pub mod flags;
mod health;
mod http;
pub mod kubelet;
mod log;
mod look;
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
