//! The client side, over successive streams.
//!
//! Promises: every response is answered exactly once, with an ACK or a NACK that names the bad resources. One bad
//! resource does not affect the others. After a reconnect only changes are sent. Resources that were removed while
//! disconnected are detected: the client sends the versions it has, and the server removes those that no longer exist.

use super::WILDCARD;
use crate::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// gRPC's `INVALID_ARGUMENT`.
const INVALID_ARGUMENT: i32 = 3;
/// A NACK names at most this many resources, so that the message does not grow with the mesh.
const MAX_REFUSALS_NAMED: usize = 10;

/// How a client subscribes to a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Wildcard: every resource.
    Everything,
    /// Single names, added with [`Client::subscribe`].
    OnDemand,
}

/// A change of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The resource is new or has changed.
    Update {
        /// Name of the resource.
        name: String,
        /// The encoded resource.
        bytes: Vec<u8>,
    },
    /// The resource was removed.
    Remove {
        /// Name of the resource.
        name: String,
    },
}

/// The changes of a response.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Type URL of the resources.
    pub type_url: String,
    /// Changes to apply, in order.
    pub changes: Vec<Change>,
    nonce: String,
    versions: Vec<(String, Held)>,
}

impl Received {
    /// Changes that did not come in a response, but from a control plane in the same process.
    pub fn of(type_url: &str, changes: Vec<Change>) -> Self {
        Self {
            type_url: type_url.to_owned(),
            changes,
            ..Self::default()
        }
    }

    /// Names and versions of the updated resources.
    pub fn versions(&self) -> impl Iterator<Item = (&str, &str)> {
        self.versions
            .iter()
            .map(|(name, held)| (name.as_str(), held.version.as_str()))
    }
}

/// What the client remembers of a received resource.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    version: String,
    aliases: Vec<String>,
}

/// Subscription to one type.
#[derive(Debug)]
struct Subscription {
    interest: Interest,
    /// Names subscribed on demand.
    names: BTreeSet<String>,
    /// Resources that the client has, with their versions.
    held: BTreeMap<String, Held>,
    synced: bool,
    /// The opening request did not list `held`: the first response replaces everything.
    replaced: bool,
}

/// Bytes of initial resource versions in an opening request. Servers accept requests of 4 MiB (istio: the same). With
/// more, the client sends no versions and receives everything again.
const MAX_OPENING_BYTES: usize = 3 << 20;

impl Subscription {
    /// Approximate encoded size of the list of held versions.
    fn opening_size(&self) -> usize {
        let entry = |(name, held): (&String, &Held)| name.len() + held.version.len() + 12;
        self.held.iter().map(entry).sum()
    }

    /// Removals of the held resources that a complete response does not contain.
    fn removals(&self, received: &Received) -> Vec<Change> {
        let named: BTreeSet<&str> = received.versions.iter().map(|(name, _)| name.as_str()).collect();
        let held = self.held.keys().filter(|name| !named.contains(name.as_str()));
        held.map(|name| Change::Remove { name: name.clone() }).collect()
    }

    /// Whether a resource is still subscribed: a response may cross an unsubscription.
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
    types: BTreeMap<String, Subscription>,
    /// Whether the node was sent on this stream; only the first request carries it.
    introduced: bool,
    connected: bool,
}

impl Client {
    /// A client without subscriptions.
    pub fn new(node: Node) -> Self {
        Self {
            node,
            types: BTreeMap::new(),
            introduced: false,
            connected: false,
        }
    }

    /// Subscribes to a type from the next stream on.
    pub fn want(&mut self, type_url: &str, interest: Interest) {
        let fresh = Subscription {
            interest,
            names: BTreeSet::new(),
            held: BTreeMap::new(),
            synced: false,
            replaced: false,
        };
        self.types.entry(type_url.to_owned()).or_insert(fresh);
    }

    /// Registers a resource that the client has from before the first stream: the server sends it again only if its
    /// version differs, and reports its removal.
    pub fn hold(&mut self, type_url: &str, name: &str, version: &str) {
        let held = Held {
            version: version.to_owned(),
            aliases: Vec::new(),
        };
        if let Some(subscription) = self.types.get_mut(type_url) {
            subscription.held.insert(name.to_owned(), held);
        }
    }

    /// A stream is open. Returns the opening requests.
    pub fn connected(&mut self) -> Vec<DeltaDiscoveryRequest> {
        self.connected = true;
        self.introduced = false;
        let urls: Vec<String> = self.types.keys().cloned().collect();
        urls.iter().map(|url| self.opening(url)).collect()
    }

