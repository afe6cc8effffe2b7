//! Rules as data: the vocabulary that the planner writes and that renderers, the netlink encoder and the
//! evaluator read.
//!
//! A [`Rule`] says the same thing whichever back end carries it out. The order of its matches is the order
//! in which Istio writes them, so that the text renderer needs no table of its own.

use crate::value::{Cidr, Interface, Owner, Ports};
use std::fmt;
use std::net::IpAddr;

/// The address family a rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Whether the range is of this family.
    pub const fn has(self, range: Cidr) -> bool {
        range.is_ipv4() == matches!(self, Self::V4)
    }

    /// The family of an address.
    pub const fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The netfilter tables. The variants are in alphabetical order, the order in which Istio prints them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Marks and transparent proxying, before address translation.
    Mangle,
    /// Address translation, consulted once per connection.
    Nat,
    /// Before connection tracking.
    Raw,
}

impl Table {
    /// All tables in the order in which they are printed.
    pub const ALL: [Self; 3] = [Self::Mangle, Self::Nat, Self::Raw];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mangle => "mangle",
            Self::Nat => "nat",
            Self::Raw => "raw",
        }
    }
}

/// A list of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Chain {
    /// Incoming packets.
    Prerouting,
    /// Packets of local processes.
    Output,
    /// Decides about incoming packets.
    Inbound,
    /// Redirects to the outbound listener.
    Redirect,
    /// Redirects to the inbound listener.
    InRedirect,
    /// Decides about packets of local processes.
    IstioOutput,
    /// Redirects DNS queries.
    OutputDns,
    /// Delivers packets of connections that the proxy already has.
    Divert,
    /// Hands new connections to the transparent listener.
    Tproxy,
    /// Drops packets of no known connection.
    Drop,
}

impl Chain {
    /// How many chains there are.
    pub const COUNT: usize = 10;

    /// All of them.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Prerouting,
        Self::Output,
        Self::Inbound,
        Self::Redirect,
        Self::InRedirect,
        Self::IstioOutput,
        Self::OutputDns,
        Self::Divert,
        Self::Tproxy,
        Self::Drop,
    ];

    /// The name, as Istio has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prerouting => "PREROUTING",
            Self::Output => "OUTPUT",
            Self::Inbound => "ISTIO_INBOUND",
            Self::Redirect => "ISTIO_REDIRECT",
            Self::InRedirect => "ISTIO_IN_REDIRECT",
            Self::IstioOutput => "ISTIO_OUTPUT",
            Self::OutputDns => "ISTIO_OUTPUT_DNS",
            Self::Divert => "ISTIO_DIVERT",
            Self::Tproxy => "ISTIO_TPROXY",
            Self::Drop => "ISTIO_DROP",
        }
    }

    /// Whether the chain is built in: the kernel consults it without a jump.
    pub const fn is_built_in(self) -> bool {
        matches!(self, Self::Prerouting | Self::Output)
    }
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// The number in the IP header.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// Whether the owner match compares the user or the group of the process that owns the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OwnerKind {
    /// The user.
    User,
    /// The group.
    Group,
}

/// What connection tracking says about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// It belongs to no connection.
    Invalid,
    /// It belongs to a connection with packets in both directions.
    Established,
}

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Match {
    /// Arrived on this interface.
    In(Interface),
    /// Leaves by this interface.
    Out(Interface),
    /// Of this protocol.
    Protocol(Protocol),
    /// From an address in the range.
    Source(Cidr),
    /// To an address in the range, or outside it.
    Destination {
        /// The range.
        range: Cidr,
        /// Outside instead of inside.
        not: bool,
    },
    /// To one of the ports, or to none of them.
    DestinationPort {
        /// The ports.
        ports: Ports,
        /// Other ports instead.
        not: bool,
    },
    /// To none of these ports.
    DestinationPortNoneOf(Vec<u16>),
    /// From this port.
    SourcePort(u16),
    /// Sent by this owner, or by any other. A packet without a local socket matches neither.
    Owner {
        /// User or group.
        kind: OwnerKind,
        /// The user or group.
        owner: Owner,
        /// Any other instead.
        not: bool,
    },
    /// In this state of connection tracking.
    State(State),
    /// With this mark, or with any other.
    Mark {
        /// The mark.
        mark: u32,
        /// Any other instead.
        not: bool,
    },
    /// On a connection with this mark.
    ConnectionMark(u32),
}

/// What a rule does when all its conditions hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Go on after the jump that led here; in a built-in chain: leave the packet alone.
    Return,
    /// Leave the packet alone.
    Accept,
    /// Drop the packet.
    Drop,
    /// Go through another chain.
    Jump(Chain),
    /// Send the connection to a port of this host.
    Redirect(u16),
    /// Hand the packet to the transparent listener on this port, with this mark; drop it if there is
    /// no such listener.
    Tproxy {
        /// The port.
        port: u16,
        /// The mark.
        mark: u32,
    },
    /// Put a mark on the packet and go on.
    SetMark(u32),
    /// Copy the packet's mark to its connection and go on.
    SaveMark,
    /// Copy the connection's mark to the packet and go on.
    RestoreMark,
    /// Track the packet in this zone and go on.
    Zone(u16),
}

/// The position where a rule is added to its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Position {
    /// At the end.
    Append,
    /// Before the rule at this position, counted from 1.
    Insert(usize),
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The table.
    pub table: Table,
    /// The chain.
    pub chain: Chain,
    /// The position in the chain.
    pub place: Position,
    /// All of these must hold.
    pub matches: Vec<Match>,
    /// What then happens.
    pub action: Action,
}

impl Rule {
    /// The protocol that the rule matches, if it matches one.
    pub fn protocol(&self) -> Option<Protocol> {
        self.matches.iter().find_map(|m| match m {
            Match::Protocol(protocol) => Some(*protocol),
            _ => None,
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::render::rule(self, f)
    }
}
