//! The proxy: takes a pod's captured connections and carries them, encrypted and checked, to where they were going.
//!
//! One `async fn` per way a connection can take: [`outbound`] for what the pod opens, [`hbone`] for tunnels from other
//! proxies, [`inbound`] for everything else that comes to the pod's ports. What they decide, they decide in pure functions ([`route`], [`balance`], [`admit`],
//! [`policy`]) over what discovery said ([`mesh`]); [`decision`] shows what they would decide.
//!
//! Promises: a connection whose policy is missing or not understood is refused; a reset travels as a reset and a
//! half-close as a half-close; every wait has an end; a slow peer holds a buffer, not memory that grows.

pub mod access;
mod admin;
pub mod admit;
pub mod balance;
mod budget;
pub mod connections;
pub mod context;
mod copy;
mod crowd;
pub mod decision;
pub mod dns;
pub mod drain;
pub mod fuzz;
mod guard;
pub mod hbone;
pub mod inbound;
pub mod join;
mod listen;
pub mod mesh;
pub mod metrics;
pub mod outbound;
pub mod policy;
mod pool;
mod rarely;
pub mod rest;
pub mod route;
pub mod sniff;
mod socket;
mod spare;

pub use context::{Context, Hold, Limits, Settings, UnknownDestinations};
pub use listen::{Listeners, hand_over, serve};
