//! Envoy's last good resources: recorded while the control plane is connected, served while it is unavailable.
//!
//! Only resources that Envoy accepted are kept, and never a secret. Responses from here are marked by their nonces;
//! Envoy's ACKs to them are not forwarded to the control plane.

use super::memory::envelope::{DeltaRequest, NamedVersion, SotwRequest};
use crate::log::Log;
use crate::readiness::Readiness;
use crate::snapshot::{Contents, Entry, Keeper};
use bytes::Bytes;
use prost::Message;
use remora_xds::delta::WILDCARD;
use remora_xds::raw::Protocol;
use remora_xds::types::{CLUSTER, LISTENER, SECRET};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::SystemTime;

/// Prefix of the nonces of responses from the last good configuration.
const NONCE_PREFIX: &str = "kept-";

/// Key of the agent's own resources, which have no names.
const OWN_NAME: &str = "";

/// The last good configuration of an Envoy, for all its streams.
#[derive(Debug, Clone)]
pub struct LastGood {
    pub(crate) keeper: Keeper,
    /// When the control plane last confirmed the configuration on disk; `None` if there was none at the start.
    pub(crate) found: Option<SystemTime>,
    pub(crate) readiness: Readiness,
    pub(crate) log: Log,
}

/// The last good configuration, as used by one stream.
pub(super) struct Kept {
    all: LastGood,
    protocol: Protocol,
    /// Responses of the control plane that Envoy has not answered, by nonce.
    pending: HashMap<String, Bytes>,
    /// Types that Envoy accepted from the control plane.
    accepted: BTreeSet<String>,
    /// Responses sent from the last good configuration.
    given: u64,
    /// The control plane is unavailable: requests are answered from here.
    making_do: bool,
}

impl Kept {
    pub(super) fn new(all: LastGood, protocol: Protocol) -> Self {
        Self {
            all,
            protocol,
            pending: HashMap::new(),
            accepted: BTreeSet::new(),
            given: 0,
            making_do: false,
        }
    }

    /// Whether there is a last good configuration.
    pub(super) fn can_make_do(&self) -> bool {
        self.all.found.is_some()
    }

    /// Whether there is a last good configuration that could be used now, and is not.
    pub(super) fn could_start(&self) -> bool {
        self.can_make_do() && !self.making_do && self.accepted.is_empty()
    }

    /// The control plane is unavailable. Returns whether that is new, and there is a last good configuration.
    pub(super) fn away(&mut self) -> bool {
        self.all.keeper.live(false);
        self.pending.clear();
        let Some(confirmed) = self.all.found.filter(|_| self.could_start()) else {
            return false;
        };
        self.making_do = true;
        self.all.readiness.set_last_good(confirmed);
        self.all.keeper.not_live_since(confirmed);
        let age = confirmed.elapsed().unwrap_or_default().as_secs();
        self.all.log.warning(format_args!(
            "the control plane is away: Envoy starts with the last good configuration, {age} s old"
        ));
        true
    }

    /// A response of the control plane is forwarded to Envoy.
    pub(super) fn forwarded(&mut self, message: &Bytes) {
        if let Ok(seen) = Envelope::decode(message.clone())
            && seen.type_url != SECRET
        {
            self.pending.insert(seen.nonce, message.clone());
        }
    }

    /// Handles a message of Envoy. Returns the type it accepted, if the response came from here.
    pub(super) fn answered(&mut self, message: &Bytes) -> Option<String> {
        let question = Question::read(self.protocol, message)?;
        let response = self.pending.remove(&question.nonce);
        if question.refused {
            return None;
        }
        if question.nonce.starts_with(NONCE_PREFIX) {
            return Some(question.type_url);
        }
        let response = response?;
        let protocol = self.protocol;
        self.all
            .keeper
            .change(|contents| note(contents, protocol, &response));
        self.accepted.insert(question.type_url);
        if [CLUSTER, LISTENER]
            .iter()
            .all(|kind| self.accepted.contains(*kind))
        {
            self.making_do = false;
            self.all.keeper.live(true);
            self.all.readiness.confirmed();
        }
        None
    }

