//! A plan in the shape nftables wants: one table for both families, with the switch built in.
//!
//! Rules that are the same for both families appear once. Wherever a rule would take a connection over, it
//! jumps to a *take* chain instead, which (1) leaves alone what is not the first packet of a connection, so
//! that installing rules late resets nobody, (2) asks the switch, (3) takes the connection over. Building a
//! [`Ruleset`] is pure; it is printed by [`crate::ruleset::script`] and written to the kernel by [`crate::apply`].

mod build;
mod decode;
mod encode;
pub mod script;

use remora_net::nft::Hook;
use remora_rules::rule::{Family, Match};

pub use build::ruleset;
pub use decode::{Unreadable, plan_of};
pub use encode::expressions;

/// The name of the table.
pub const TABLE: &str = "remora";
/// The name of the map that is the switch.
pub const GATE: &str = "gate";

/// Everything in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// The chains, those the kernel consults first.
    pub chains: Vec<NftChain>,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NftChain {
    /// The name.
    pub name: String,
    /// When the kernel consults it, if it does.
    pub hook: Option<Hook>,
    /// The rules in order.
    pub rules: Vec<NftRule>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NftRule {
    /// All of these must hold.
    pub tests: Vec<Test>,
    /// What then happens.
    pub action: Do,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// The packet is of this family, or of the other.
    Family {
        /// The family.
        family: Family,
        /// The other one instead.
        not: bool,
    },
    /// A condition of the plan.
    Plan(Match),
    /// It is a TCP packet that does not ask for a new connection.
    NotFirst,
}

/// An action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Do {
    /// Leave the packet alone.
    Accept,
    /// Throw it away.
    Drop,
    /// Go on after the jump.
    Return,
    /// Go through another chain.
    Jump(String),
    /// Do what the switch says for this protocol.
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
    /// A number that changes when the rules do.
    pub fn fingerprint(&self) -> u64 {
        // FNV-1a over the printed form, which names every detail.
        let text = crate::ruleset::script::table(self, remora_rules::switch::State::Closed, None);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    /// The comment of the table: who made it, and which rules are in it.
    pub fn comment(&self) -> String {
        format!("remora capture {:016x}", self.fingerprint())
    }
}

#[cfg(test)]
mod tests;
