//! Netlink: messages, attributes, and a socket for request and reply.
//!
//! Attribute headers are in host byte order; the protocol above defines the encoding of values. A reply is parsed
//! with bounds checks: bytes from the kernel are treated like untrusted bytes.

mod read;
mod socket;
mod write;

pub use read::{Attribute, Attributes, Message, Messages};
pub use socket::{KernelError, Protocol, Socket};
pub use write::Writer;

pub(crate) const HEADER_LENGTH: usize = 16;
pub(crate) const NLM_F_REQUEST: u16 = 1;
pub(crate) const NLM_F_ACK: u16 = 4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_APPEND: u16 = 0x800;
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10;
pub(crate) const NLM_F_CAPPED: u16 = 0x100;
pub(crate) const NLM_F_ACK_TLVS: u16 = 0x200;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
pub(crate) const NLA_F_NESTED: u16 = 0x8000;

pub(crate) const fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests;
