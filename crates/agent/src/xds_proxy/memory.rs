//! What must be remembered of a stream to repeat it on another connection. No IO.
//!
//! Messages are read as envelopes: which type, which names, which versions, which answer to what. Everything else in
//! them stays bytes. Delta: names asked for, and the versions of what Envoy accepted. State of the world: the last
//! list of names, and the version Envoy accepted last.
//!
//! An answer belongs to the connection its question came on. Envoy may answer late, when that connection is gone;
//! then what it asks for is still passed on, but not as an answer. Control planes may count their nonces from 1 on
//! every connection, so from the second connection on Envoy sees nonces with the connection's number in front.

mod delta;
pub(super) mod envelope;
mod world;

use super::Health;
use bytes::Bytes;
use envelope::{DeltaRequest, DeltaResponse, Status, WorldRequest, WorldResponse};
use prost::Message as _;
use remora_xds::raw::Protocol;
use remora_xds::types::{HEALTH, LISTENER};
use std::collections::HashMap;

/// `INTERNAL` of gRPC.
const INTERNAL: i32 = 13;
/// Where the nonce stands: in both kinds of responses, in incremental requests, in the others.
const RESPONSE_NONCE: u32 = 5;
const DELTA_REQUEST_NONCE: u32 = 6;
const WORLD_REQUEST_NONCE: u32 = 5;

/// What Envoy thinks of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Accepted(String),
    Refused(String, String),
}

/// A message of Envoy's was noted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FromEnvoy {
    /// What to tell the control plane.
    pub(super) forward: Option<Bytes>,
    pub(super) answer: Option<Answer>,
}

/// A message of the control plane's was noted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FromPlane {
    /// For Envoy.
    Forward(Bytes),
    /// For the agent itself.
    Own {
        type_url: String,
        resource: Option<Vec<u8>>,
    },
    /// For nobody: it cannot be read.
    Ignore,
}

#[derive(Debug)]
enum Kinds {
    Delta(delta::Memory),
    World(world::Memory),
}

/// Of one stream of Envoy's.
#[derive(Debug)]
pub(super) struct Memory {
    /// Envoy's own description of itself, as it came.
    node: Vec<u8>,
    kinds: Kinds,
    own: Vec<String>,
    /// What the agent's own types are to be answered with: nonce and version.
    own_seen: HashMap<String, (String, String)>,
    introduced: bool,
    /// Connections so far.
    connections: u64,
}

impl Memory {
    pub(super) fn new(protocol: Protocol, own: Vec<String>) -> Self {
        Self {
            node: Vec::new(),
            kinds: match protocol {
                Protocol::Delta => Kinds::Delta(delta::Memory::default()),
                Protocol::Sotw => Kinds::World(world::Memory::default()),
            },
            own,
            own_seen: HashMap::new(),
            introduced: false,
            connections: 0,
        }
    }

    /// In front of the nonces of this connection.
    fn mark(&self) -> String {
        match self.connections {
            0 | 1 => String::new(),
            number => format!("remora-{number}-"),
        }
    }

    /// Whether Envoy has asked for listeners.
    pub(super) fn introduced(&self) -> bool {
        self.introduced
    }

    /// Notes what Envoy says. What cannot be read is passed on: the control plane will say what it thinks of it.
    pub(super) fn hear_envoy(&mut self, message: &Bytes) -> FromEnvoy {
        let mark = self.mark();
        let (type_url, node, nonce, mut noted, field) = match &mut self.kinds {
            Kinds::Delta(memory) => {
                let Ok(request) = DeltaRequest::decode(message.clone()) else {
                    return FromEnvoy::passed_on(message);
                };
                let (url, node) = (request.type_url.clone(), request.node.clone());
                let nonce = request.response_nonce.clone();
                let noted = memory.hear_envoy(request, message);
                (url, node, nonce, noted, DELTA_REQUEST_NONCE)
            }
            Kinds::World(memory) => {
                let Ok(request) = WorldRequest::decode(message.clone()) else {
                    return FromEnvoy::passed_on(message);
                };
                let (url, node) = (request.type_url.clone(), request.node.clone());
                let nonce = request.response_nonce.clone();
                let noted = memory.hear_envoy(request, message);
                (url, node, nonce, noted, WORLD_REQUEST_NONCE)
            }
        };
        if let (Some(forward), false) = (&noted.forward, mark.is_empty())
            && let Some(original) = nonce.strip_prefix(&mark)
        {
            noted.forward = Some(envelope::with_text(forward, field, original));
        }
        if self.node.is_empty() {
            self.node = node;
        }
        self.introduced |= type_url == LISTENER;
        noted
    }

