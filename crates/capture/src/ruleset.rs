//! A plan as an nftables table: one table for both address families, with the switch built in.
//!
//! Rules that are the same for both families appear once. Where a rule would capture a connection, it jumps to a
//! *take* chain instead, which (1) skips packets that are not the first of a connection, so that installing rules
//! late resets no open connection, (2) looks up the switch, (3) captures the connection. Building a [`Ruleset`] is
//! pure; [`crate::ruleset::script`] prints it and [`crate::apply`] writes it to the kernel.

mod build;
mod decode;
mod encode;
pub mod script;

use remora_net::nft::Hook;
use remora_rules::rule::{Family, Match};

pub use build::ruleset;
pub use decode::{UnreadableRule, plan_of};
pub use encode::expressions;

/// The name of the table.
pub const TABLE: &str = "remora";
/// The name of the map that is the switch.
pub const GATE: &str = "gate";

/// Everything in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// The chains, base chains first.
    pub chains: Vec<NftChain>,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NftChain {
    /// The name.
    pub name: String,
    /// The hook of a base chain; `None` for a chain that rules jump to.
    pub hook: Option<Hook>,
    /// The rules in order.
    pub rules: Vec<NftRule>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NftRule {
    /// All of these must hold.
    pub tests: Vec<NftMatch>,
    /// What then happens.
    pub action: NftAction,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NftMatch {
    /// The packet is of this family, or of the other.
    Family {
        /// The family.
        family: Family,
        /// The other one instead.
        not: bool,
    },
    /// A condition of the plan.
    Plan(Match),
    /// A TCP packet that is not a SYN.
    NotFirst,
}

/// An action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NftAction {
    /// Leave the packet alone.
    Accept,
    /// Drop the packet.
    Drop,
    /// Go on after the jump.
    Return,
    /// Go through another chain.
    Jump(String),
    /// Look up the verdict for this protocol in the map that is the switch.
    AskSwitch,
    /// Send the connection to a port of this host.
    Redirect(u16),
    /// Hand the packet to the transparent listener.
    Tproxy {
        /// Its port.
        port: u16,
        /// The mark to put on the packet.
        mark: u32,
    },
    /// Put a mark on the packet.
    SetMark(u32),
    /// Copy the packet's mark to the connection.
    SaveMark,
    /// Copy the connection's mark to the packet.
    RestoreMark,
    /// Track the packet in this zone.
    Zone(u16),
}

impl Ruleset {
    /// A hash of the rules.
    pub fn fingerprint(&self) -> u64 {
        // FNV-1a over the printed form, which contains every detail of the rules.
        let text = crate::ruleset::script::table(self, remora_rules::switch::State::Closed, None);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    /// The comment of the table: the program's name and the fingerprint of the rules.
    pub fn comment(&self) -> String {
        format!("remora capture {:016x}", self.fingerprint())
    }
}

#[cfg(test)]
mod tests;
