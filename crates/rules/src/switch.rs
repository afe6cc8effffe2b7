//! The switch: whether captured connections go to the proxy, wait, or pass by.
//!
//! The rules are always installed completely. The switch is consulted where a connection would be captured, so
//! exempt traffic (the proxy's own, excluded ports, loopback) is never affected. Flipping it affects new connections
//! only. With nftables it is one transaction for both families; the iptables programs need one call per family, and
//! install a switch only if the options set its state.
//!
//! The client's kernel retransmits the SYN of a held TCP connection. A held DNS query over UDP fails immediately with
//! "operation not permitted", because the kernel reports a packet dropped on output to its sender; resolvers retry.

use std::fmt;
use std::str::FromStr;

/// What happens to connections that the rules capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// They bypass the proxy, as if there were no rules.
    Open,
    /// They wait: their first packets are dropped, and the clients retry.
    Hold,
    /// They go to the proxy's port, and are refused while no process listens there. Istio's behaviour.
    Closed,
    /// As `Closed`, and the proxy has reported that it is ready.
    On,
}

impl State {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Open, Self::Hold, Self::Closed, Self::On];

    /// Whether connections go to the proxy.
    pub const fn captures(self) -> bool {
        matches!(self, Self::Closed | Self::On)
    }

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Hold => "hold",
            Self::Closed => "closed",
            Self::On => "on",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not the name of a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of open, hold, closed, on")]
pub struct UnknownState(String);

impl FromStr for State {
    type Err = UnknownState;

    fn from_str(text: &str) -> Result<Self, UnknownState> {
        Self::ALL
            .into_iter()
            .find(|state| state.name() == text)
            .ok_or_else(|| UnknownState(text.to_owned()))
    }
}
