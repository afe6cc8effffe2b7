//! Memory of a SotW stream, on which every response holds all resources.

use super::envelope::{SotwRequest, SotwResponse};
use super::{Answer, FromEnvoy, ack_or_nack};
use bytes::Bytes;
use prost::Message as _;

#[derive(Debug, Default)]
pub(super) struct Memory {
    /// In the order of Envoy's first requests.
    kinds: Vec<(String, Kind)>,
}

#[derive(Debug, Default)]
struct Kind {
    names: Vec<String>,
    /// The last version Envoy accepted.
    version: String,
    /// The last response of this connection, and whether it is answered.
    nonce: Option<(String, bool)>,
}

impl Memory {
    pub(super) fn on_envoy_message(&mut self, mut request: SotwRequest, message: &Bytes) -> FromEnvoy {
        let kind = self.kind(&request.type_url);
        let same_names = kind.names == request.names;
        kind.names.clone_from(&request.names);
        kind.version.clone_from(&request.version_info);
        if request.response_nonce.is_empty() {
            return FromEnvoy::forwarded(message);
        }
        let judged = ack_or_nack(&request.type_url, request.error_detail.as_deref());
        match &mut kind.nonce {
            Some((nonce, answered)) if *nonce == request.response_nonce => {
                // With a nonce that was acknowledged before, Envoy only changes its subscription.
                let first = !std::mem::replace(answered, true);
                FromEnvoy {
                    forward: Some(message.clone()),
                    answer: first.then_some(judged),
                }
            }
            // The response came on another connection.
            _ => FromEnvoy {
                forward: (!same_names).then(|| {
                    request.response_nonce.clear();
                    request.error_detail = None;
                    request.encode_to_vec().into()
                }),
                answer: matches!(judged, Answer::Refused(..)).then_some(judged),
            },
        }
    }

    fn kind(&mut self, type_url: &str) -> &mut Kind {
        let known = self.kinds.iter().position(|(url, _)| url == type_url);
        let index = known.unwrap_or(self.kinds.len());
        if known.is_none() {
            self.kinds.push((type_url.to_owned(), Kind::default()));
        }
        &mut self.kinds[index].1
    }

    pub(super) fn on_control_plane_message(&mut self, response: SotwResponse) {
        self.kind(&response.type_url).nonce = Some((response.nonce, false));
    }

    pub(super) fn connected(&mut self, node: &[u8]) -> Vec<Bytes> {
        let mut node = Some(node.to_vec());
        let requests = self.kinds.iter_mut().map(|(type_url, kind)| {
            kind.nonce = None;
            SotwRequest {
                version_info: kind.version.clone(),
                node: node.take().unwrap_or_default(),
                names: kind.names.clone(),
                type_url: type_url.clone(),
                ..SotwRequest::default()
            }
            .encode_to_vec()
            .into()
        });
        requests.collect()
    }
}
