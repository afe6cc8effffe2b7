//! The receiving side, over one stream after another.
//!
//! Promises: every response is answered exactly once, with what was wrong if something was; one bad resource does
//! not spoil the others; after a reconnect only what changed is sent again; what vanished while disconnected is
//! noticed (the server is told what we have, and removes what it no longer knows).

use super::WILDCARD;
use crate::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// gRPC's `INVALID_ARGUMENT`.
const INVALID_ARGUMENT: i32 = 3;
/// A refusal names at most this many resources: a message must not grow with the mesh.
const REFUSALS_NAMED: usize = 10;

/// What is wanted of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// All there is.
    Everything,
    /// Single names, more of them as they are asked for.
    OnDemand,
}

/// One resource came, changed or went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// New or changed.
    Update {
        /// Its name.
        name: String,
        /// Its encoded form.
        bytes: Vec<u8>,
    },
    /// Gone.
    Remove {
        /// Its name.
        name: String,
    },
}

/// What a response brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Which type it is about.
    pub type_url: String,
    /// What to apply, in order.
    pub changes: Vec<Change>,
    nonce: String,
    versions: Vec<(String, Held)>,
}

impl Received {
    /// What did not come in a response, but from a control plane in the same process.
    pub fn of(type_url: &str, changes: Vec<Change>) -> Self {
        Self {
            type_url: type_url.to_owned(),
            changes,
            ..Self::default()
        }
    }

    /// The versions under which resources came, by name.
    pub fn versions(&self) -> impl Iterator<Item = (&str, &str)> {
        self.versions
            .iter()
            .map(|(name, held)| (name.as_str(), held.version.as_str()))
    }
}

/// What is remembered of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    version: String,
    aliases: Vec<String>,
}

#[derive(Debug)]
struct Type {
    interest: Interest,
    /// Names asked for on demand.
    names: BTreeSet<String>,
    /// What we hold, with the versions under which it came.
    held: BTreeMap<String, Held>,
    synced: bool,
    /// The server was not told what we hold: its first response is everything there is.
    replaced: bool,
}

/// More than this is not said about what we hold: servers take requests of 4 MiB (istio: likewise).
const LARGEST_OPENING: usize = 3 << 20;

impl Type {
    /// About how long a list of all that we hold is on the wire.
    fn opening_size(&self) -> usize {
        let entry = |(name, held): (&String, &Held)| name.len() + held.version.len() + 12;
        self.held.iter().map(entry).sum()
    }

    /// What we hold and a response that is complete does not name.
    fn gone(&self, received: &Received) -> Vec<Change> {
        let named: BTreeSet<&str> = received.versions.iter().map(|(name, _)| name.as_str()).collect();
        let held = self.held.keys().filter(|name| !named.contains(name.as_str()));
        held.map(|name| Change::Remove { name: name.clone() }).collect()
    }

    /// Whether somebody still asks for a resource: an answer may cross a change of mind.
    fn wants(&self, name: &str, aliases: &[String]) -> bool {
        self.interest == Interest::Everything
            || self.names.contains(name)
            || aliases.iter().any(|alias| self.names.contains(alias))
    }
}

/// State of a client over all its streams.
#[derive(Debug)]
pub struct Client {
    node: Node,
    types: BTreeMap<String, Type>,
    /// The node is said once a stream.
    introduced: bool,
    connected: bool,
}

impl Client {
    /// Nothing wanted yet.
    pub fn new(node: Node) -> Self {
        Self {
            node,
            types: BTreeMap::new(),
            introduced: false,
            connected: false,
        }
    }

    /// Wants a type from the next stream on.
    pub fn want(&mut self, type_url: &str, interest: Interest) {
        let fresh = Type {
            interest,
            names: BTreeSet::new(),
            held: BTreeMap::new(),
            synced: false,
            replaced: false,
        };
        self.types.entry(type_url.to_owned()).or_insert(fresh);
    }

    /// Holds a resource already, from before the first stream: the server sends it again only if it is another one now,
    /// and says if it is gone.
    pub fn hold(&mut self, type_url: &str, name: &str, version: &str) {
        let held = Held {
            version: version.to_owned(),
            aliases: Vec::new(),
        };
        if let Some(kind) = self.types.get_mut(type_url) {
            kind.held.insert(name.to_owned(), held);
        }
    }

    /// A stream is open: what to say first.
    pub fn connected(&mut self) -> Vec<DeltaDiscoveryRequest> {
        self.connected = true;
        self.introduced = false;
        let urls: Vec<String> = self.types.keys().cloned().collect();
        urls.iter().map(|url| self.opening(url)).collect()
    }

    /// The stream is gone. What is held stays in force.
    pub fn disconnected(&mut self) {
        self.connected = false;
    }

