//! Whether a pod's rules capture a connection of which some properties are unknown.
//!
//! The model of start-up knows which user a container has and which port it connects to, but rarely the address.
//! [`Capture`] replaces unknown properties by values that no rule names, and lets the [`Evaluator`] decide: there is
//! no second implementation of the rules.

use crate::dialect::Dialect;
use crate::explain::{ConnectionState, Decision, Direction, Evaluator, Fate, Packet};
use crate::intent::{Destinations, Dns, Groups, Inbound, Intent};
use crate::options::{HostFacts, Name, Settings, SettingsError};
use crate::plan::{Plan, plan};
use crate::pod::{self, PodError};
use crate::rule::{Match, OwnerKind, Protocol, Rule};
use crate::switch::State;
use crate::value::{Cidr, Owner, Ports};
use remora_pod::spec::PodView;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Why a flow is not captured although the pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exempt {
    /// The process runs as the proxy's user.
    Uid(i64),
    /// The process runs with the proxy's primary group, or with one that is not captured.
    Gid(i64),
    /// The destination port is excluded.
    Port(u16),
    /// The destination address is excluded, or not among those included.
    Range(String),
    /// The destination is the pod itself.
    Loopback,
    /// It leaves by an interface that is excluded.
    Interface(String),
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
            Self::Interface(name) => write!(f, "interface {name}"),
            Self::Udp => f.write_str("udp"),
        }
    }
}

/// Why the rules of a pod are unknown: the program that installs them refuses its options.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// The command line of the init container.
    #[error(transparent)]
    Arguments(#[from] PodError),
    /// A value.
    #[error(transparent)]
    Value(#[from] SettingsError),
}

/// One kind of outbound connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flow {
    /// User of the process, when known.
    pub uid: Option<i64>,
    /// Primary group of the process, when known. The kernel's owner match ignores supplementary groups.
    pub gid: Option<i64>,
    /// Destination address, when known.
    pub address: Option<IpAddr>,
    /// Destination port, when known.
    pub port: Option<u16>,
    /// Whether it is UDP rather than TCP.
    pub udp: bool,
}

/// The interface of a pod's network.
// k8s: the usual name with container runtimes and CNI plugins.
const POD_INTERFACE: &str = "eth0";
/// Represents the host's DNS server where the rules capture only queries to the host's servers.
const PLACEHOLDER_DNS_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10));
/// An address that manifests do not use (TEST-NET-1); neighbours of it are tried if a rule names it.
const PLACEHOLDER_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The source of a flow; never that of the proxy's own connections to the application.
const SOURCE_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
/// The first id that represents an unknown user or group; ids from here on are tried until no rule names one.
const FIRST_PLACEHOLDER_ID: u32 = 100_000;
const FIRST_PLACEHOLDER_PORT: u16 = 40_000;

/// The capture rules of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    intent: Intent,
    plan: Plan,
    ambient: bool,
}

impl Capture {
    /// The rules for an intent.
    pub fn new(intent: Intent) -> Self {
        Self {
            plan: plan(&intent),
            intent,
            ambient: false,
        }
    }

    /// The rules of a pod, from its manifest.
    ///
    /// `istio-iptables` installs nothing if an option is unusable. Then the rules are those that capture everything, so
    /// that no flow looks exempt by mistake, together with the error.
    pub fn of_pod(pod: &PodView, dialect: &'static Dialect) -> (Self, Option<CaptureError>) {
        match Self::read(pod, dialect) {
            Ok(capture) => (capture, None),
            Err(error) => (Self::everything(dialect), Some(error)),
        }
    }

    fn read(pod: &PodView, dialect: &'static Dialect) -> Result<Self, CaptureError> {
        let options = pod::options(pod, dialect)?;
        let settings = Settings::read(&options.given, &options.environment)?;
        let mut intent = model_intent(&settings);
        // A mesh whose rules exempt no group: Istio's default would be the group of the proxy's user.
        if dialect.gid.is_none() && !options.given.iter().any(|g| g.option == Name::ProxyGid) {
            intent.proxy_gids.clear();
        }
        Ok(Self::new(intent))
    }

    /// Captures all traffic except the proxy's own.
    fn everything(dialect: &Dialect) -> Self {
        Self::new(Intent {
            proxy_uids: vec![Owner::Id(dialect.uid)],
            proxy_gids: dialect.gid.map(Owner::Id).into_iter().collect(),
            inbound: Inbound::AllExcept(dialect.own_ports.iter().copied().map(Ports::one).collect()),
            ..Intent::default()
        })
    }

    /// The capture of a node proxy: no user is exempt, and probes from the node are not captured.
    pub fn ambient() -> Self {
        let intent = Intent {
            proxy_uids: Vec::new(),
            proxy_gids: Vec::new(),
            ..Intent::default()
        };
        Self {
            ambient: true,
            ..Self::new(intent)
        }
    }

