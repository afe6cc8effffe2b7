//! The model of how a kubelet starts and stops a pod under a mesh.
//!
//! * `remora_pod::spec` reads a pod from any JSON document, [`mesh`] finds the mesh in it, [`needs`] infers which
//!   containers need the network.
//! * [`kubelet`] is the kubelet's side of a pod as a step function: an event in, actions out. [`sim`] drives it on a
//!   virtual clock under stated assumptions, the engine on a real one. [`timeline`] arranges a simulation for drawing.
//! * [`network`] gives the network state of a flow; [`analysis`] gives bounds for every possible course of events: when
//!   each process has network, and which containers wait for each other.
//! * [`order`] plans the order in which containers start; `inject` uses it.
//! * [`findings`] turns that into findings with codes, fixes and explanations; [`json`] serialises all of it.
//!
//! Everything here is pure: no clock, no IO, no environment. Times and chance come in as arguments.
//! `docs/model.md` says what the model assumes and where each rule comes from.

pub mod analysis;
pub mod findings;
pub mod json;
pub mod kubelet;
pub mod mesh;
pub mod needs;
pub mod network;
pub mod order;
pub mod sim;
pub mod timeline;
