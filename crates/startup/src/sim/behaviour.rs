//! How a process behaves.

use std::net::IpAddr;

use super::actor::Part;
use crate::kubelet::{Millis, StartError};
use crate::network::Capture;

/// Something a process connects to again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name, for telling several apart.
    pub name: String,
    /// Address, when known.
    pub address: Option<IpAddr>,
    /// Port, when known.
    pub port: Option<u16>,
}

/// What a process is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Anything that is none of the others.
    App,
    /// The mesh's proxy with its agent.
    Proxy {
        /// From its start until it takes traffic; its agent answers at once.
        ready_after: Millis,
        /// Whether it refuses plaintext from outside.
        strict: bool,
    },
    /// Installs the capture rules and ends.
    Capture(Capture),
    /// Waits for the proxy to be ready, and fails after this time.
    AwaitProxy(Millis),
}

/// How a process behaves.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent traits of a process, each off by default"
)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behaviour {
    /// What it is for.
    pub role: Role,
    /// Rules it installs when it starts, whatever else it does.
    pub captures: Option<Capture>,
    /// A name other than that of its part.
    pub label: Option<String>,
    /// How long it runs; `None`: until it is stopped.
    pub lives: Option<Millis>,
    /// Exit code at its own end.
    pub exit_code: i32,
    /// So many first instances die early, with code 1…
    pub early_deaths: u32,
    /// …after this time…
    pub early_life: Millis,
    /// …and do not even listen while they live.
    pub dies_deaf: bool,
    /// What it connects to.
    pub targets: Vec<Target>,
    /// Ends with code 1 if it never could connect.
    pub must_connect: bool,
    /// Ends with code 0 once it could connect.
    pub ends_connected: bool,
    /// Keeps one connection open.
    pub keeps_connection: bool,
    /// Ports it listens on.
    pub listens: Vec<u16>,
    /// From its start until it listens.
    pub listens_after: Millis,
    /// Whether it answers HTTP requests with success.
    pub healthy: bool,
    /// How long it goes on after the stop signal; `None`: for ever.
    pub drains: Option<Millis>,
    /// Exit code after the stop signal.
    pub stop_code: i32,
    /// Why it cannot be started at all.
    pub unavailable: Option<StartError>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            role: Role::App,
            captures: None,
            label: None,
            lives: None,
            exit_code: 0,
            early_deaths: 0,
            early_life: 0,
            dies_deaf: false,
            targets: Vec::new(),
            must_connect: false,
            ends_connected: false,
            keeps_connection: false,
            listens: Vec::new(),
            listens_after: 1,
            healthy: true,
            drains: Some(0),
            stop_code: 0,
            unavailable: None,
        }
    }
}

impl Behaviour {
    /// An entrypoint that stays, a hook or probe that ends well at once.
    pub(super) fn default_of(part: Part) -> Self {
        let lives = match part {
            Part::Main => None,
            Part::Hook(_) | Part::Probe(_) => Some(10),
        };
        Self {
            lives,
            ..Self::default()
        }
    }
}