    /// Records a resource of the agent's own subscription that it could use.
    pub(super) fn keep_own(&self, type_url: &str, bytes: Vec<u8>) {
        let entry = Entry {
            version: String::new(),
            bytes,
        };
        self.all.keeper.change(|contents| {
            let kind = contents.entry(type_url.to_owned()).or_default();
            kind.insert(OWN_NAME.to_owned(), entry);
        });
    }

    /// The recorded resource of the agent's own subscription.
    pub(super) fn own(&self, type_url: &str) -> Option<Vec<u8>> {
        let bytes = |contents: &Contents| Some(contents.get(type_url)?.get(OWN_NAME)?.bytes.clone());
        self.all.keeper.look(bytes)
    }

    /// The response to a request while the control plane is unavailable.
    pub(super) fn answer(&mut self, message: &Bytes) -> Option<Bytes> {
        if !self.making_do {
            return None;
        }
        let question = Question::read(self.protocol, message)?;
        // An ACK or NACK needs no response, unless it subscribes to something new.
        if !question.nonce.is_empty() && question.names.is_empty() {
            return None;
        }
        let nonce = format!("{NONCE_PREFIX}{}", self.given + 1);
        let answer = |contents: &Contents| {
            let resources = contents.get(&question.type_url)?;
            Some(respond(self.protocol, &question, resources, nonce))
        };
        let answer = self.all.keeper.look(answer)?;
        self.given += 1;
        Some(answer)
    }
}

/// The fields that SotW and delta responses share.
#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
}

/// A request, SotW or delta.
struct Question {
    type_url: String,
    names: Vec<String>,
    nonce: String,
    refused: bool,
}

impl Question {
    fn read(protocol: Protocol, message: &Bytes) -> Option<Self> {
        Some(match protocol {
            Protocol::Delta => {
                let request = DeltaRequest::decode(message.clone()).ok()?;
                Self {
                    type_url: request.type_url,
                    names: request.subscribe,
                    nonce: request.response_nonce,
                    refused: request.error_detail.is_some(),
                }
            }
            Protocol::Sotw => {
                let request = SotwRequest::decode(message.clone()).ok()?;
                Self {
                    type_url: request.type_url,
                    names: request.names,
                    nonce: request.response_nonce,
                    refused: request.error_detail.is_some(),
                }
            }
        })
    }
}

/// A response whose resources are not decoded. SotW and delta responses differ only in fields that are not set here.
#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(bytes = "vec", repeated, tag = "2")]
    resources: Vec<Vec<u8>>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
    /// Only in delta responses.
    #[prost(string, repeated, tag = "6")]
    removed: Vec<String>,
}

/// The name of a resource; all of Envoy's resource types have it in the same field.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

fn respond(
    protocol: Protocol,
    question: &Question,
    resources: &BTreeMap<String, Entry>,
    nonce: String,
) -> Bytes {
    let everything = question.names.is_empty() || question.names.iter().any(|name| name == WILDCARD);
    let wanted = |(name, _): &(&String, &Entry)| everything || question.names.contains(name);
    let chosen: Vec<&Entry> = resources.iter().filter(wanted).map(|(_, entry)| entry).collect();
    let version = match protocol {
        Protocol::Delta => String::new(),
        Protocol::Sotw => chosen
            .first()
            .map(|entry| entry.version.clone())
            .unwrap_or_default(),
    };
    Response {
        version,
        resources: chosen.into_iter().map(|entry| entry.bytes.clone()).collect(),
        type_url: question.type_url.clone(),
        nonce,
        removed: Vec::new(),
    }
    .encode_to_vec()
    .into()
}

