//! How a process behaves.

use std::net::IpAddr;

use super::actor::Part;
use crate::kubelet::{Millis, StartError};
use crate::network::Capture;

/// A destination that a process connects to repeatedly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name, to distinguish several targets.
    pub name: String,
    /// Address, when known.
    pub address: Option<IpAddr>,
    /// Port, when known.
    pub port: Option<u16>,
}

/// The role of a process in the mesh.
#[expect(
    clippy::large_enum_variant,
    reason = "a scenario has a handful of them, and the rules are the rare case"
)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// A process without a role in the mesh.
    App,
    /// The mesh's proxy with its agent.
    Proxy {
        /// Time from its start until it takes traffic; its agent answers immediately.
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
    /// Its role.
    pub role: Role,
    /// Rules it installs when it starts, in addition to its role.
    pub captures: Option<Capture>,
    /// A name other than that of its part.
    pub label: Option<String>,
    /// How long it runs; `None`: until it is stopped.
    pub lives: Option<Millis>,
    /// Exit code at its own end.
    pub exit_code: i32,
    /// This many first instances fail early, with code 1…
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
    /// How long it keeps running after the stop signal; `None`: until it is killed.
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
    /// An entrypoint that keeps running, or a hook or probe that succeeds immediately.
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
