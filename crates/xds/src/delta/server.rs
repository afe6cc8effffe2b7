//! The server side of one stream.
//!
//! Promises: at most one response per type is unanswered. A response is the difference between the client's state and
//! the current snapshot, so any number of changes while the client was busy become one response. A resource that the
//! client refused (NACK) is not sent again until it changes. The memory that a client's requests can occupy is bounded
//! ([`LimitExceeded`]).

use super::{Encoded, Response, Snapshot, View, WILDCARD};
use crate::proto::discovery::DeltaDiscoveryRequest;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Responses of up to this many resources are sorted by name, so that logs and recordings are readable. The protocol
/// does not define an order, and sorting the first response of a large mesh would only cost time.
const MAX_SORTED_RESOURCES: usize = 256;

// Limits for what the server remembers per stream. A sidecar subscribes to two types with the wildcard and names no
// resource; a client that names resources names those that its node or application uses.
const MAX_TYPES: usize = 32;
const MAX_NAMES: usize = 10_000;
const MAX_NAME_BYTES: usize = 1 << 20;
/// Bytes of a client's error message (NACK) that are kept for the log.
const MAX_REFUSAL_BYTES: usize = 1024;

/// The client subscribes to more than one stream may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitExceeded {
    /// Too many different types.
    #[error("a stream may subscribe to {MAX_TYPES} types of resources")]
    Types,
    /// Too many names, or too long ones, over all types.
    #[error("a stream may name {MAX_NAMES} resources, of {MAX_NAME_BYTES} bytes together")]
    Names,
}

/// Subscription of the client to one type.
#[derive(Debug, Default)]
struct Subscription {
    wildcard: bool,
    names: BTreeSet<String>,
    /// The snapshot that was last sent to a client with a wildcard subscription: the client has the part of it that its
    /// view shows. Snapshots are shared, so a thousand such clients do not need a thousand lists of versions.
    base: Option<Snapshot>,
    /// Resources of `base` that the client subscribed to again; they are sent again, even if unchanged.
    again: BTreeSet<String>,
    /// Without a `base`: versions of the resources the client has, by name.
    sent: BTreeMap<String, String>,
    /// Subscribed names that do not exist and were already reported as removed.
    absent: BTreeSet<String>,
    /// Nonce of the response that the client has not answered yet.
    unanswered: Option<String>,
    /// Bytes of the initial resource versions, until they were compared with a snapshot. Counted, because the client
    /// chooses their size.
    unchecked: usize,
    /// The client expects a response, even an empty one.
    owed: bool,
}

/// Names of existing resources that the client subscribed to; `None` means all.
type Visible = Option<BTreeSet<String>>;

/// State of one stream.
#[derive(Debug, Default)]
pub struct Server {
    types: BTreeMap<String, Subscription>,
    nonces: u64,
    view: View,
    /// Number of subscribed names over all types, and their bytes.
    names: usize,
    name_bytes: usize,
}

impl Server {
    /// A new stream to a client that may see everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new stream to a client with a restricted view. Resources outside the view do not exist for it.
    pub fn with_view(view: View) -> Self {
        Self {
            view,
            ..Self::default()
        }
    }

    /// Handles a request. Returns the start of the client's error message if the request is a NACK. Call
    /// [`next`](Self::next) afterwards. After an error the caller must end the stream.
    pub fn receive(&mut self, request: DeltaDiscoveryRequest) -> Result<Option<String>, LimitExceeded> {
        let first = !self.types.contains_key(&request.type_url);
        if first && self.types.len() >= MAX_TYPES {
            return Err(LimitExceeded::Types);
        }
        let subscription = self.types.entry(request.type_url).or_default();
        if first {
            let versions = &request.initial_resource_versions;
            subscription.unchecked = versions
                .iter()
                .map(|(name, version)| name.len() + version.len())
                .sum();
            subscription.sent = request.initial_resource_versions.into_iter().collect();
            subscription.owed = true;
            // An empty first list is a wildcard subscription, for the rest of the stream.
            subscription.wildcard = request.resource_names_subscribe.is_empty();
        }
        for name in request.resource_names_subscribe {
            subscription.owed = true;
            if name == WILDCARD {
                subscription.wildcard = true;
                continue;
            }
            // Delta xDS: a resource that is subscribed again within a stream is sent again, even if unchanged. The
            // first request lists what the client already has, so it is exempt.
            subscription.absent.remove(&name);
            if !first {
                subscription.sent.remove(&name);
                if subscription.base.is_some() {
                    subscription.again.insert(name.clone());
                }
            }
            let length = name.len();
            if subscription.names.insert(name) {
                self.names += 1;
                self.name_bytes += length;
            }
            if self.names > MAX_NAMES || self.name_bytes > MAX_NAME_BYTES {
                return Err(LimitExceeded::Names);
            }
        }
        for name in request.resource_names_unsubscribe {
            if name == WILDCARD {
                subscription.wildcard = false;
                subscription.drop_base(&self.view);
                continue;
            }
            if subscription.names.remove(&name) {
                self.names -= 1;
                self.name_bytes -= name.len();
            }
            subscription.absent.remove(&name);
            if !subscription.wildcard {
                subscription.sent.remove(&name);
            }
        }
        if subscription.unanswered.as_ref() == Some(&request.response_nonce) {
            subscription.unanswered = None;
        }
        Ok(request
            .error_detail
            .map(|status| truncate_refusal(status.message)))
    }

