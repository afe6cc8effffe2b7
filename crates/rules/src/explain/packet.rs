//! The packets that can be evaluated.

use crate::rule::Protocol;
use std::net::SocketAddr;

/// The direction of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction<'a> {
    /// Sent by a local process; leaves by this interface (`lo` for the host's own addresses).
    Out {
        /// The interface.
        interface: &'a str,
    },
    /// Arrives on this interface.
    In {
        /// The interface.
        interface: &'a str,
    },
}

/// The connection tracking state of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectionState {
    /// It starts a connection.
    New,
    /// It belongs to a known connection.
    Established,
    /// It belongs to no known connection and cannot start one.
    Invalid,
}

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packet<'a> {
    /// The direction.
    pub direction: Direction<'a>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The source address and port.
    pub source: SocketAddr,
    /// The destination address and port.
    pub destination: SocketAddr,
    /// User and group of the sending process, if it is local.
    pub owner: Option<(u32, u32)>,
    /// The packet's mark before the rules.
    pub mark: u32,
    /// The mark of its connection.
    pub connection_mark: u32,
    /// The connection tracking state.
    pub state: ConnectionState,
}
