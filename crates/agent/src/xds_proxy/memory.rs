//! The state of a stream that is needed to repeat it on another connection. No IO.
//!
//! Only the envelopes of messages are decoded: type, names, versions and nonces. The rest stays bytes. Delta: subscribed
//! names, and the versions that Envoy accepted. State of the world (SotW): the last list of names, and the version that
//! Envoy accepted last.
//!
//! An ACK belongs to the connection of its response. Envoy may answer late, when that connection is gone; then its
//! subscriptions are still forwarded, but not as an ACK. Control planes may count their nonces from 1 on
//! every connection, so from the second connection on Envoy sees nonces with the connection's number in front.

mod delta;
pub(super) mod envelope;
mod sotw;

use super::Health;
use bytes::Bytes;
use envelope::{DeltaRequest, DeltaResponse, SotwRequest, SotwResponse, Status};
use prost::Message as _;
use remora_xds::raw::Protocol;
use remora_xds::types::{HEALTH, LISTENER};
use std::collections::HashMap;

/// `INTERNAL` of gRPC.
const INTERNAL: i32 = 13;
/// Field number of the nonce: in responses, in delta requests, in SotW requests.
const RESPONSE_NONCE: u32 = 5;
const DELTA_REQUEST_NONCE: u32 = 6;
const SOTW_REQUEST_NONCE: u32 = 5;

/// Envoy's ACK or NACK of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Accepted(String),
    Refused(String, String),
}

/// Result of a message from Envoy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FromEnvoy {
    /// Message for the control plane.
    pub(super) forward: Option<Bytes>,
    pub(super) answer: Option<Answer>,
}

/// Result of a message from the control plane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FromControlPlane {
    /// Forward to Envoy.
    Forward(Bytes),
    /// A resource of the agent's own subscription.
    Own {
        type_url: String,
        resource: Option<Vec<u8>>,
    },
    /// Drop: it cannot be decoded.
    Ignore,
}

#[derive(Debug)]
enum Kinds {
    Delta(delta::Memory),
    Sotw(sotw::Memory),
}

/// State of one stream of Envoy.
#[derive(Debug)]
pub(super) struct Memory {
    /// Envoy's node message, unchanged.
    node: Vec<u8>,
    kinds: Kinds,
    own: Vec<String>,
    /// Nonce and version to acknowledge, per type of the agent's own subscriptions.
    own_seen: HashMap<String, (String, String)>,
    introduced: bool,
    /// Number of connections so far.
    connections: u64,
}

impl Memory {
    pub(super) fn new(protocol: Protocol, own: Vec<String>) -> Self {
        Self {
            node: Vec::new(),
            kinds: match protocol {
                Protocol::Delta => Kinds::Delta(delta::Memory::default()),
                Protocol::Sotw => Kinds::Sotw(sotw::Memory::default()),
            },
            own,
            own_seen: HashMap::new(),
            introduced: false,
            connections: 0,
        }
    }

    /// Prefix of the nonces of this connection.
    fn nonce_prefix(&self) -> String {
        match self.connections {
            0 | 1 => String::new(),
            number => format!("remora-{number}-"),
        }
    }

    /// Whether Envoy has subscribed to listeners.
    pub(super) fn introduced(&self) -> bool {
        self.introduced
    }