    /// The intent that the rules were made from.
    pub const fn intent(&self) -> &Intent {
        &self.intent
    }

    /// Whether a proxy outside the pod captures the traffic (ambient mode).
    pub const fn is_ambient(&self) -> bool {
        self.ambient
    }

    /// Whether DNS lookups are captured as well.
    pub fn captures_dns(&self) -> bool {
        self.intent.dns != Dns::Off
    }

    /// The user whose traffic is exempt because it is the proxy's.
    pub fn proxy_uid(&self) -> Option<i64> {
        self.intent.proxy_uids.iter().find_map(|owner| match owner {
            Owner::Id(id) => Some(i64::from(*id)),
            Owner::Name(_) => None,
        })
    }

    /// Why this flow is not captured; `None` if it is captured.
    pub fn exempt(&self, flow: &Flow) -> Option<Exempt> {
        let packet = self.packet(flow);
        let evaluator = Evaluator::new(&self.plan, State::On);
        let decision = evaluator.decide(&packet);
        match decision.fate {
            Fate::Untouched => Some(reason(&decision, &packet)),
            Fate::Redirected(_) | Fate::Transparent(_) | Fate::Held | Fate::Dropped => None,
        }
    }

    /// Whether a connection from the node to this port is redirected to the proxy.
    pub fn captures_inbound(&self, port: u16) -> bool {
        let packet = Packet {
            direction: Direction::In {
                interface: POD_INTERFACE,
            },
            protocol: Protocol::Tcp,
            source: SocketAddr::from((SOURCE_ADDRESS, FIRST_PLACEHOLDER_PORT)),
            destination: SocketAddr::from((PLACEHOLDER_ADDRESS, port)),
            owner: None,
            mark: 0,
            connection_mark: 0,
            state: ConnectionState::New,
        };
        let decision = Evaluator::new(&self.plan, State::On).decide(&packet);
        !self.ambient && matches!(decision.fate, Fate::Redirected(_) | Fate::Transparent(_))
    }

    /// A packet of the flow. Unknown properties get values that no rule names.
    fn packet(&self, flow: &Flow) -> Packet<'static> {
        let port = flow.port.unwrap_or_else(|| self.unnamed_port());
        let address = flow.address.unwrap_or_else(|| self.unnamed_address(flow, port));
        let id = |known: Option<i64>, kind| {
            let known = known.and_then(|id| u32::try_from(id).ok());
            known.unwrap_or_else(|| self.unnamed_id(kind))
        };
        Packet {
            direction: Direction::Out {
                interface: if address.is_loopback() {
                    "lo"
                } else {
                    POD_INTERFACE
                },
            },
            protocol: if flow.udp { Protocol::Udp } else { Protocol::Tcp },
            source: SocketAddr::from((SOURCE_ADDRESS, FIRST_PLACEHOLDER_PORT)),
            destination: SocketAddr::new(address, port),
            owner: Some((id(flow.uid, OwnerKind::User), id(flow.gid, OwnerKind::Group))),
            mark: 0,
            connection_mark: 0,
            state: ConnectionState::New,
        }
    }

    fn unnamed_port(&self) -> u16 {
        let (excluded, included) = (&self.intent.excluded_outbound_ports, &self.intent.outbound_ports);
        // Where only listed ports are captured, an unknown port is assumed to be one of them.
        if matches!(&self.intent.destinations, Destinations::Ranges(ranges) if ranges.is_empty()) {
            let mut ports = included.iter().flat_map(|ports| ports.first..=ports.last);
            return ports
                .find(|port| !contains(excluded, *port))
                .unwrap_or(FIRST_PLACEHOLDER_PORT);
        }
        let named = |port: u16| contains(excluded, port) || contains(included, port);
        (FIRST_PLACEHOLDER_PORT..u16::MAX)
            .find(|port| !named(*port))
            .unwrap_or(FIRST_PLACEHOLDER_PORT)
    }

    /// An address that is captured if any is: not knowing it must not make a flow look exempt.
    fn unnamed_address(&self, flow: &Flow, port: u16) -> IpAddr {
        if flow.udp && port == 53 && self.captures_dns() {
            return PLACEHOLDER_DNS_SERVER;
        }
        let excluded = |address: IpAddr| {
            let ranges = &self.intent.excluded_destinations;
            ranges.iter().any(|range| range.contains(address))
        };
        let neighbours = |from: IpAddr| (0..256_u32).map(move |step| offset_address(from, step));
        let included: Vec<IpAddr> = match &self.intent.destinations {
            Destinations::All => vec![IpAddr::V4(PLACEHOLDER_ADDRESS)],
            Destinations::Ranges(ranges) => ranges.iter().map(|range| range.address()).collect(),
        };
        let candidates = included.into_iter().flat_map(neighbours);
        candidates
            .chain(neighbours(IpAddr::V4(PLACEHOLDER_ADDRESS)))
            .find(|address| !excluded(*address) && !address.is_loopback())
            .unwrap_or(IpAddr::V4(PLACEHOLDER_ADDRESS))
    }

    fn unnamed_id(&self, kind: OwnerKind) -> u32 {
        let (proxy, groups) = match kind {
            OwnerKind::User => (&self.intent.proxy_uids, None),
            OwnerKind::Group => (&self.intent.proxy_gids, Some(&self.intent.groups)),
        };
        let excluded: &[Owner] = match groups {
            // Only listed groups are captured: an unknown group is assumed to be one of them.
            Some(Groups::Only(included)) => {
                let known = included.iter().find_map(|owner| match owner {
                    Owner::Id(id) if !proxy.contains(owner) => Some(*id),
                    _ => None,
                });
                return known.unwrap_or(FIRST_PLACEHOLDER_ID);
            }
            Some(Groups::AllExcept(excluded)) => excluded,
            None => &[],
        };
        let named = |id: u32| proxy.contains(&Owner::Id(id)) || excluded.contains(&Owner::Id(id));
        (FIRST_PLACEHOLDER_ID..u32::MAX)
            .find(|id| !named(*id))
            .unwrap_or(FIRST_PLACEHOLDER_ID)
    }
}