    /// Bytes of the client's requests that this stream remembers.
    pub fn remembered(&self) -> usize {
        let unchecked: usize = self
            .types
            .values()
            .map(|subscription| subscription.unchecked)
            .sum();
        self.name_bytes + unchecked
    }

    /// The response to send for a type now, if any.
    pub fn next(&mut self, type_url: &str, now: &Snapshot) -> Option<Response> {
        let subscription = self.types.get_mut(type_url)?;
        if subscription.unanswered.is_some() {
            return None;
        }
        let mut response = Response {
            type_url: type_url.to_owned(),
            ..Response::default()
        };
        if let Some(base) = subscription.base.take().filter(|_| subscription.wildcard) {
            subscription.difference(&base, now, &self.view, &mut response);
        } else {
            let visible = subscription.visible(now, &self.view);
            response.removed = subscription.removals(now, &self.view, visible.as_ref());
            response.resources = subscription.updates(now, &self.view, visible.as_ref());
        }
        // The initial versions were compared: of them only existing, subscribed resources are left.
        subscription.unchecked = 0;
        if subscription.wildcard {
            subscription.base = Some(now.clone());
            subscription.sent.clear();
            subscription.again.clear();
        }
        if response.resources.len() <= MAX_SORTED_RESOURCES {
            response
                .resources
                .sort_unstable_by(|a, b| a.name_bytes().cmp(b.name_bytes()));
        }
        if response.is_empty() && !subscription.owed {
            return None;
        }
        subscription.owed = false;
        self.nonces += 1;
        response.nonce = self.nonces.to_string();
        subscription.unanswered = Some(response.nonce.clone());
        Some(response)
    }
}

/// Truncates a client's error message for the log.
fn truncate_refusal(mut text: String) -> String {
    if text.len() > MAX_REFUSAL_BYTES {
        text.truncate(text.floor_char_boundary(MAX_REFUSAL_BYTES));
        text.push_str(" ...");
        text.shrink_to_fit();
    }
    text
}

impl Subscription {
    /// Converts `base` into the list `sent`, when the client drops its wildcard subscription.
    fn drop_base(&mut self, view: &View) {
        let Some(base) = self.base.take() else {
            return;
        };
        for resource in base.iter().filter(|resource| view.shows(resource)) {
            if !self.again.contains(resource.name()) {
                self.sent
                    .insert(resource.name().to_owned(), resource.version().to_owned());
            }
        }
        self.again.clear();
    }

    /// Adds to `response` what changed from `base` to `now`, for a wildcard subscription.
    fn difference(&mut self, base: &Snapshot, now: &Snapshot, view: &View, response: &mut Response) {
        let names: BTreeSet<&str> = now
            .changed_names(base)
            .into_iter()
            .chain(self.again.iter().map(String::as_str))
            .collect();
        let mut removed = BTreeSet::new();
        for name in names {
            let before = base
                .get_visible(name, view)
                .filter(|_| !self.again.contains(name));
            match (before, now.get_visible(name, view)) {
                (Some(before), Some(resource)) if before.version() == resource.version() => {}
                (_, Some(found)) => response.resources.push(Arc::clone(found)),
                (Some(_), None) => drop(removed.insert(name.to_owned())),
                (None, None) => {}
            }
        }
        removed.extend(self.missing(now, view));
        response.removed = removed.into_iter().collect();
    }

    /// Subscribed names that do not exist and were not reported yet. Marks them as reported.
    fn missing(&mut self, now: &Snapshot, view: &View) -> Vec<String> {
        self.absent.retain(|name| now.resolve(name, view).is_none());
        let unknown = self.names.iter().filter(|name| now.resolve(name, view).is_none());
        unknown
            .filter(|name| self.absent.insert((*name).clone()))
            .cloned()
            .collect()
    }

    fn visible(&self, now: &Snapshot, view: &View) -> Visible {
        if self.wildcard {
            return None;
        }
        let names = self.names.iter().filter_map(|name| now.resolve(name, view));
        Some(names.map(|resource| resource.name().to_owned()).collect())
    }

    /// Resources that the client has and must remove, and subscribed names that do not exist.
    fn removals(&mut self, now: &Snapshot, view: &View, visible: Option<&BTreeSet<String>>) -> Vec<String> {
        let here = |name: &str| match visible {
            None => now.get_visible(name, view).is_some(),
            Some(names) => names.contains(name),
        };
        let mut removed: BTreeSet<String> = self.sent.keys().filter(|name| !here(name)).cloned().collect();
        self.sent.retain(|name, _| here(name));
        removed.extend(self.missing(now, view));
        removed.into_iter().collect()
    }

    /// Resources that the client lacks or has in another version.
    fn updates(
        &mut self,
        now: &Snapshot,
        view: &View,
        visible: Option<&BTreeSet<String>>,
    ) -> Vec<Arc<Encoded>> {
        let Some(names) = visible else {
            let shown = now.iter().filter(|found| view.shows(found));
            if self.sent.is_empty() {
                return shown.cloned().collect();
            }
            let has =
                |found: &&Arc<Encoded>| self.sent.get(found.name()).is_some_and(|v| v == found.version());
            return shown.filter(|found| !has(found)).cloned().collect();
        };
        let mut updates = Vec::new();
        for found in names.iter().filter_map(|name| now.get_visible(name, view)) {
            let version = found.version();
            if self.sent.get(found.name()).is_some_and(|has| has == version) {
                continue;
            }
            self.sent.insert(found.name().to_owned(), version.to_owned());
            updates.push(Arc::clone(found));
        }
        updates
    }
}
