//! Which flows of a pod are captured, and what becomes of them.
//!
//! The rules are those a sidecar mesh writes into the pod's network namespace: everything outbound goes to the
//! proxy except flows of the proxy's own user or group, excluded ports and ranges, loopback, and UDP; everything
//! inbound does except a few ports of the proxy itself. A captured flow meets either a proxy or a closed port.

use std::fmt;
use std::net::IpAddr;

mod range;

pub use range::Range;

/// Why a flow is not captured although the pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exempt {
    /// The process runs as the proxy's user.
    Uid(i64),
    /// The process runs with the proxy's primary group.
    Gid(i64),
    /// The destination port is excluded, or not among those included.
    Port(u16),
    /// The destination address is excluded, or not among those included.
    Range(String),
    /// The destination is the pod itself.
    Loopback,
    /// It is not TCP.
    Udp,
}

impl fmt::Display for Exempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => write!(f, "user {uid}"),
            Self::Gid(gid) => write!(f, "group {gid}"),
            Self::Port(port) => write!(f, "port {port}"),
            Self::Range(range) => write!(f, "range {range}"),
            Self::Loopback => f.write_str("loopback"),
            Self::Udp => f.write_str("udp"),
        }
    }
}

/// What a process sees when it connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetState {
    /// Not captured: plain network, no mesh identity.
    Direct,
    /// Captured, and nobody listens: connection refused, at once.
    Broken,
    /// Captured, and the proxy answers.
    Proxied,
    /// The pod is captured, this flow is not.
    Excluded(Exempt),
}

impl NetState {
    /// Whether a connection can be made.
    pub const fn works(&self) -> bool {
        !matches!(self, Self::Broken)
    }

    /// One word for it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Broken => "broken",
            Self::Proxied => "proxied",
            Self::Excluded(_) => "excluded",
        }
    }
}

/// One kind of outbound connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flow {
    /// User of the process, when known.
    pub uid: Option<i64>,
    /// Primary group of the process, when known. Supplementary groups play no part.
    pub gid: Option<i64>,
    /// Destination address, when known.
    pub address: Option<IpAddr>,
    /// Destination port, when known.
    pub port: Option<u16>,
    /// Whether it is UDP rather than TCP.
    pub udp: bool,
}

/// The capture rules of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// Users whose traffic is left alone.
    pub uids: Vec<i64>,
    /// Groups whose traffic is left alone.
    pub gids: Vec<i64>,
    /// Outbound ports left alone.
    pub exclude_ports: Vec<u16>,
    /// Outbound destinations left alone.
    pub exclude_ranges: Vec<Range>,
    /// Outbound destinations captured; `None` means all.
    pub include_ranges: Option<Vec<Range>>,
    /// Outbound ports captured whatever their destination.
    pub include_ports: Vec<u16>,
    /// Inbound ports left alone.
    pub exclude_inbound: Vec<u16>,
    /// Inbound ports captured; `None` means all.
    pub include_inbound: Option<Vec<u16>>,
    /// Whether name lookups are captured as well.
    pub dns: bool,
    /// Whether a proxy outside the pod takes the traffic; probes from the node then pass by it.
    pub ambient: bool,
}

impl Default for Capture {
    // istio: the sidecar's user and group are 1337; its own ports 15090, 15021, 15020 are never captured.
    fn default() -> Self {
        Self {
            uids: vec![1337],
            gids: vec![1337],
            exclude_ports: Vec::new(),
            exclude_ranges: Vec::new(),
            include_ranges: None,
            include_ports: Vec::new(),
            exclude_inbound: vec![15090, 15021, 15020],
            include_inbound: None,
            dns: false,
            ambient: false,
        }
    }
}

impl Capture {
    /// The capture of a node proxy: nobody is exempt by user, probes pass by.
    pub fn ambient() -> Self {
        Self {
            uids: Vec::new(),
            gids: Vec::new(),
            ambient: true,
            ..Self::default()
        }
    }

    /// Why this flow escapes, in the order the rules are written; `None` when it is captured.
    pub fn exempt(&self, flow: &Flow) -> Option<Exempt> {
        if let Some(port) = flow.port.filter(|p| self.exclude_ports.contains(p)) {
            return Some(Exempt::Port(port));
        }
        if let Some(uid) = flow.uid.filter(|u| self.uids.contains(u)) {
            return Some(Exempt::Uid(uid));
        }
        if let Some(gid) = flow.gid.filter(|g| self.gids.contains(g)) {
            return Some(Exempt::Gid(gid));
        }
        if flow.udp && !(self.dns && flow.port == Some(53)) {
            return Some(Exempt::Udp);
        }
        self.exempt_destination(flow)
    }

    fn exempt_destination(&self, flow: &Flow) -> Option<Exempt> {
        let address = flow.address?;
        if address.is_loopback() {
            return Some(Exempt::Loopback);
        }
        if let Some(range) = self.exclude_ranges.iter().find(|r| r.contains(address)) {
            return Some(Exempt::Range(range.to_string()));
        }
        let included = self
            .include_ranges
            .as_ref()
            .is_none_or(|rs| rs.iter().any(|r| r.contains(address)));
        if included || flow.port.is_some_and(|p| self.include_ports.contains(&p)) {
            return None;
        }
        Some(Exempt::Range(address.to_string()))
    }

    /// The state of a flow, given whether a proxy listens.
    pub fn state(&self, flow: &Flow, proxy_up: bool) -> NetState {
        match self.exempt(flow) {
            Some(reason) => NetState::Excluded(reason),
            None if proxy_up || self.ambient => NetState::Proxied,
            None => NetState::Broken,
        }
    }

    /// Whether a connection from the node to this port is taken by the proxy.
    pub fn takes_inbound(&self, port: u16) -> bool {
        !self.ambient
            && !self.exclude_inbound.contains(&port)
            && self
                .include_inbound
                .as_ref()
                .is_none_or(|ports| ports.contains(&port))
    }
}