/// Records the resources of a response.
fn note(contents: &mut Contents, protocol: Protocol, message: &Bytes) {
    let Ok(response) = Response::decode(message.clone()) else {
        return;
    };
    let kind = contents.entry(response.type_url.clone()).or_default();
    match protocol {
        Protocol::Delta => {
            for bytes in response.resources {
                if let Ok(NamedVersion { version, name }) = NamedVersion::decode(bytes.as_slice()) {
                    kind.insert(name, Entry { version, bytes });
                }
            }
            for name in response.removed {
                kind.remove(&name);
            }
        }
        Protocol::Sotw => {
            // Only for these types a SotW response holds all resources.
            if [CLUSTER, LISTENER].contains(&response.type_url.as_str()) {
                kind.clear();
            }
            for bytes in response.resources {
                let any = prost_types::Any::decode(bytes.as_slice()).unwrap_or_default();
                if let Ok(Named { name }) = Named::decode(any.value.as_slice()) {
                    let version = response.version.clone();
                    kind.insert(name, Entry { version, bytes });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, Contents, Entry, Message, Named, Protocol, Question, Response, note, respond};
    use remora_xds::types::CLUSTER;

    fn any(name: &str) -> Vec<u8> {
        let named = Named {
            name: name.to_owned(),
        };
        prost_types::Any {
            type_url: CLUSTER.to_owned(),
            value: named.encode_to_vec(),
        }
        .encode_to_vec()
    }

    fn response(type_url: &str, version: &str, resources: Vec<Vec<u8>>, removed: &[&str]) -> Bytes {
        Response {
            version: version.to_owned(),
            resources,
            type_url: type_url.to_owned(),
            nonce: "1".to_owned(),
            removed: removed.iter().map(|name| (*name).to_owned()).collect(),
        }
        .encode_to_vec()
        .into()
    }

    fn names(contents: &Contents, type_url: &str) -> Vec<String> {
        contents[type_url].keys().cloned().collect()
    }

    #[test]
    fn of_listeners_and_clusters_the_last_response_counts_and_of_others_all() {
        let mut contents = Contents::new();
        let mut hear = |type_url: &str, list: &[&str]| {
            let resources = list.iter().map(|name| any(name)).collect();
            note(
                &mut contents,
                Protocol::Sotw,
                &response(type_url, "7", resources, &[]),
            );
            names(&contents, type_url)
        };
        hear(CLUSTER, &["a", "b"]);
        assert_eq!(hear(CLUSTER, &["b", "c"]), ["b", "c"]);
        hear("endpoints", &["a"]);
        assert_eq!(hear("endpoints", &["b"]), ["a", "b"]);
    }

    #[test]
    fn changes_are_kept_and_answered_by_name() {
        #[derive(Clone, PartialEq, Message)]
        struct Resource {
            #[prost(string, tag = "1")]
            version: String,
            #[prost(string, tag = "3")]
            name: String,
        }
        let resource = |name: &str| {
            let (version, name) = ("2".to_owned(), name.to_owned());
            Resource { version, name }.encode_to_vec()
        };
        let mut contents = Contents::new();
        let first = response("t", "", vec![resource("a"), resource("b")], &[]);
        note(&mut contents, Protocol::Delta, &first);
        note(
            &mut contents,
            Protocol::Delta,
            &response("t", "", vec![resource("c")], &["a"]),
        );
        assert_eq!(names(&contents, "t"), ["b", "c"]);
        let entry = Entry {
            version: "2".to_owned(),
            bytes: resource("b"),
        };
        assert_eq!(contents["t"]["b"], entry);
        let ask = |list: &[&str]| {
            let question = Question {
                type_url: "t".to_owned(),
                names: list.iter().map(|name| (*name).to_owned()).collect(),
                nonce: String::new(),
                refused: false,
            };
            let bytes = respond(Protocol::Delta, &question, &contents["t"], "kept-1".to_owned());
            Response::decode(bytes).unwrap().resources
        };
        assert_eq!(ask(&["b", "x"]), [resource("b")]);
        assert_eq!(ask(&[]).len(), 2);
        assert_eq!(ask(&["*", "b"]).len(), 2);
    }
}
