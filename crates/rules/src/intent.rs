//! What capture should do in one network namespace, resolved and typed.
//!
//! An [`Intent`] has no strings that still need parsing, no defaults to fill in and no knowledge of where
//! a value came from. [`crate::plan()`] turns it into rules.

use crate::value::{Cidr, Interface, Owner, Ports};
use std::net::IpAddr;

/// How inbound connections reach the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The destination is rewritten; the proxy reads the original one with `SO_ORIGINAL_DST`.
    Redirect,
    /// The packet is handed over unchanged; source and destination are the real ones.
    Tproxy,
}

/// Which connections from outside are captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inbound {
    /// None.
    Nothing,
    /// Every port but these.
    AllExcept(Vec<Ports>),
    /// These ports.
    Only(Vec<Ports>),
}

/// Which destinations of the application are captured, ports apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destinations {
    /// Every address that is not excluded.
    All,
    /// Addresses in these ranges.
    Ranges(Vec<Cidr>),
}

/// Which DNS queries are redirected to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dns {
    /// None.
    Off,
    /// Everything to port 53.
    All,
    /// Queries to these servers.
    Servers(Vec<IpAddr>),
}

/// Which groups of processes are captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Groups {
    /// Every group but these.
    AllExcept(Vec<Owner>),
    /// Only these groups.
    Only(Vec<Owner>),
}

/// What capture should do in one network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// The proxy's port for outbound connections.
    pub outbound_port: u16,
    /// The proxy's port for inbound connections.
    pub inbound_port: u16,
    /// The port of tunnels (HBONE), never captured.
    pub tunnel_port: u16,
    /// Users whose traffic is the proxy's own.
    pub proxy_uids: Vec<Owner>,
    /// Groups whose traffic is the proxy's own.
    pub proxy_gids: Vec<Owner>,
    /// How inbound connections are captured.
    pub mode: Mode,
    /// The inbound ports that are captured.
    pub inbound: Inbound,
    /// Interfaces that are excluded in both directions.
    pub excluded_interfaces: Vec<Interface>,
    /// Interfaces whose incoming traffic counts as outbound (virtual machines).
    pub virtual_interfaces: Vec<Interface>,
    /// Outbound destinations that are captured.
    pub destinations: Destinations,
    /// Outbound destinations that are not.
    pub excluded_destinations: Vec<Cidr>,
    /// Outbound ports that are captured for every destination address.
    pub outbound_ports: Vec<Ports>,
    /// Outbound ports never captured.
    pub excluded_outbound_ports: Vec<Ports>,
    /// Mark on packets that must be delivered here (TPROXY).
    pub mark: u32,
    /// Routing table that delivers them.
    pub route_table: u32,
    /// The DNS queries that are captured.
    pub dns: Dns,
    /// Drop packets that belong to no known connection.
    pub drop_invalid: bool,
    /// The groups of processes that are captured.
    pub groups: Groups,
    /// The IPv4 destinations that count as loopback.
    pub loopback_v4: Cidr,
    /// Whether IPv6 is captured too.
    pub ipv6: bool,
}

impl Intent {
    /// Whether an included range contains loopback addresses, so that connections over `lo` are captured as well.
    // istio: either family counts for both.
    pub fn includes_loopback(&self) -> bool {
        match &self.destinations {
            Destinations::All => false,
            Destinations::Ranges(ranges) => ranges.iter().any(|range| range.address().is_loopback()),
        }
    }

    /// Whether the routing table that delivers marked packets is needed.
    pub fn needs_policy_route(&self) -> bool {
        self.mode == Mode::Tproxy && self.inbound != Inbound::Nothing
    }
}
