//! The model of how a kubelet starts and stops a pod under a mesh.

pub mod analysis;
pub mod findings;
pub mod kubelet;
pub mod mesh;
pub mod needs;
pub mod network;
pub mod order;
pub mod sim;
pub mod view;
//!
//! [`view`] reads a pod from any JSON document; [`kubelet`] is the kubelet's side of it as a step function;
//! [`sim`] drives that on a virtual clock under stated assumptions; [`network`] says which flows are captured.
//!
//! Everything here is pure: no clock, no IO, no environment. Times and chance come in as arguments.