    /// The stream ended. Held resources stay in force.
    pub fn disconnected(&mut self) {
        self.connected = false;
    }

    fn opening(&mut self, url: &str) -> DeltaDiscoveryRequest {
        let mut request = self.request(url);
        if let Some(subscription) = self.types.get_mut(url) {
            subscription.replaced = subscription.interest == Interest::Everything
                && subscription.opening_size() > MAX_OPENING_BYTES;
            let held = subscription.held.iter().filter(|_| !subscription.replaced);
            request.initial_resource_versions = held
                .map(|(name, held)| (name.clone(), held.version.clone()))
                .collect();
            if subscription.interest == Interest::OnDemand {
                // istio: subscribing to and unsubscribing from the wildcard in one request opens the stream without
                // the legacy meaning of an empty list, which is a wildcard.
                request.resource_names_subscribe = std::iter::once(WILDCARD.to_owned())
                    .chain(subscription.names.iter().cloned())
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

    /// Subscribes to one more name. `None` while disconnected, or when the name is already subscribed.
    pub fn subscribe(&mut self, type_url: &str, name: &str) -> Option<DeltaDiscoveryRequest> {
        let subscription = self.types.get_mut(type_url)?;
        if subscription.interest != Interest::OnDemand
            || !subscription.names.insert(name.to_owned())
            || !self.connected
        {
            return None;
        }
        let mut request = self.request(type_url);
        request.resource_names_subscribe = vec![name.to_owned()];
        Some(request)
    }

    /// Unsubscribes from a name; the caller forgets the resource.
    pub fn unsubscribe(&mut self, type_url: &str, name: &str) -> Option<DeltaDiscoveryRequest> {
        let subscription = self.types.get_mut(type_url)?;
        if !subscription.names.remove(name) {
            return None;
        }
        let names = std::mem::take(&mut subscription.held);
        subscription.held = names
            .into_iter()
            .filter(|(name, held)| subscription.wants(name, &held.aliases))
            .collect();
        if !self.connected {
            return None;
        }
        let mut request = self.request(type_url);
        request.resource_names_unsubscribe = vec![name.to_owned()];
        Some(request)
    }

    /// A response arrived. The caller applies the changes, then calls [`answer`](Self::answer). `None` for a type
    /// that is not subscribed.
    pub fn receive(&self, response: DeltaDiscoveryResponse) -> Option<Received> {
        let subscription = self.types.get(&response.type_url)?;
        let mut received = Received {
            type_url: response.type_url,
            nonce: response.nonce,
            ..Received::default()
        };
        for resource in response.resources {
            let name = resource.name;
            if !subscription.wants(&name, &resource.aliases) {
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
                // Subscribed by name, and does not exist.
                None => received.changes.push(Change::Remove { name }),
            }
        }
        let removed = response.removed_resources.into_iter();
        received
            .changes
            .extend(removed.map(|name| Change::Remove { name }));
        if subscription.replaced {
            let gone = subscription.removals(&received);
            received.changes.extend(gone);
        }
        Some(received)
    }

    /// What to answer after the changes were applied; `refused` are the resources that could not be, with reasons.
    ///
    /// A refused resource keeps the state it had before: it is not recorded, so it comes again after a reconnect.
    pub fn answer(&mut self, received: &Received, refused: &[(String, String)]) -> DeltaDiscoveryRequest {
        if let Some(subscription) = self.types.get_mut(&received.type_url) {
            subscription.synced = true;
            subscription.replaced = false;
            let bad: BTreeSet<&str> = refused.iter().map(|(name, _)| name.as_str()).collect();
            for (name, held) in &received.versions {
                if !bad.contains(name.as_str()) {
                    subscription.held.insert(name.clone(), held.clone());
                }
            }
            for change in &received.changes {
                if let Change::Remove { name } = change {
                    subscription.held.remove(name);
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
            .all(|subscription| subscription.synced || subscription.interest == Interest::OnDemand)
    }
}

fn refusal(refused: &[(String, String)]) -> Option<Status> {
    if refused.is_empty() {
        return None;
    }
    let named = refused.iter().take(MAX_REFUSALS_NAMED);
    let mut message = named
        .map(|(name, why)| format!("{name}: {why}"))
        .collect::<Vec<_>>()
        .join("; ");
    let more = refused.len().saturating_sub(MAX_REFUSALS_NAMED);
    if more > 0 {
        let _ = write!(message, "; and {more} more");
    }
    Some(Status {
        code: INVALID_ARGUMENT,
        message,
    })
}
