//! The packets one may ask about.

use crate::rule::Protocol;
use std::net::SocketAddr;

/// Which way a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction<'a> {
    /// Made here; leaves by this interface (`lo` for the host's own addresses).
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

/// What connection tracking knows about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectionState {
    /// It begins a connection.
    New,
    /// It belongs to one.
    Established,
    /// It fits none.
    Invalid,
}

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packet<'a> {
    /// Which way it goes.
    pub direction: Direction<'a>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// From.
    pub source: SocketAddr,
    /// To.
    pub destination: SocketAddr,
    /// User and group of the process that sends it, if it is made here.
    pub owner: Option<(u32, u32)>,
    /// The mark it begins with.
    pub mark: u32,
    /// The mark of its connection.
    pub connection_mark: u32,
    /// Its place in a connection.
    pub state: ConnectionState,
}
