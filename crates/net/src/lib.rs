//! The kernel's network interfaces behind safe functions: namespaces, netlink, sockets, privileges.
//!
//! This is the crate that may contain `unsafe`, in `sys` only: every call there is wrapped in a short safe
//! function that owns its buffers and descriptors. Nothing here decides what should be in a namespace: the
//! crate sends requests to the kernel and returns the kernel's replies.

pub mod address;
pub mod fuzz;
pub mod link;
pub mod listeners;
pub mod memory;
pub mod namespace;
pub mod netlink;
pub mod nft;
pub mod packet;
pub mod pipe;
pub mod privilege;
pub mod process;
pub mod profile;
pub mod route;
pub mod socket;
mod sys;

pub use namespace::Namespace;
