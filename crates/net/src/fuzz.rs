//! Entry points for fuzzing: bytes from anywhere must never make anything panic or loop.

use crate::netlink::{Attributes, Messages};

/// A datagram as if it came from the kernel.
pub fn messages(bytes: &[u8]) {
    for message in Messages::new(bytes) {
        for attribute in Attributes::new(message.payload) {
            let _ = (attribute.text(), attribute.net_u32(), attribute.host_u32());
        }
    }
    crate::nft::fuzz_expressions(bytes);
}
