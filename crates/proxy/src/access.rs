//! One line for every connection, when it is over.
//!
//! [`Record`] is what is said, [`log`] how it gets out without anybody waiting for it.

mod json;
pub mod log;

pub(crate) use json::timestamp;
pub use log::Log;

use crate::admit::Refused;
use crate::pool::PoolError;
use crate::route::NoRoute;
use remora_mtls::SpiffeId;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// From whose side a connection is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Opened by the pod.
    Outbound,
    /// To the pod.
    Inbound,
}

impl Direction {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Outbound => "outbound",
            Self::Inbound => "inbound",
        }
    }
}

/// Why a connection failed, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Policy, or the mode of a port, does not allow it.
    Denied,
    /// It was allowed when it began.
    NoLongerAllowed,
    /// Whoever it goes to cannot be reached.
    Connect,
    /// TLS failed.
    Tls,
    /// The tunnel failed.
    Tunnel,
    /// Nothing of the mesh where only the mesh may be called, or nothing that can be meant.
    NoRoute,
    /// A service with nobody behind it.
    NoEndpoint,
    /// Discovery has not named whom it is about.
    Discovery,
    /// A request that cannot be meant.
    BadRequest,
    /// Too many connections.
    Overload,
    /// Nothing moved for too long.
    Idle,
    /// The proxy ends.
    Drain,
    /// One of the two sides broke off.
    Reset,
    /// The proxy gave it up before it was over.
    Abandoned,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Denied,
        Self::NoLongerAllowed,
        Self::Connect,
        Self::Tls,
        Self::Tunnel,
        Self::NoRoute,
        Self::NoEndpoint,
        Self::Discovery,
        Self::BadRequest,
        Self::Overload,
        Self::Idle,
        Self::Drain,
        Self::Reset,
        Self::Abandoned,
    ];

    /// As it is written.
    pub fn code(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::NoLongerAllowed => "no_longer_allowed",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Tunnel => "tunnel",
            Self::NoRoute => "no_route",
            Self::NoEndpoint => "no_endpoint",
            Self::Discovery => "discovery",
            Self::BadRequest => "bad_request",
            Self::Overload => "overload",
            Self::Idle => "idle",
            Self::Drain => "drain",
            Self::Reset => "reset",
            Self::Abandoned => "abandoned",
        }
    }

    /// The value of `response_flags`.
    // istio: words as of ztunnel where it has one, else the letters of Envoy.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Denied | Self::NoLongerAllowed => "DENY",
            Self::Connect => "CONNECT",
            Self::Tls => "TLS_FAILURE",
            Self::Tunnel => "H2_HANDSHAKE_FAILURE",
            Self::NoRoute | Self::Discovery => "NR",
            Self::NoEndpoint => "UH",
            Self::BadRequest => "DPE",
            Self::Overload => "UO",
            Self::Idle => "SI",
            Self::Drain | Self::Abandoned => "LR",
            Self::Reset => "UC",
        }
    }
}

/// Why a connection failed, for programs and people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For programs.
    pub reason: Reason,
    /// For people.
    pub text: String,
}

impl Failure {
    pub(crate) fn new(reason: Reason, text: impl fmt::Display) -> Self {
        Self {
            reason,
            text: text.to_string(),
        }
    }

    /// One of the sides broke off while bytes moved.
    pub(crate) fn reset(error: impl fmt::Display) -> Self {
        Self::new(Reason::Reset, error)
    }
}

impl From<NoRoute> for Failure {
    fn from(error: NoRoute) -> Self {
        let reason = match error {
            NoRoute::Reserved(_)
            | NoRoute::Unknown(_)
            | NoRoute::NoPort { .. }
            | NoRoute::OtherNetwork(_) => Reason::NoRoute,
            NoRoute::NoEndpoint { .. } => Reason::NoEndpoint,
            NoRoute::NoWaypoint(_) => Reason::Discovery,
        };
        Self::new(reason, error)
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        let reason = match &error {
            PoolError::Config(_) | PoolError::Handshake(..) | PoolError::Slow(..) => Reason::Tls,
            PoolError::Http(..) | PoolError::Name(_) => Reason::Tunnel,
            PoolError::Status(_, status) if *status == http::StatusCode::UNAUTHORIZED => Reason::Denied,
            PoolError::Connect(..) | PoolError::Shared(_) | PoolError::Status(..) => Reason::Connect,
        };
        Self::new(reason, error)
    }
}

