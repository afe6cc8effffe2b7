//! The expressions rules are made of.
//!
//! There is one register: each expression that loads is followed by the one that uses what it loaded.

use std::net::SocketAddrV4;

/// A property of a packet that is not in its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Meta {
    /// The packet's mark (4 bytes, host order).
    Mark,
    /// The name of the incoming interface (16 bytes).
    InName,
    /// The name of the outgoing interface (16 bytes).
    OutName,
    /// The user of the socket (4 bytes, host order).
    User,
    /// The group of the socket (4 bytes, host order).
    Group,
    /// IPv4 or IPv6 (1 byte).
    Family,
    /// The transport protocol (1 byte).
    Protocol,
}

impl Meta {
    pub(super) const ALL: [Self; 7] = [
        Self::Mark,
        Self::InName,
        Self::OutName,
        Self::User,
        Self::Group,
        Self::Family,
        Self::Protocol,
    ];

    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Mark => 3,
            Self::InName => 6,
            Self::OutName => 7,
            Self::User => 10,
            Self::Group => 11,
            Self::Family => 15,
            Self::Protocol => 16,
        }
    }
}

/// A property of a packet's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ct {
    /// The state, as bits (4 bytes, host order).
    State,
    /// The connection's mark (4 bytes, host order).
    Mark,
    /// The zone (2 bytes, host order).
    Zone,
}

impl Ct {
    pub(super) const ALL: [Self; 3] = [Self::State, Self::Mark, Self::Zone];

    /// The bit of a packet that belongs to no tracked connection.
    pub const INVALID: u32 = 1;
    /// The bit of a connection with packets in both directions.
    pub const ESTABLISHED: u32 = 2;
    /// The bit of a connection that belongs to another one.
    pub const RELATED: u32 = 4;

    pub(super) const fn number(self) -> u32 {
        match self {
            Self::State => 0,
            Self::Mark => 3,
            Self::Zone => 17,
        }
    }
}

/// The header that a payload offset is relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Base {
    /// The IP header.
    Network,
    /// The TCP or UDP header.
    Transport,
}

impl Base {
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Network => 1,
            Self::Transport => 2,
        }
    }
}

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cmp {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// Less or equal, byte by byte.
    AtMost,
    /// Greater or equal, byte by byte.
    AtLeast,
}

impl Cmp {
    pub(super) const ALL: [Self; 4] = [Self::Equal, Self::NotEqual, Self::AtMost, Self::AtLeast];

    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Equal => 0,
            Self::NotEqual => 1,
            Self::AtMost => 3,
            Self::AtLeast => 5,
        }
    }
}

/// The verdict on a packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The packet is accepted.
    Accept,
    /// The packet is dropped.
    Drop,
    /// Evaluation goes on after the jump that led here.
    Return,
    /// Evaluation goes on with the next rule.
    Continue,
    /// Evaluation goes on in another chain.
    Jump(String),
}

impl Verdict {
    pub(super) fn code(&self) -> i32 {
        match self {
            Self::Accept => 1,
            Self::Drop => 0,
            Self::Return => -5,
            Self::Continue => -1,
            Self::Jump(_) => -3,
        }
    }
}

/// One step of a rule. A test that fails ends the rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Expression {
    /// Load a property of the packet.
    Meta(Meta),
    /// Set a property of the packet to what was loaded.
    SetMeta(Meta),
    /// Load a property of the connection.
    Ct(Ct),
    /// Set a property of the connection to what was loaded.
    SetCt(Ct),
    /// Load bytes of the packet.
    Payload {
        /// The header that the offset is relative to.
        base: Base,
        /// The offset in bytes.
        offset: u32,
        /// The number of bytes.
        length: u32,
    },
    /// Keep only some bits of what was loaded.
    Mask(Vec<u8>),
    /// Compare what was loaded.
    Compare(Cmp, Vec<u8>),
    /// Test whether what was loaded is outside a range.
    NotInRange(Vec<u8>, Vec<u8>),
    /// Take the verdict that a map has for what was loaded; none if it has none.
    Lookup(String),
    /// Load a value.
    Value(Vec<u8>),
    /// Count packets and bytes.
    Counter,
    /// Send the connection to the loaded port of this host.
    Redirect,
    /// Hand the packet to the transparent listener on the loaded port; ends the rule if there is none.
    Tproxy,
    /// Send the connection to another address and port; listed back in parts.
    DestinationNat(SocketAddrV4),
    /// Let the connection appear to come from this host.
    Masquerade,
    /// Answer with a TCP reset.
    Reset,
    /// Load a number below this one that differs from packet to packet (4 bytes, host order).
    Random(u32),
    /// Decide.
    Verdict(Verdict),
    /// Something this crate never writes.
    Unknown(String),
}
