//! Entry points for fuzzing: no request makes the server side of a stream panic or send a resource that the client may
//! not see.

use crate::delta::{Audience, Server, Snapshot, Versioned, View};
use crate::proto::discovery::DeltaDiscoveryRequest;
use crate::types::{ADDRESS, AUTHORIZATION};
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};

/// Messages of one stream that are processed.
const MAX_MESSAGES: usize = 64;

/// Resources for every client, for the client's namespace, and for another namespace. `round` changes one of them.
fn snapshot(round: usize) -> Snapshot {
    let resource = |name: &str, audience, version: usize| {
        let resource = Versioned {
            version: version.to_string(),
            bytes: vec![1, 2, 3],
            aliases: vec![format!("alias/{name}")],
            audience,
        };
        (name.to_owned(), resource)
    };
    Snapshot::new([
        resource("all", Audience::Everyone, 1),
        resource("changes", Audience::Everyone, round),
        resource("own", Audience::Namespace("shop".into()), 1),
        resource("secret", Audience::Namespace("bank".into()), 1),
    ])
}

/// Requests of one stream, each prefixed with its length.
///
/// # Panics
///
/// If the server sends a resource that the client may not see, the removal of a resource that it does not know, or a
/// response before the client answered the previous one.
pub fn requests(mut bytes: &[u8]) {
    let mut server = Server::with_view(View::Namespace("shop".into()));
    let mut waiting: BTreeMap<&str, String> = BTreeMap::new();
    let mut known: BTreeSet<String> = BTreeSet::new();
    for round in 0..MAX_MESSAGES {
        let Ok(request) = DeltaDiscoveryRequest::decode_length_delimited(&mut bytes) else {
            return;
        };
        waiting.retain(|kind, nonce| *kind != request.type_url || *nonce != request.response_nonce);
        known.extend(request.resource_names_subscribe.iter().cloned());
        known.extend(request.initial_resource_versions.keys().cloned());
        let _ = server.receive(request);
        for kind in [ADDRESS, AUTHORIZATION] {
            let Some(response) = server.next(kind, &snapshot(round)) else {
                continue;
            };
            assert!(!waiting.contains_key(kind), "a second response of {kind}");
            assert!(
                server.next(kind, &snapshot(round + 1)).is_none(),
                "before an answer"
            );
            assert_eq!(response.type_url, kind);
            for resource in &response.resources {
                assert_ne!(resource.name(), "secret", "it is for another namespace");
            }
            for name in &response.removed {
                assert!(known.contains(name), "the client never heard of {name:?}");
            }
            known.extend(
                response
                    .resources
                    .iter()
                    .map(|resource| resource.name().to_owned()),
            );
            let message = response.message();
            assert!(
                message.is_ok_and(|m| m.nonce == response.nonce && m.encoded_len() == response.encoded_len())
            );
            waiting.insert(kind, response.nonce);
        }
    }
}
