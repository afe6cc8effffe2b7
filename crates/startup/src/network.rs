//! The network state of a pod's connections: from its capture rules, and whether a proxy listens.
//!
//! Which flows the rules capture is decided in `remora_rules`. A captured flow meets either a proxy or a closed port.

pub use remora_rules::flow::{Capture, Exempt, Flow};

/// The result of a connection attempt of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetState {
    /// Not captured: plain network, no mesh identity.
    Direct,
    /// Captured, and no proxy listens: the kernel refuses the connection immediately.
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

/// The state of a flow under these rules, given whether a proxy listens.
pub fn state(rules: &Capture, flow: &Flow, proxy_up: bool) -> NetState {
    match rules.exempt(flow) {
        Some(reason) => NetState::Excluded(reason),
        None if proxy_up || rules.is_ambient() => NetState::Proxied,
        None => NetState::Broken,
    }
}
