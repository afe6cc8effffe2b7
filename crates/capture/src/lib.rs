//! Traffic capture in the kernel: installs the rules of `remora_rules` in a network namespace and verifies them.
//!
//! `remora_rules` decides the rules. This crate encodes them ([`ruleset()`]), installs them with nftables or with the
//! iptables programs ([`install`]), compares them with the installed rules ([`verify`]) and probes them with real
//! packets ([`validate`]).

pub mod apply;
pub mod facts;
pub mod fuzz;
pub mod install;
pub mod iptables;
pub mod ruleset;
pub mod validate;
pub mod verify;

pub use ruleset::ruleset;