    fn opening(&mut self, url: &str) -> DeltaDiscoveryRequest {
        let mut request = self.request(url);
        if let Some(kind) = self.types.get_mut(url) {
            kind.replaced = kind.interest == Interest::Everything && kind.opening_size() > LARGEST_OPENING;
            let held = kind.held.iter().filter(|_| !kind.replaced);
            request.initial_resource_versions = held
                .map(|(name, held)| (name.clone(), held.version.clone()))
                .collect();
            if kind.interest == Interest::OnDemand {
                // istio: asking for everything and for nothing at once opens the stream without the old meaning of
                // an empty list, which is everything.
                request.resource_names_subscribe = std::iter::once(WILDCARD.to_owned())
                    .chain(kind.names.iter().cloned())
                    .collect();
                request.resource_names_unsubscribe = vec![WILDCARD.to_owned()];
            }
        }
        request
    }

    fn request(&mut self, url: &str) -> DeltaDiscoveryRequest {
        let node = (!self.introduced).then(|| self.node.clone());
        self.introduced = true;
        DeltaDiscoveryRequest {
            node,
            type_url: url.to_owned(),
            ..DeltaDiscoveryRequest::default()
        }
    }

    /// Asks for one more name. Nothing to send while disconnected, or when it was asked for before.
    pub fn subscribe(&mut self, type_url: &str, name: &str) -> Option<DeltaDiscoveryRequest> {
        let kind = self.types.get_mut(type_url)?;
        if kind.interest != Interest::OnDemand || !kind.names.insert(name.to_owned()) || !self.connected {
            return None;
        }
        let mut request = self.request(type_url);
        request.resource_names_subscribe = vec![name.to_owned()];
        Some(request)
    }

    /// No longer interested in a name; the caller forgets the resource.
    pub fn unsubscribe(&mut self, type_url: &str, name: &str) -> Option<DeltaDiscoveryRequest> {
        let kind = self.types.get_mut(type_url)?;
        if !kind.names.remove(name) {
            return None;
        }
        let names = std::mem::take(&mut kind.held);
        kind.held = names
            .into_iter()
            .filter(|(name, held)| kind.wants(name, &held.aliases))
            .collect();
        if !self.connected {
            return None;
        }
        let mut request = self.request(type_url);
        request.resource_names_unsubscribe = vec![name.to_owned()];
        Some(request)
    }

    /// A response arrived. The caller applies the changes, then calls [`answer`](Self::answer). `None` for a type
    /// nobody wanted.
    pub fn receive(&self, response: DeltaDiscoveryResponse) -> Option<Received> {
        let kind = self.types.get(&response.type_url)?;
        let mut received = Received {
            type_url: response.type_url,
            nonce: response.nonce,
            ..Received::default()
        };
        for resource in response.resources {
            let name = resource.name;
            if !kind.wants(&name, &resource.aliases) {
                continue;
            }
            match resource.resource {
                Some(any) => {
                    let held = Held {
                        version: resource.version,
                        aliases: resource.aliases,
                    };
                    received.versions.push((name.clone(), held));
                    received.changes.push(Change::Update {
                        name,
                        bytes: any.value,
                    });
                }
                // Asked for on demand, and does not exist.
                None => received.changes.push(Change::Remove { name }),
            }
        }
        let removed = response.removed_resources.into_iter();
        received
            .changes
            .extend(removed.map(|name| Change::Remove { name }));
        if kind.replaced {
            let gone = kind.gone(&received);
            received.changes.extend(gone);
        }
        Some(received)
    }

    /// What to answer after the changes were applied; `refused` are the resources that could not be, with reasons.
    ///
    /// A refused resource keeps the state it had before: it is not recorded, so it comes again after a reconnect.
    pub fn answer(&mut self, received: &Received, refused: &[(String, String)]) -> DeltaDiscoveryRequest {
        if let Some(kind) = self.types.get_mut(&received.type_url) {
            kind.synced = true;
            kind.replaced = false;
            let bad: BTreeSet<&str> = refused.iter().map(|(name, _)| name.as_str()).collect();
            for (name, held) in &received.versions {
                if !bad.contains(name.as_str()) {
                    kind.held.insert(name.clone(), held.clone());
                }
            }
            for change in &received.changes {
                if let Change::Remove { name } = change {
                    kind.held.remove(name);
                }
            }
        }
        let mut request = self.request(&received.type_url);
        request.response_nonce.clone_from(&received.nonce);
        request.error_detail = refusal(refused);
        request
    }

    /// Everything wanted in full was answered at least once.
    pub fn in_sync(&self) -> bool {
        self.types
            .values()
            .all(|kind| kind.synced || kind.interest == Interest::OnDemand)
    }
}

fn refusal(refused: &[(String, String)]) -> Option<Status> {
    if refused.is_empty() {
        return None;
    }
    let named = refused.iter().take(REFUSALS_NAMED);
    let mut message = named
        .map(|(name, why)| format!("{name}: {why}"))
        .collect::<Vec<_>>()
        .join("; ");
    let more = refused.len().saturating_sub(REFUSALS_NAMED);
    if more > 0 {
        let _ = write!(message, "; and {more} more");
    }
    Some(Status {
        code: INVALID_ARGUMENT,
        message,
    })
}
