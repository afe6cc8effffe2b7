//! Memory of a delta stream.

use super::envelope::{DeltaRequest, DeltaResponse};
use super::{FromEnvoy, ack_or_nack};
use bytes::Bytes;
use prost::Message as _;
use remora_xds::delta::WILDCARD;
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Debug, Default)]
pub(super) struct Memory {
    /// In the order of Envoy's first requests.
    kinds: Vec<(String, Kind)>,
    /// Responses of this connection that Envoy has not answered.
    unanswered: HashMap<String, Change>,
    /// Unanswered responses of earlier connections: Envoy will answer them, too.
    late: HashMap<String, Change>,
    /// Unanswered responses from the last good configuration.
    kept: HashMap<String, Change>,
}

#[derive(Debug, Default)]
struct Kind {
    everything: bool,
    names: BTreeSet<String>,
    /// Versions of the resources that Envoy has, by name.
    versions: BTreeMap<String, String>,
}

/// What a response changes once it is accepted.
#[derive(Debug, Clone, Default)]
struct Change {
    type_url: String,
    updated: Vec<(String, String)>,
    removed: Vec<String>,
}

impl Change {
    fn of(response: DeltaResponse) -> (String, Self) {
        let updated = response.resources.into_iter().map(|r| (r.name, r.version));
        let change = Self {
            type_url: response.type_url,
            updated: updated.collect(),
            removed: response.removed,
        };
        (response.nonce, change)
    }
}

impl Memory {
    pub(super) fn on_envoy_message(&mut self, mut request: DeltaRequest, message: &Bytes) -> FromEnvoy {
        self.note(&request);
        if request.response_nonce.is_empty() {
            return FromEnvoy::forwarded(message);
        }
        let (change, late) = match self.unanswered.remove(&request.response_nonce) {
            Some(change) => (Some(change), false),
            None => (self.late.remove(&request.response_nonce), true),
        };
        let refused = request.error_detail.is_some();
        if let Some(change) = self.kept.remove(&request.response_nonce).filter(|_| refused) {
            self.take_back(&change);
        }
        let answer = ack_or_nack(&request.type_url, request.error_detail.as_deref());
        if let Some(change) = change.filter(|_| !refused) {
            self.apply(change);
        }
        // The response came on another connection: the control plane of this one does not know its nonce.
        let forward = if !late {
            Some(message.clone())
        } else if request.subscribe.is_empty() && request.unsubscribe.is_empty() {
            None
        } else {
            request.response_nonce.clear();
            request.error_detail = None;
            Some(request.encode_to_vec().into())
        };
        FromEnvoy {
            forward,
            answer: Some(answer),
        }
    }

    fn note(&mut self, request: &DeltaRequest) {
        let known = self.kinds.iter().position(|(url, _)| *url == request.type_url);
        let index = known.unwrap_or_else(|| {
            let kind = Kind {
                // An empty first list is a wildcard subscription, for the rest of the stream.
                everything: request.subscribe.is_empty(),
                names: BTreeSet::new(),
                versions: request.initial_versions.clone(),
            };
            self.kinds.push((request.type_url.clone(), kind));
            self.kinds.len() - 1
        });
        let Some((_, kind)) = self.kinds.get_mut(index) else {
            return;
        };
        for name in &request.subscribe {
            if name == WILDCARD {
                kind.everything = true;
            } else {
                kind.names.insert(name.clone());
            }
        }
        for name in &request.unsubscribe {
            if name == WILDCARD {
                kind.everything = false;
            } else {
                kind.names.remove(name);
                if !kind.everything {
                    kind.versions.remove(name);
                }
            }
        }
    }

    fn apply(&mut self, change: Change) {
        let kind = self.kinds.iter_mut().find(|(url, _)| *url == change.type_url);
        if let Some((_, kind)) = kind {
            kind.versions.extend(change.updated);
            for name in change.removed {
                kind.versions.remove(&name);
            }
        }
    }

    pub(super) fn on_control_plane_message(&mut self, response: DeltaResponse) {
        let (nonce, change) = Change::of(response);
        self.unanswered.insert(nonce, change);
    }

    /// Counts as accepted immediately, because Envoy accepted it before: a control plane that comes back must know these
    /// versions to send removals.
    pub(super) fn on_kept_response(&mut self, response: DeltaResponse) {
        let (nonce, change) = Change::of(response);
        self.apply(change.clone());
        self.kept.insert(nonce, change);
    }

    fn take_back(&mut self, change: &Change) {
        let kind = self.kinds.iter_mut().find(|(url, _)| *url == change.type_url);
        if let Some((_, kind)) = kind {
            for (name, _) in &change.updated {
                kind.versions.remove(name);
            }
        }
    }

    pub(super) fn connected(&mut self, node: &[u8]) -> Vec<Bytes> {
        // Envoy never received a response of an even earlier connection that is still unanswered.
        self.late = std::mem::take(&mut self.unanswered);
        let mut node = Some(node.to_vec());
        let requests = self.kinds.iter().map(|(type_url, kind)| {
            let mut subscribe: Vec<String> = kind.names.iter().cloned().collect();
            if kind.everything && !subscribe.is_empty() {
                subscribe.push(WILDCARD.to_owned());
            }
            DeltaRequest {
                node: node.take().unwrap_or_default(),
                type_url: type_url.clone(),
                subscribe,
                initial_versions: kind.versions.clone(),
                ..DeltaRequest::default()
            }
            .encode_to_vec()
            .into()
        });
        requests.collect()
    }
}
