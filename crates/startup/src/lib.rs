//! The model of how a kubelet starts and stops a pod under a mesh.

pub mod order;
