//! Pods on this machine: containers, images and what a node does for them.
//!
//! The lower half runs one container: [`container`] starts a process in namespaces of its own from a [`Spec`] and
//! tells how it ended, [`sandbox`] holds what the containers of a pod share, [`cgroup`] and [`seccomp`] limit them.
//! There is no daemon and no helper program; what this process started dies with it. [`image`], [`store`] and
//! [`registry`] turn references into root file systems.
//!
//! The upper half is a node and the cluster around it. Pure: [`manifest`] turns documents into pods, [`services`]
//! knows addresses and names, [`environment`] and [`volumes`] what a container gets. Acting: [`network`], [`dns`]. [`door`] is where
//! others talk to a run.
//!
//! [`Spec`]: container::Spec

pub mod cgroup;
pub mod container;
pub mod dns;
pub mod door;
mod egress;
pub mod environment;
pub mod fuzz;
pub mod image;
pub mod launch;
pub mod logs;
pub mod manifest;
pub mod mesh;
pub mod network;
pub mod objects;
pub mod pod;
pub mod provision;
pub mod registry;
pub mod relay;
pub mod rootless;
pub mod sandbox;
pub mod seccomp;
pub mod services;
pub mod session;
pub mod store;
mod sys;
pub mod token;
pub mod users;
pub mod visitor;
pub mod volumes;
pub mod world;
