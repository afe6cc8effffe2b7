//! Plans as text.

pub mod iptables;
pub mod nft;
