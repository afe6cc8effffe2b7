//! A mesh that a Kubernetes cluster describes.
//!
//! [`world`] turns objects into documents of the mesh, without IO.

mod pod;
mod policy;
mod service;
pub mod world;

pub use world::{Kind, World};