impl From<Refused> for Failure {
    fn from(error: Refused) -> Self {
        let reason = match error {
            Refused::Reserved(_) | Refused::ProxyProtocol(_) => Reason::NoRoute,
            Refused::Unknown(_) => Reason::Discovery,
            Refused::Plaintext | Refused::Denied(_) => Reason::Denied,
            Refused::BadRequest(_) | Refused::NotOurs(_) => Reason::BadRequest,
        };
        Self::new(reason, error)
    }
}

/// Somebody at one end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Party {
    /// The workload's name, if it is known.
    pub workload: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
}

/// A connection that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When it began.
    pub began: SystemTime,
    /// From whose side.
    pub direction: Direction,
    /// Who opened it.
    pub source: SocketAddr,
    /// The workload that is.
    pub source_party: Party,
    /// Its identity, if it proved one.
    pub source_id: Option<SpiffeId>,
    /// Where it went, as the one who opened it saw it.
    pub destination: SocketAddr,
    /// Where it arrived, if somebody was chosen.
    pub chosen: Option<SocketAddr>,
    /// The workload that is.
    pub destination_party: Party,
    /// The workload that answered, if it went to one.
    pub destination_id: Option<SpiffeId>,
    /// The service that was dialled.
    pub service: Option<String>,
    /// Bytes from the one who opened it.
    pub forward: u64,
    /// Bytes back.
    pub backward: u64,
    /// How long it was open.
    pub duration: Duration,
    /// What policies on trial would have decided, where that is something else. Of the end that policies protect.
    pub on_trial: Option<String>,
    /// What went wrong, for programs.
    pub reason: Option<Reason>,
    /// What went wrong, for people.
    pub error: Option<String>,
}

impl Record {
    /// Bytes sent and received as seen from the side of the pod.
    // istio: as in ztunnel's access log: outbound `bytes_sent` is what the client sent, inbound what the server sent.
    pub fn sent_and_received(&self) -> (u64, u64) {
        match self.direction {
            Direction::Outbound => (self.forward, self.backward),
            Direction::Inbound => (self.backward, self.forward),
        }
    }
}

// istio: names as in ztunnel's access log.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sent, received) = self.sent_and_received();
        write!(f, "src.addr={}", self.source)?;
        if let Some(id) = &self.source_id {
            write!(f, " src.identity=\"{id}\"")?;
        }
        write!(f, " dst.addr={}", self.destination)?;
        if let Some(service) = &self.service {
            write!(f, " dst.service={service:?}")?;
        }
        if let Some(id) = &self.destination_id {
            write!(f, " dst.identity=\"{id}\"")?;
        }
        let direction = self.direction.word();
        write!(
            f,
            " direction={direction} bytes_sent={sent} bytes_recv={received}"
        )?;
        write!(f, " duration=\"{}ms\"", self.duration.as_millis())?;
        if let Some(verdict) = &self.on_trial {
            write!(f, " policy.dry_run={verdict:?}")?;
        }
        if let Some(reason) = self.reason {
            write!(f, " reason={}", reason.code())?;
        }
        match &self.error {
            // Quoted with escapes: what a peer says must not look like a line of ours.
            Some(error) => write!(f, " error={error:?}"),
            None => Ok(()),
        }
    }
}

/// Bytes of a connection that is open.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    forward: AtomicU64,
    backward: AtomicU64,
}

impl Traffic {
    pub(crate) fn forward(&self) -> &AtomicU64 {
        &self.forward
    }

    pub(crate) fn backward(&self) -> &AtomicU64 {
        &self.backward
    }

    pub(crate) fn read(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.forward), read(&self.backward))
    }
}

#[cfg(test)]
mod tests;
