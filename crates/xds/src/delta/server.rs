//! The sending side of one stream.
//!
//! Promises: at most one response of a type is unanswered; what is sent is the difference between what the client
//! has and what there is now, so any number of changes while it was busy become one response; a client that
//! refused is not sent the same thing again until it changes; what a client can make the server remember is bounded
//! ([`LimitExceeded`]), whatever it sends.

use super::{Encoded, Response, Snapshot, View, WILDCARD};
use crate::proto::discovery::DeltaDiscoveryRequest;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// So many are sent in the order of their names, for whoever reads them. To nobody else the order means anything.
const READABLE: usize = 256;

// What one stream may make the server remember. A sidecar wants everything of two types, and names nothing; a client
// that names resources names those its node or its application uses.
const MAX_TYPES: usize = 32;
const MAX_NAMES: usize = 10_000;
const MAX_NAME_BYTES: usize = 1 << 20;
/// Of what a client says about a refusal, for the log.
const MAX_REFUSAL: usize = 1024;

/// The client subscribes to more than one stream may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitExceeded {
    /// Different types.
    #[error("a stream may subscribe to {MAX_TYPES} types of resources")]
    Types,
    /// Names, over all types.
    #[error("a stream may name {MAX_NAMES} resources, of {MAX_NAME_BYTES} bytes together")]
    Names,
}

#[derive(Debug, Default)]
struct Type {
    everything: bool,
    names: BTreeSet<String>,
    /// What the client has, or was sent and will have: everything of this that it may have. Only of a client that
    /// wants everything, so that a thousand of them do not need a thousand lists.
    base: Option<Snapshot>,
    /// Of that, what it asked for again.
    again: BTreeSet<String>,
    /// Without a base, what it has by name and version.
    sent: BTreeMap<String, String>,
    /// Names it asked for that do not exist, and was told so.
    absent: BTreeSet<String>,
    unanswered: Option<String>,
    /// Length of what the client said it has, until that was compared with what there is.
    unchecked: usize,
    /// The client waits for an answer even if it is empty.
    owed: bool,
}

/// Names of existing resources a client should have; `None` means all.
type Visible = Option<BTreeSet<String>>;

/// State of one stream.
#[derive(Debug, Default)]
pub struct Server {
    types: BTreeMap<String, Type>,
    nonces: u64,
    view: View,
    /// Names that are remembered, and their length.
    names: usize,
    name_bytes: usize,
}

impl Server {
    /// A stream on which nothing was said.
    pub fn new() -> Self {
        Self::default()
    }

    /// A stream to a client that may not have everything. What it may not have does not exist for it.
    pub fn with_view(view: View) -> Self {
        Self {
            view,
            ..Self::default()
        }
    }

    /// The client said something. Gives the beginning of a refusal's text, if it was one. Call [`next`](Self::next)
    /// afterwards. After an error the stream is of no use.
    pub fn receive(&mut self, request: DeltaDiscoveryRequest) -> Result<Option<String>, LimitExceeded> {
        let first = !self.types.contains_key(&request.type_url);
        if first && self.types.len() >= MAX_TYPES {
            return Err(LimitExceeded::Types);
        }
        let kind = self.types.entry(request.type_url).or_default();
        if first {
            let versions = &request.initial_resource_versions;
            kind.unchecked = versions
                .iter()
                .map(|(name, version)| name.len() + version.len())
                .sum();
            kind.sent = request.initial_resource_versions.into_iter().collect();
            kind.owed = true;
            // An empty first list means everything, for the rest of the stream.
            kind.everything = request.resource_names_subscribe.is_empty();
        }
        for name in request.resource_names_subscribe {
            kind.owed = true;
            if name == WILDCARD {
                kind.everything = true;
                continue;
            }
            // Asked again within a stream: answered again, even if nothing changed.
            kind.absent.remove(&name);
            if !first {
                kind.sent.remove(&name);
                if kind.base.is_some() {
                    kind.again.insert(name.clone());
                }
            }
            let length = name.len();
            if kind.names.insert(name) {
                self.names += 1;
                self.name_bytes += length;
            }
            if self.names > MAX_NAMES || self.name_bytes > MAX_NAME_BYTES {
                return Err(LimitExceeded::Names);
            }
        }
        for name in request.resource_names_unsubscribe {
            if name == WILDCARD {
                kind.everything = false;
                kind.list(&self.view);
                continue;
            }
            if kind.names.remove(&name) {
                self.names -= 1;
                self.name_bytes -= name.len();
            }
            kind.absent.remove(&name);
            if !kind.everything {
                kind.sent.remove(&name);
            }
        }
        if kind.unanswered.as_ref() == Some(&request.response_nonce) {
            kind.unanswered = None;
        }
        Ok(request.error_detail.map(|status| beginning(status.message)))
    }