/// Istio's defaults, all traffic captured, as its injector writes them.
impl Default for Capture {
    fn default() -> Self {
        Self::new(Intent::default())
    }
}

impl Default for Intent {
    // istio: the flags of the init container in an injected pod.
    fn default() -> Self {
        let owner = vec![Owner::Id(1337)];
        Self {
            outbound_port: 15001,
            inbound_port: 15006,
            tunnel_port: 15008,
            proxy_uids: owner.clone(),
            proxy_gids: owner,
            mode: crate::intent::Mode::Redirect,
            inbound: Inbound::AllExcept([15090, 15021, 15020].map(Ports::one).to_vec()),
            excluded_interfaces: Vec::new(),
            virtual_interfaces: Vec::new(),
            destinations: Destinations::All,
            excluded_destinations: Vec::new(),
            outbound_ports: Vec::new(),
            excluded_outbound_ports: Vec::new(),
            mark: 1337,
            route_table: 133,
            dns: Dns::Off,
            drop_invalid: false,
            groups: Groups::AllExcept(Vec::new()),
            loopback_v4: Cidr::host(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            ipv6: true,
        }
    }
}

fn contains(list: &[Ports], port: u16) -> bool {
    list.iter().any(|ports| ports.contains(port))
}

fn offset_address(address: IpAddr, step: u32) -> IpAddr {
    match address {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().wrapping_add(step)).into(),
        IpAddr::V6(v6) => std::net::Ipv6Addr::from_bits(v6.to_bits().wrapping_add(step.into())).into(),
    }
}

/// The intent of settings in the model: the host is taken to have IPv6 and one DNS server.
fn model_intent(settings: &Settings) -> Intent {
    let host = HostFacts {
        ipv6: true,
        dns_servers: vec![PLACEHOLDER_DNS_SERVER],
        proxy_user: None,
    };
    settings.intent(&host).0
}

/// Why the deciding rule exempts the packet.
fn reason(decision: &Decision<'_>, packet: &Packet<'_>) -> Exempt {
    let found = decision.rule.and_then(|rule| reason_of(rule, packet));
    found.unwrap_or_else(|| match packet.protocol {
        Protocol::Udp => Exempt::Udp,
        Protocol::Tcp => Exempt::Range(packet.destination.ip().to_string()),
    })
}

fn reason_of(rule: &Rule, packet: &Packet<'_>) -> Option<Exempt> {
    let (uid, gid) = packet.owner?;
    rule.matches.iter().find_map(|item| match item {
        Match::Owner { kind, not, .. } => match (kind, not) {
            (OwnerKind::User, false) => Some(Exempt::Uid(uid.into())),
            (OwnerKind::Group, _) => Some(Exempt::Gid(gid.into())),
            // Traffic of the application on the loopback interface.
            (OwnerKind::User, true) => None,
        },
        Match::Out(interface) if interface.matches("lo") => Some(Exempt::Loopback),
        Match::Out(interface) => Some(Exempt::Interface(interface.as_str().to_owned())),
        Match::DestinationPort { not: false, .. } => Some(Exempt::Port(packet.destination.port())),
        Match::Destination { range, not: false } if range.address().is_loopback() => Some(Exempt::Loopback),
        Match::Destination { range, not: false } => Some(Exempt::Range(range.to_string())),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
