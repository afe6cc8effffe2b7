//! The sending side of one stream.
//!
//! Promises: at most one response of a type is unanswered; what is sent is the difference between what the client
//! has and what there is now, so any number of changes while it was busy become one response; a client that
//! refused is not sent the same thing again until it changes.

use super::{Snapshot, Versioned, View, WILDCARD};
use crate::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use std::collections::{BTreeMap, BTreeSet};

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

    /// The client said something. Gives the text of a refusal, if it was one. Call [`next`](Self::next) afterwards.
    pub fn receive(&mut self, request: DeltaDiscoveryRequest) -> Option<String> {
        let first = !self.types.contains_key(&request.type_url);
        let kind = self.types.entry(request.type_url).or_default();
        if first {
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
            kind.names.insert(name);
        }
        for name in request.resource_names_unsubscribe {
            if name == WILDCARD {
                kind.everything = false;
                kind.list(&self.view);
                continue;
            }
            kind.names.remove(&name);
            kind.absent.remove(&name);
            if !kind.everything {
                kind.sent.remove(&name);
            }
        }
        if kind.unanswered.as_ref() == Some(&request.response_nonce) {
            kind.unanswered = None;
        }
        request.error_detail.map(|status| status.message)
    }

    /// What to send of a type now, if anything.
    pub fn next(&mut self, type_url: &str, now: &Snapshot) -> Option<DeltaDiscoveryResponse> {
        let kind = self.types.get_mut(type_url)?;
        if kind.unanswered.is_some() {
            return None;
        }
        let mut response = DeltaDiscoveryResponse {
            type_url: type_url.to_owned(),
            ..DeltaDiscoveryResponse::default()
        };
        if let Some(base) = kind.base.take().filter(|_| kind.everything) {
            kind.difference(&base, now, &self.view, &mut response);
        } else {
            let visible = kind.visible(now, &self.view);
            response.removed_resources = kind.removals(now, &self.view, visible.as_ref());
            response.resources = kind.updates(type_url, now, &self.view, visible.as_ref());
        }
        if kind.everything {
            kind.base = Some(now.clone());
            kind.sent.clear();
            kind.again.clear();
        }
        let empty = response.resources.is_empty() && response.removed_resources.is_empty();
        if empty && !kind.owed {
            return None;
        }
        kind.owed = false;
        self.nonces += 1;
        response.nonce = self.nonces.to_string();
        kind.unanswered = Some(response.nonce.clone());
        Some(response)
    }
}

impl Type {
    /// What the client has, as a list: it does not want everything any more.
    fn list(&mut self, view: &View) {
        let Some(base) = self.base.take() else {
            return;
        };
        for (name, resource) in base.iter().filter(|(_, resource)| view.shows(resource)) {
            if !self.again.contains(&**name) {
                self.sent.insert((**name).to_owned(), resource.version.clone());
            }
        }
        self.again.clear();
    }

    /// What became different for a client that wants everything.
    fn difference(
        &mut self,
        base: &Snapshot,
        now: &Snapshot,
        view: &View,
        response: &mut DeltaDiscoveryResponse,
    ) {
        let differing = now.differing(base);
        let names: BTreeSet<&str> = differing
            .iter()
            .map(|name| &**name)
            .chain(self.again.iter().map(String::as_str))
            .collect();
        let mut removed = BTreeSet::new();
        for name in names {
            let before = base.seen(name, view).filter(|_| !self.again.contains(name));
            match (before, now.seen(name, view)) {
                (Some(before), Some(resource)) if before.version == resource.version => {}
                (_, Some(found)) => response.resources.push(resource(&response.type_url, name, found)),
                (Some(_), None) => drop(removed.insert(name.to_owned())),
                (None, None) => {}
            }
        }
        removed.extend(self.missing(now, view));
        response.removed_resources = removed.into_iter().collect();
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
        Some(names.map(str::to_owned).collect())
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
        type_url: &str,
        now: &Snapshot,
        view: &View,
        visible: Option<&BTreeSet<String>>,
    ) -> Vec<Resource> {
        let mut updates = Vec::new();
        for (name, found) in now.iter() {
            let wanted = visible.is_none_or(|names| names.contains(&**name));
            if !wanted || !view.shows(found) || self.sent.get(&**name) == Some(&found.version) {
                continue;
            }
            if !self.everything {
                self.sent.insert((**name).to_owned(), found.version.clone());
            }
            updates.push(resource(type_url, name, found));
        }
        // The same every time, for whoever reads it.
        updates.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        updates
    }
}

fn resource(type_url: &str, name: &str, found: &Versioned) -> Resource {
    Resource {
        version: found.version.clone(),
        resource: Some(prost_types::Any {
            type_url: type_url.to_owned(),
            value: found.bytes.clone(),
        }),
        name: name.to_owned(),
        aliases: found.aliases.clone(),
    }
}
