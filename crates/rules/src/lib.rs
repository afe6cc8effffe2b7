//! The behaviour of `istio-iptables` as data: options, rules, and the evaluation of packets.
//!
//! Flags, environment variables, annotations or a pod give [`options::Settings`]; those and the facts of a host give an
//! [`Intent`]; [`plan()`] turns it into [`rule::Rule`]s; [`explain::Evaluator`] evaluates the rules for a packet. Only
//! this crate knows the options and their meaning: the kernel's rules (`capture`), the model of start-up (`startup`),
//! injection and the command line all use it. No IO.

pub mod chains;
pub mod dialect;
pub mod explain;
pub mod flow;
pub mod intent;
pub mod options;
mod plan;
pub mod pod;
pub mod render;
pub mod rule;
pub mod switch;
pub mod value;

pub use intent::Intent;
pub use plan::{Plan, PolicyRoute, plan};