    /// How much of what the client said is remembered, in bytes.
    pub fn remembered(&self) -> usize {
        let unchecked: usize = self.types.values().map(|kind| kind.unchecked).sum();
        self.name_bytes + unchecked
    }

    /// What to send of a type now, if anything.
    pub fn next(&mut self, type_url: &str, now: &Snapshot) -> Option<Response> {
        let kind = self.types.get_mut(type_url)?;
        if kind.unanswered.is_some() {
            return None;
        }
        let mut response = Response {
            type_url: type_url.to_owned(),
            ..Response::default()
        };
        if let Some(base) = kind.base.take().filter(|_| kind.everything) {
            kind.difference(&base, now, &self.view, &mut response);
        } else {
            let visible = kind.visible(now, &self.view);
            response.removed = kind.removals(now, &self.view, visible.as_ref());
            response.resources = kind.updates(now, &self.view, visible.as_ref());
        }
        // Only what exists, and was named, is left of it.
        kind.unchecked = 0;
        if kind.everything {
            kind.base = Some(now.clone());
            kind.sent.clear();
            kind.again.clear();
        }
        if response.resources.len() <= READABLE {
            response
                .resources
                .sort_unstable_by(|a, b| a.name_bytes().cmp(b.name_bytes()));
        }
        if response.is_empty() && !kind.owed {
            return None;
        }
        kind.owed = false;
        self.nonces += 1;
        response.nonce = self.nonces.to_string();
        kind.unanswered = Some(response.nonce.clone());
        Some(response)
    }
}

/// As much of a client's text as is worth a line.
fn beginning(mut text: String) -> String {
    if text.len() > MAX_REFUSAL {
        text.truncate(text.floor_char_boundary(MAX_REFUSAL));
        text.push_str(" ...");
        text.shrink_to_fit();
    }
    text
}

impl Type {
    /// What the client has, as a list: it does not want everything any more.
    fn list(&mut self, view: &View) {
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

    /// What became different for a client that wants everything.
    fn difference(&mut self, base: &Snapshot, now: &Snapshot, view: &View, response: &mut Response) {
        let names: BTreeSet<&str> = now
            .differing(base)
            .into_iter()
            .chain(self.again.iter().map(String::as_str))
            .collect();
        let mut removed = BTreeSet::new();
        for name in names {
            let before = base.seen(name, view).filter(|_| !self.again.contains(name));
            match (before, now.seen(name, view)) {
                (Some(before), Some(resource)) if before.version() == resource.version() => {}
                (_, Some(found)) => response.resources.push(Arc::clone(found)),
                (Some(_), None) => drop(removed.insert(name.to_owned())),
                (None, None) => {}
            }
        }
        removed.extend(self.missing(now, view));
        response.removed = removed.into_iter().collect();
    }

    /// Names that were asked for, do not exist, and were not told so.
    fn missing(&mut self, now: &Snapshot, view: &View) -> Vec<String> {
        self.absent.retain(|asked| now.resolve(asked, view).is_none());
        let unknown = self
            .names
            .iter()
            .filter(|asked| now.resolve(asked, view).is_none());
        unknown
            .filter(|asked| self.absent.insert((*asked).clone()))
            .cloned()
            .collect()
    }

    fn visible(&self, now: &Snapshot, view: &View) -> Visible {
        if self.everything {
            return None;
        }
        let names = self.names.iter().filter_map(|asked| now.resolve(asked, view));
        Some(names.map(|resource| resource.name().to_owned()).collect())
    }

    fn removals(&mut self, now: &Snapshot, view: &View, visible: Option<&BTreeSet<String>>) -> Vec<String> {
        let here = |name: &str| match visible {
            None => now.seen(name, view).is_some(),
            Some(names) => names.contains(name),
        };
        let mut removed: BTreeSet<String> = self.sent.keys().filter(|name| !here(name)).cloned().collect();
        self.sent.retain(|name, _| here(name));
        removed.extend(self.missing(now, view));
        removed.into_iter().collect()
    }

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
        for found in names.iter().filter_map(|name| now.seen(name, view)) {
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
