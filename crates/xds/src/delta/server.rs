//! The sending side of one stream.
//!
//! Promises: at most one response of a type is unanswered; what is sent is the difference between what the client
//! has and what there is now, so any number of changes while it was busy become one response; a client that
//! refused is not sent the same thing again until it changes.

use super::WILDCARD;
use crate::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A resource as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// Changes when the content does.
    pub version: String,
    /// The encoded message.
    pub bytes: Vec<u8>,
    /// Other names under which it can be asked for.
    pub aliases: Vec<String>,
    /// Who may have it.
    pub audience: Audience,
}

/// Who may have a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Audience {
    /// Everybody.
    #[default]
    Everyone,
    /// Clients of a namespace.
    Namespace(String),
}

/// What a client may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum View {
    /// Everything.
    #[default]
    Everything,
    /// What is for everybody, and for a namespace.
    Namespace(String),
}

impl View {
    fn shows(&self, resource: &Versioned) -> bool {
        match (self, &resource.audience) {
            (Self::Everything, _) | (_, Audience::Everyone) => true,
            (Self::Namespace(own), Audience::Namespace(theirs)) => own == theirs,
        }
    }
}

/// All resources of a type at a moment, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    resources: BTreeMap<String, Arc<Versioned>>,
    aliases: HashMap<String, String>,
}

impl Snapshot {
    /// From resources by name.
    pub fn new(resources: BTreeMap<String, Arc<Versioned>>) -> Self {
        let aliases = resources
            .iter()
            .flat_map(|(name, r)| r.aliases.iter().map(move |alias| (alias.clone(), name.clone())))
            .collect();
        Self { resources, aliases }
    }

    /// By name, in order.
    pub fn resources(&self) -> &BTreeMap<String, Arc<Versioned>> {
        &self.resources
    }

    /// The name of what is asked for by name or alias, if it exists for the client.
    fn resolve<'a>(&'a self, asked: &'a str, view: &View) -> Option<&'a str> {
        let name = if self.resources.contains_key(asked) {
            asked
        } else {
            self.aliases.get(asked)?
        };
        self.has(name, view).then_some(name)
    }

    fn has(&self, name: &str, view: &View) -> bool {
        self.resources
            .get(name)
            .is_some_and(|resource| view.shows(resource))
    }
}

#[derive(Debug, Default)]
struct Type {
    everything: bool,
    names: BTreeSet<String>,
    /// What the client has, or was sent and will have.
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
            }
            kind.names.insert(name);
        }
        for name in request.resource_names_unsubscribe {
            if name == WILDCARD {
                kind.everything = false;
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
        let visible = kind.visible(now, &self.view);
        response.removed_resources = kind.removals(now, &self.view, visible.as_ref());
        response.resources = kind.updates(type_url, now, &self.view, visible.as_ref());
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
    fn visible(&self, now: &Snapshot, view: &View) -> Visible {
        if self.everything {
            return None;
        }
        let names = self.names.iter().filter_map(|asked| now.resolve(asked, view));
        Some(names.map(str::to_owned).collect())
    }

    fn removals(&mut self, now: &Snapshot, view: &View, visible: Option<&BTreeSet<String>>) -> Vec<String> {
        let here = |name: &str| match visible {
            None => now.has(name, view),
            Some(names) => names.contains(name),
        };
        let mut removed: BTreeSet<String> = self.sent.keys().filter(|name| !here(name)).cloned().collect();
        self.sent.retain(|name, _| here(name));
        self.absent.retain(|asked| now.resolve(asked, view).is_none());
        for asked in self
            .names
            .iter()
            .filter(|asked| now.resolve(asked, view).is_none())
        {
            if self.absent.insert(asked.clone()) {
                removed.insert(asked.clone());
            }
        }
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
        for (name, resource) in &now.resources {
            let wanted = visible.is_none_or(|names| names.contains(name));
            if !wanted || !view.shows(resource) || self.sent.get(name) == Some(&resource.version) {
                continue;
            }
            self.sent.insert(name.clone(), resource.version.clone());
            updates.push(Resource {
                version: resource.version.clone(),
                resource: Some(prost_types::Any {
                    type_url: type_url.to_owned(),
                    value: resource.bytes.clone(),
                }),
                name: name.clone(),
                aliases: resource.aliases.clone(),
            });
        }
        updates
    }
}
