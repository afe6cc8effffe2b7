//! One line for every connection, when it is over.

use remora_mtls::SpiffeId;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// From whose side a connection is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Opened by the pod.
    Outbound,
    /// To the pod.
    Inbound,
}

/// A connection that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// From whose side.
    pub direction: Direction,
    /// Who opened it.
    pub source: SocketAddr,
    /// Its identity, if it proved one.
    pub source_id: Option<SpiffeId>,
    /// Where it went, as the one who opened it saw it.
    pub destination: SocketAddr,
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
    /// What went wrong.
    pub error: Option<String>,
}

// istio: names and directions as in ztunnel's access log: outbound `bytes_sent` is what the client sent, inbound
// `bytes_sent` what the server sent.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (direction, sent, received) = match self.direction {
            Direction::Outbound => ("outbound", self.forward, self.backward),
            Direction::Inbound => ("inbound", self.backward, self.forward),
        };
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
        write!(
            f,
            " direction={direction} bytes_sent={sent} bytes_recv={received}"
        )?;
        write!(f, " duration=\"{}ms\"", self.duration.as_millis())?;
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