    /// Notes what the control plane says.
    pub(super) fn hear_plane(&mut self, message: Bytes) -> FromPlane {
        let mark = self.mark();
        let nonce = match &mut self.kinds {
            Kinds::Delta(memory) => {
                let Ok(mut response) = DeltaResponse::decode(message.clone()) else {
                    return FromPlane::Ignore;
                };
                if self.own.contains(&response.type_url) {
                    let seen = (response.nonce, String::new());
                    self.own_seen.insert(response.type_url.clone(), seen);
                    let resource = envelope::first_delta_resource(&message);
                    return FromPlane::Own {
                        type_url: response.type_url,
                        resource,
                    };
                }
                response.nonce.insert_str(0, &mark);
                let nonce = response.nonce.clone();
                memory.hear_plane(response);
                nonce
            }
            Kinds::World(memory) => {
                let Ok(mut response) = WorldResponse::decode(message.clone()) else {
                    return FromPlane::Ignore;
                };
                if self.own.contains(&response.type_url) {
                    let seen = (response.nonce, response.version_info);
                    self.own_seen.insert(response.type_url.clone(), seen);
                    let resource = envelope::first_world_resource(&message);
                    return FromPlane::Own {
                        type_url: response.type_url,
                        resource,
                    };
                }
                response.nonce.insert_str(0, &mark);
                let nonce = response.nonce.clone();
                memory.hear_plane(response);
                nonce
            }
        };
        FromPlane::Forward(if mark.is_empty() {
            message
        } else {
            envelope::with_text(&message, RESPONSE_NONCE, &nonce)
        })
    }

    /// Notes an answer that did not come from the control plane: Envoy's answer to it is not the control plane's business.
    pub(super) fn hear_kept(&mut self, message: &Bytes) {
        if let (Kinds::Delta(memory), Ok(response)) =
            (&mut self.kinds, DeltaResponse::decode(message.clone()))
        {
            memory.hear_kept(response);
        }
    }

    /// A new connection: what to say on it, the node in the first message.
    pub(super) fn connected(&mut self) -> Vec<Bytes> {
        self.own_seen.clear();
        self.connections += 1;
        let mut messages = match &mut self.kinds {
            Kinds::Delta(memory) => memory.connected(&self.node),
            Kinds::World(memory) => memory.connected(&self.node),
        };
        if self.introduced {
            messages.extend(self.own_requests());
        }
        messages
    }

    /// What the agent itself asks for.
    pub(super) fn own_requests(&self) -> Vec<Bytes> {
        let wish = |type_url: &String| self.bare(type_url, None);
        self.own.iter().map(wish).collect()
    }

    /// Accepts or refuses what the agent itself asked for.
    pub(super) fn answer_own(&mut self, type_url: &str, refusal: Option<&str>) -> Option<Bytes> {
        let (nonce, version) = self.own_seen.get(type_url)?;
        let error_detail = refusal.map(|why| Status::internal(why).encode_to_vec());
        let message = match &self.kinds {
            Kinds::Delta(_) => DeltaRequest {
                type_url: type_url.to_owned(),
                response_nonce: nonce.clone(),
                error_detail,
                ..DeltaRequest::default()
            }
            .encode_to_vec(),
            Kinds::World(_) => WorldRequest {
                type_url: type_url.to_owned(),
                // A refused version is not in use.
                version_info: if refusal.is_none() {
                    version.clone()
                } else {
                    String::new()
                },
                response_nonce: nonce.clone(),
                error_detail,
                ..WorldRequest::default()
            }
            .encode_to_vec(),
        };
        Some(message.into())
    }

    /// How the application feels.
    // istio: a request of a type without resources; sickness is its error.
    pub(super) fn health(&self, health: &Health) -> Bytes {
        match health {
            Health::Healthy => self.bare(HEALTH, None),
            Health::Unhealthy(why) => self.bare(HEALTH, Some(why)),
        }
    }

    fn bare(&self, type_url: &str, error: Option<&str>) -> Bytes {
        let type_url = type_url.to_owned();
        let error_detail = error.map(|why| Status::internal(why).encode_to_vec());
        let message = match &self.kinds {
            Kinds::Delta(_) => DeltaRequest {
                type_url,
                error_detail,
                ..DeltaRequest::default()
            }
            .encode_to_vec(),
            Kinds::World(_) => WorldRequest {
                type_url,
                error_detail,
                ..WorldRequest::default()
            }
            .encode_to_vec(),
        };
        message.into()
    }
}

impl FromEnvoy {
    fn passed_on(message: &Bytes) -> Self {
        Self {
            forward: Some(message.clone()),
            answer: None,
        }
    }
}

fn judgement(type_url: &str, error_detail: Option<&[u8]>) -> Answer {
    match error_detail {
        None => Answer::Accepted(type_url.to_owned()),
        Some(detail) => {
            let why = Status::decode(detail)
                .map(|status| status.message)
                .unwrap_or_default();
            Answer::Refused(type_url.to_owned(), why)
        }
    }
}

impl Status {
    fn internal(why: &str) -> Self {
        Self {
            code: INTERNAL,
            message: why.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
