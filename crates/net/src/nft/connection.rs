//! Sending transactions and reading back what is there.

use super::batch::Batch;
use super::expression::{Expression, Verdict};
use super::{NFPROTO_INET, NFPROTO_UNSPEC, decode, generic, kind};
use crate::netlink::{Attributes, KernelError, Message, NLM_F_DUMP, NLM_F_REQUEST, Protocol, Socket, Writer};
use std::io;

/// The kernel refused a transaction; nothing of it happened.
#[derive(Debug, thiserror::Error)]
#[error("nftables refused the {what}")]
pub struct TransactionError {
    /// The message of the batch that the kernel refused.
    pub what: String,
    /// Why.
    #[source]
    pub source: KernelError,
}

/// A table that is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTable {
    /// The name.
    pub name: String,
    /// The comment, if it has one.
    pub comment: Option<String>,
}

/// A rule that is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRule {
    /// The chain it is in.
    pub chain: String,
    /// The expressions of the rule, in order.
    pub expressions: Vec<Expression>,
}

/// A connection to the nftables of one namespace.
///
/// Callers keep it open while changes may follow: closing a connection that changed something takes the kernel
/// several milliseconds, a change takes microseconds.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
}

impl Connection {
    /// Opens a connection to the namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            socket: Socket::open(Protocol::Netfilter)?,
        })
    }

    /// Commits a transaction.
    pub fn commit(&mut self, mut batch: Batch) -> Result<(), TransactionError> {
        if batch.names.is_empty() {
            return Ok(());
        }
        let last = batch.finish();
        // Below the default limit of a socket there is nothing to reserve.
        if batch.size() > 64 * 1024 {
            self.socket.reserve(batch.size());
        }
        self.socket.transact(&batch.writer, last).map_err(|source| {
            let what = batch.name_of(source.sequence).to_owned();
            TransactionError { what, source }
        })
    }

    /// The tables of family `inet`.
    pub fn tables(&mut self) -> Result<Vec<ListedTable>, KernelError> {
        self.list(
            NFPROTO_INET,
            kind::GETTABLE,
            |_| {},
            |attributes| {
                let comment = attributes.find(6).and_then(|data| comment(data.value));
                Some(ListedTable {
                    name: attributes.find(1)?.text(),
                    comment,
                })
            },
        )
    }

    /// The chains of every table of every family, as table and chain.
    pub fn all_chains(&mut self) -> Result<Vec<(String, String)>, KernelError> {
        self.list(
            NFPROTO_UNSPEC,
            kind::GETCHAIN,
            |_| {},
            |attributes| Some((attributes.find(1)?.text(), attributes.find(3)?.text())),
        )
    }

    /// The rules of a table, chain by chain in order.
    pub fn rules(&mut self, table: &str) -> Result<Vec<ListedRule>, KernelError> {
        self.list(
            NFPROTO_INET,
            kind::GETRULE,
            |w| w.text(1, table),
            |attributes| {
                if attributes.find(1)?.text() != table {
                    return None;
                }
                let chain = attributes.find(2)?.text();
                let expressions = attributes.find(4).map(decode::expressions).unwrap_or_default();
                Some(ListedRule { chain, expressions })
            },
        )
    }

    /// The elements of a map from transport protocols to verdicts.
    pub fn elements(&mut self, table: &str, map: &str) -> Result<Vec<(u8, Verdict)>, KernelError> {
        let request = |w: &mut Writer| {
            w.text(1, table);
            w.text(2, map);
        };
        let parts = self.list(NFPROTO_INET, kind::GETSETELEM, request, |attributes| {
            let elements = attributes.find(3)?.nested();
            Some(
                elements
                    .filter_map(|item| element(&item.nested()))
                    .collect::<Vec<_>>(),
            )
        })?;
        Ok(parts.into_iter().flatten().collect())
    }

    fn list<T>(
        &mut self,
        family: u8,
        kind: u16,
        request: impl Fn(&mut Writer),
        item: impl Fn(&Attributes<'_>) -> Option<T>,
    ) -> Result<Vec<T>, KernelError> {
        self.socket.dump(
            |writer, sequence| {
                writer.begin(kind, NLM_F_REQUEST | NLM_F_DUMP, sequence, &generic(family));
                request(writer);
                writer.end();
            },
            |message: &Message<'_>| item(&Attributes::new(message.payload.get(4..)?)),
        )
    }
}

fn element(element: &Attributes<'_>) -> Option<(u8, Verdict)> {
    let key = element.find(1)?.nested().find(1)?.value.first().copied()?;
    let verdict = decode::verdict(&element.find(2)?.nested())?;
    Some((key, verdict))
}

fn comment(data: &[u8]) -> Option<String> {
    let [0, length, text @ ..] = data else { return None };
    let text = text.get(..usize::from(*length).checked_sub(1)?)?;
    String::from_utf8(text.to_vec()).ok()
}
