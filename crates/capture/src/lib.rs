//! Traffic capture: what `istio-iptables` does, as data first and as kernel state second.
//!
//! [`Settings`](options::Settings) read flags and environment, [`plan()`] turns the resulting [`Intent`] into
//! rules, and those are printed ([`render`]), evaluated or applied. Everything up to the rules is pure.

pub mod apply;
pub mod chains;
pub mod explain;
pub mod facts;
pub mod fuzz;
pub mod install;
pub mod intent;
pub mod iptables;
pub mod options;
mod plan;
pub mod pod;
pub mod render;
pub mod rule;
pub mod ruleset;
pub mod switch;
pub mod validate;
pub mod value;
pub mod verify;

pub use intent::Intent;
pub use plan::{Plan, PolicyRoute, plan};
pub use ruleset::ruleset;
