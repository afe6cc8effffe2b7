//! Pods on this machine: containers, images and what a node does for them.
//!
//! The lower half runs one container: [`container`] starts a process in namespaces of its own from a [`Spec`] and
//! tells how it ended, [`sandbox`] holds what the containers of a pod share, [`cgroup`] and [`seccomp`] limit them.
//! There is no daemon and no helper program; what this process started dies with it. [`image`], [`store`] and
//! [`registry`] turn references into root file systems.
//!
//! [`Spec`]: container::Spec

pub mod cgroup;
pub mod container;
pub mod image;
pub mod registry;
pub mod rootless;
pub mod sandbox;
pub mod seccomp;
pub mod store;
mod sys;
