//! Decides about one message from a client. Pure.

use super::names::{Client, Directory, Found, find};
use super::packet::{A, AAAA, IN, LARGEST, NoQuery, Query, wrong};

/// How a client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// By datagrams, which can be too small.
    Udp,
    /// By a connection.
    Tcp,
}

/// What becomes of a message.
#[derive(Debug)]
pub enum Decision<'a> {
    /// The mesh knows; this is the answer.
    Answer(Vec<u8>),
    /// Others are to be asked. `exists`: the mesh knows the name, so there is such a name whatever others say.
    Forward {
        /// What to ask.
        query: Query<'a>,
        /// Whether the mesh knows the name.
        exists: bool,
    },
    /// No question that can be answered; this says so.
    Refuse(Vec<u8>),
    /// To be answered by nobody.
    Silence,
}

/// Decides. `turn` makes one answer after the other begin with another address.
///
/// A name that is not known is asked for elsewhere; so is everything while discovery has not spoken yet.
// differs from istio: before the first table its agent answers SERVFAIL; here others are asked, because the cluster's
// own DNS knows the same addresses, and an application that starts early should not fail for a name that has nothing
// to do with the mesh.
pub fn decide<'a>(
    message: &'a [u8],
    transport: Transport,
    client: &Client,
    directory: &dyn Directory,
    turn: usize,
) -> Decision<'a> {
    let query = match Query::read(message) {
        Ok(query) => query,
        Err(NoQuery::Silence) => return Decision::Silence,
        Err(NoQuery::Wrong(code)) => {
            return wrong(message, code).map_or(Decision::Silence, Decision::Refuse);
        }
    };
    let found = query
        .name()
        .filter(|_| query.class == IN)
        .and_then(|name| find(name, client, directory));
    match found {
        Some(found) if matches!(query.kind, A | AAAA) => {
            Decision::Answer(answer(&query, transport, found, turn))
        }
        found => Decision::Forward {
            exists: found.is_some(),
            query,
        },
    }
}

/// A host without an address of the family that was asked for exists all the same: no error, no records.
fn answer(query: &Query<'_>, transport: Transport, found: Found, turn: usize) -> Vec<u8> {
    let mut addresses = found.addresses;
    addresses.retain(|address| address.is_ipv4() == (query.kind == A));
    if !addresses.is_empty() {
        let first = turn % addresses.len();
        addresses.rotate_left(first);
    }
    let limit = match transport {
        Transport::Udp => query.datagram(),
        Transport::Tcp => LARGEST,
    };
    query.addresses(found.meant.as_deref(), &addresses, limit)
}
