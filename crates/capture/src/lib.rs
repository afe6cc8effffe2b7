//! Traffic capture in the kernel: puts the rules of `remora_rules` into a network namespace, and looks at them.
//!
//! What the rules are is decided in `remora_rules`. Here they are encoded ([`ruleset()`]), applied by nftables or by the
//! iptables programs ([`install`]), compared with what is installed ([`verify`]) and tried with packets ([`validate`]).

pub mod apply;
pub mod facts;
pub mod fuzz;
pub mod install;
pub mod iptables;
pub mod ruleset;
pub mod validate;
pub mod verify;

pub use ruleset::ruleset;
