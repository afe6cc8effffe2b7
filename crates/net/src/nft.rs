//! nftables by netlink: tables, chains, maps and rules, written in one transaction and read back.
//!
//! Covers the expressions that traffic capture needs and no more. What is written lists naturally with the
//! `nft` program: transport and address fields come after a test of the protocol they belong to. Integers of
//! nfnetlink are in network order; values are as the packet has them, except that what `meta` loads (marks,
//! ids) is in host order.

mod batch;
mod connection;
mod decode;
mod encode;
mod expression;

pub use batch::{Batch, ChainSpec, Hook};
pub use connection::{Connection, ListedRule, ListedTable, TransactionError};
pub use expression::{Base, Cmp, Ct, Expression, Meta, Verdict};

/// Every family.
pub(crate) const NFPROTO_UNSPEC: u8 = 0;
/// Both families in one table.
pub(crate) const NFPROTO_INET: u8 = 1;

pub(crate) mod kind {
    pub(crate) const SUBSYSTEM: u16 = 10 << 8;
    pub(crate) const NEWTABLE: u16 = SUBSYSTEM;
    pub(crate) const GETTABLE: u16 = SUBSYSTEM | 1;
    pub(crate) const DELTABLE: u16 = SUBSYSTEM | 2;
    pub(crate) const NEWCHAIN: u16 = SUBSYSTEM | 3;
    pub(crate) const GETCHAIN: u16 = SUBSYSTEM | 4;
    pub(crate) const NEWRULE: u16 = SUBSYSTEM | 6;
    pub(crate) const GETRULE: u16 = SUBSYSTEM | 7;
    pub(crate) const DELRULE: u16 = SUBSYSTEM | 8;
    pub(crate) const NEWSET: u16 = SUBSYSTEM | 9;
    pub(crate) const NEWSETELEM: u16 = SUBSYSTEM | 0xc;
    pub(crate) const GETSETELEM: u16 = SUBSYSTEM | 0xd;
    pub(crate) const DELSETELEM: u16 = SUBSYSTEM | 0xe;
    pub(crate) const BATCH_BEGIN: u16 = 0x10;
    pub(crate) const BATCH_END: u16 = 0x11;
}

/// `struct nfgenmsg`.
pub(crate) const fn generic(family: u8) -> [u8; 4] {
    [family, 0, 0, 0]
}

/// Reads bytes as a list of expressions, for fuzzing.
pub(crate) fn fuzz_expressions(bytes: &[u8]) {
    let _ = decode::expressions(crate::netlink::Attribute {
        kind: 0,
        value: bytes,
    });
}

#[cfg(test)]
mod tests;