    /// Records a message of Envoy. An undecodable one is forwarded: the control plane rejects it.
    pub(super) fn on_envoy_message(&mut self, message: &Bytes) -> FromEnvoy {
        let mark = self.nonce_prefix();
        let (type_url, node, nonce, mut noted, field) = match &mut self.kinds {
            Kinds::Delta(memory) => {
                let Ok(request) = DeltaRequest::decode(message.clone()) else {
                    return FromEnvoy::forwarded(message);
                };
                let (url, node) = (request.type_url.clone(), request.node.clone());
                let nonce = request.response_nonce.clone();
                let noted = memory.on_envoy_message(request, message);
                (url, node, nonce, noted, DELTA_REQUEST_NONCE)
            }
            Kinds::Sotw(memory) => {
                let Ok(request) = SotwRequest::decode(message.clone()) else {
                    return FromEnvoy::forwarded(message);
                };
                let (url, node) = (request.type_url.clone(), request.node.clone());
                let nonce = request.response_nonce.clone();
                let noted = memory.on_envoy_message(request, message);
                (url, node, nonce, noted, SOTW_REQUEST_NONCE)
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

    /// Records a message of the control plane.
    pub(super) fn on_control_plane_message(&mut self, message: Bytes) -> FromControlPlane {
        let mark = self.nonce_prefix();
        let nonce = match &mut self.kinds {
            Kinds::Delta(memory) => {
                let Ok(mut response) = DeltaResponse::decode(message.clone()) else {
                    return FromControlPlane::Ignore;
                };
                if self.own.contains(&response.type_url) {
                    let seen = (response.nonce, String::new());
                    self.own_seen.insert(response.type_url.clone(), seen);
                    let resource = envelope::first_delta_resource(&message);
                    return FromControlPlane::Own {
                        type_url: response.type_url,
                        resource,
                    };
                }
                response.nonce.insert_str(0, &mark);
                let nonce = response.nonce.clone();
                memory.on_control_plane_message(response);
                nonce
            }
            Kinds::Sotw(memory) => {
                let Ok(mut response) = SotwResponse::decode(message.clone()) else {
                    return FromControlPlane::Ignore;
                };
                if self.own.contains(&response.type_url) {
                    let seen = (response.nonce, response.version_info);
                    self.own_seen.insert(response.type_url.clone(), seen);
                    let resource = envelope::first_sotw_resource(&message);
                    return FromControlPlane::Own {
                        type_url: response.type_url,
                        resource,
                    };
                }
                response.nonce.insert_str(0, &mark);
                let nonce = response.nonce.clone();
                memory.on_control_plane_message(response);
                nonce
            }
        };
        FromControlPlane::Forward(if mark.is_empty() {
            message
        } else {
            envelope::with_text(&message, RESPONSE_NONCE, &nonce)
        })
    }

    /// Records a response from the last good configuration: Envoy's ACK to it is not forwarded to the control plane.
    pub(super) fn on_kept_response(&mut self, message: &Bytes) {
        if let (Kinds::Delta(memory), Ok(response)) =
            (&mut self.kinds, DeltaResponse::decode(message.clone()))
        {
            memory.on_kept_response(response);
        }
    }

    /// A new connection. Returns its opening messages, with the node in the first one.
    pub(super) fn connected(&mut self) -> Vec<Bytes> {
        self.own_seen.clear();
        self.connections += 1;
        let mut messages = match &mut self.kinds {
            Kinds::Delta(memory) => memory.connected(&self.node),
            Kinds::Sotw(memory) => memory.connected(&self.node),
        };
        if self.introduced {
            messages.extend(self.own_requests());
        }
        messages
    }

    /// The agent's own subscriptions.
    pub(super) fn own_requests(&self) -> Vec<Bytes> {
        let wish = |type_url: &String| self.bare(type_url, None);
        self.own.iter().map(wish).collect()
    }

    /// ACK or NACK for a resource of the agent's own subscription.
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
            Kinds::Sotw(_) => SotwRequest {
                type_url: type_url.to_owned(),
                // A refused version is not in use.
                version_info: if refusal.is_none() {
                    version.clone()
                } else {
                    String::new()
                },
                response_nonce: nonce.clone(),
                error_detail,
                ..SotwRequest::default()
            }
            .encode_to_vec(),
        };
        Some(message.into())
    }

    /// A report of the application's health.
    // istio: a request of a type without resources; an unhealthy state is its error.
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
            Kinds::Sotw(_) => SotwRequest {
                type_url,
                error_detail,
                ..SotwRequest::default()
            }
            .encode_to_vec(),
        };
        message.into()
    }
}

impl FromEnvoy {
    fn forwarded(message: &Bytes) -> Self {
        Self {
            forward: Some(message.clone()),
            answer: None,
        }
    }
}

fn ack_or_nack(type_url: &str, error_detail: Option<&[u8]>) -> Answer {
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
