//! Kubernetes documents: YAML as Go reads and writes it, pod views, annotations.
//!
//! A document stays a [`serde_json::Value`] from the moment it is read until it is written, so fields this
//! crate has never heard of survive untouched. What is typed here is only what has to be judged: quantities,
//! names, selectors, ports, images.
//!
//! Nothing in this crate does IO, reads the clock or the environment, or panics on any input.

pub mod cidr;
pub mod duration;
pub mod image;
pub mod merge;
pub mod names;
pub mod object;
pub mod path;
pub mod ports;
pub mod quantity;
mod quote;
pub mod selector;
pub mod spec;
pub mod validate;
pub mod view;
pub mod workload;
pub mod yaml;

pub use path::{Path, Segment};
