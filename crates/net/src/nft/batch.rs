//! A transaction under construction. The kernel applies all of it atomically, or nothing.

use super::expression::{Expression, Verdict};
use super::{NFPROTO_INET, encode, generic, kind};
use crate::netlink::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, Writer};

/// nft's own number for the type "transport protocol", so that it can list the map.
const TYPE_PROTOCOL: u32 = 12;
const TYPE_VERDICT: u32 = 0xffff_ff00;
const SET_IS_MAP: u32 = 8;

/// The netfilter hook that a base chain is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hook {
    /// `nat`, `filter` or `route`.
    pub kind: &'static str,
    /// The hook number: output (3) or prerouting (0).
    pub number: u32,
    /// The priority among the chains of the same hook.
    pub priority: i32,
}

/// A chain to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainSpec<'a> {
    /// The name.
    pub name: &'a str,
    /// The hook of a base chain; `None` for a chain that rules jump to.
    pub hook: Option<Hook>,
}

/// A transaction under construction.
#[derive(Debug)]
pub struct Batch {
    pub(super) writer: Writer,
    pub(super) names: Vec<String>,
    first: u32,
    table: String,
}

impl Batch {
    /// A transaction about one table of family `inet`.
    pub fn new(table: &str) -> Self {
        let mut writer = Writer::with_capacity(16 * 1024);
        // The fixed part names the subsystem the batch is for.
        writer.begin(kind::BATCH_BEGIN, NLM_F_REQUEST, 0, &[0, 0, 0, 10]);
        writer.end();
        Self {
            writer,
            names: Vec::with_capacity(64),
            first: 1,
            table: table.to_owned(),
        }
    }

    /// Adds the table if it does not exist.
    pub fn add_table(&mut self, comment: Option<&str>) {
        self.new_table(0, comment);
    }

    fn new_table(&mut self, flags: u16, comment: Option<&str>) {
        let table = self.table.clone();
        self.message(
            kind::NEWTABLE,
            NLM_F_CREATE | flags,
            || "table".into(),
            |w| {
                w.text(1, &table);
                if let Some(comment) = comment {
                    w.bytes(6, &comment_data(comment));
                }
            },
        );
    }

    /// Creates the table; an error if it exists.
    pub fn create_table(&mut self, comment: &str) {
        self.new_table(NLM_F_EXCL, Some(comment));
    }

    /// Removes the table with everything in it; an error if it does not exist.
    pub fn delete_table(&mut self) {
        let table = self.table.clone();
        self.message(
            kind::DELTABLE,
            0,
            || "removal of the table".into(),
            |w| w.text(1, &table),
        );
    }

    /// Adds a chain.
    pub fn add_chain(&mut self, chain: &ChainSpec<'_>) {
        let table = self.table.clone();
        self.message(
            kind::NEWCHAIN,
            NLM_F_CREATE,
            || format!("chain {}", chain.name),
            |w| {
                w.text(1, &table);
                w.text(3, chain.name);
                if let Some(hook) = chain.hook {
                    w.nested(4, |w| {
                        w.net_u32(1, hook.number);
                        w.bytes(2, &hook.priority.to_be_bytes());
                    });
                    w.text(7, hook.kind);
                }
            },
        );
    }

    /// Adds an empty map from transport protocols to verdicts.
    pub fn add_verdict_map(&mut self, name: &str) {
        let table = self.table.clone();
        self.message(
            kind::NEWSET,
            NLM_F_CREATE,
            || format!("map {name}"),
            |w| {
                w.text(1, &table);
                w.text(2, name);
                w.net_u32(3, SET_IS_MAP);
                w.net_u32(4, TYPE_PROTOCOL);
                w.net_u32(5, 1);
                w.net_u32(6, TYPE_VERDICT);
                w.net_u32(7, 16);
                w.net_u32(10, 1);
            },
        );
    }

    /// Empties a map.
    pub fn clear_map(&mut self, name: &str) {
        let table = self.table.clone();
        self.message(
            kind::DELSETELEM,
            0,
            || format!("clearing of map {name}"),
            |w| {
                w.text(1, &table);
                w.text(2, name);
            },
        );
    }

    /// Adds elements to a map.
    pub fn add_elements(&mut self, map: &str, elements: &[(u8, Verdict)]) {
        if elements.is_empty() {
            return;
        }
        let table = self.table.clone();
        self.message(
            kind::NEWSETELEM,
            NLM_F_CREATE,
            || format!("elements of map {map}"),
            |w| {
                w.text(1, &table);
                w.text(2, map);
                w.nested(3, |w| {
                    for (protocol, verdict) in elements {
                        w.nested(1, |w| {
                            w.nested(1, |w| w.bytes(1, &[*protocol]));
                            w.nested(2, |w| encode::verdict(w, verdict));
                        });
                    }
                });
            },
        );
    }

    /// Adds a rule at the end of a chain.
    pub fn add_rule(&mut self, chain: &str, expressions: &[Expression]) {
        let table = self.table.clone();
        let number = self.names.len();
        let name = || format!("rule (message {number}) of chain {chain}");
        self.message(kind::NEWRULE, NLM_F_CREATE | NLM_F_APPEND, name, |w| {
            w.text(1, &table);
            w.text(2, chain);
            w.nested(4, |w| {
                for expression in expressions {
                    encode::expression(w, expression);
                }
            });
        });
    }

    /// Removes all rules of a chain.
    pub fn flush_chain(&mut self, chain: &str) {
        let table = self.table.clone();
        self.message(
            kind::DELRULE,
            0,
            || format!("clearing of chain {chain}"),
            |w| {
                w.text(1, &table);
                w.text(2, chain);
            },
        );
    }

    /// The size in bytes so far.
    pub fn size(&self) -> usize {
        self.writer.as_bytes().len()
    }

    fn message(
        &mut self,
        kind: u16,
        flags: u16,
        name: impl FnOnce() -> String,
        content: impl FnOnce(&mut Writer),
    ) {
        let sequence = self.first + u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(name());
        self.writer
            .begin(kind, NLM_F_REQUEST | flags, sequence, &generic(NFPROTO_INET));
        content(&mut self.writer);
        self.writer.end();
    }

    /// Closes the batch; returns the number of the message that will be acknowledged.
    pub(super) fn finish(&mut self) -> u32 {
        // The last real message is acknowledged: kernels before 6.10 do not do it for the end of a batch.
        self.writer.add_flags(NLM_F_ACK);
        let last = self.first + u32::try_from(self.names.len()).unwrap_or(u32::MAX) - 1;
        self.writer
            .begin(kind::BATCH_END, NLM_F_REQUEST, last + 1, &[0, 0, 0, 10]);
        self.writer.end();
        last
    }

    /// A description, for errors, of the message with this sequence number.
    pub(super) fn name_of(&self, sequence: u32) -> &str {
        let index = usize::try_from(sequence.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.names.get(index).map_or("transaction", String::as_str)
    }
}

/// A comment as the `nft` program stores it: type 0, length, text with its nul.
fn comment_data(comment: &str) -> Vec<u8> {
    let mut data = vec![0, u8::try_from(comment.len() + 1).unwrap_or(u8::MAX)];
    data.extend_from_slice(comment.as_bytes());
    data.push(0);
    data
}
