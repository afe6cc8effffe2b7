//! A response that refers to shared resources; they are copied only when the message is written.

use super::resource::{Encoded, begin, field_len, put};
use crate::proto::discovery::DeltaDiscoveryResponse;
use bytes::BufMut;
use prost::Message as _;
use std::sync::Arc;

/// Field numbers of `DeltaDiscoveryResponse`.
const RESOURCES: u32 = 2;
const TYPE_URL: u32 = 4;
const NONCE: u32 = 5;
const REMOVED: u32 = 6;

/// A `DeltaDiscoveryResponse` whose resources are shared with a snapshot, not copied.
#[derive(Debug, Clone, Default)]
pub struct Response {
    /// Type URL of the resources.
    pub type_url: String,
    /// Nonce, which the client repeats in its answer.
    pub nonce: String,
    /// New or changed resources.
    pub resources: Vec<Arc<Encoded>>,
    /// Names of removed resources.
    pub removed: Vec<String>,
}

impl Response {
    /// Whether the response has no change.
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.removed.is_empty()
    }

    /// Encoded length of the message.
    pub fn encoded_len(&self) -> usize {
        let resources = self
            .resources
            .iter()
            .map(|resource| field_len(resource.message_len(&self.type_url)));
        let texts = [&self.type_url, &self.nonce].into_iter().chain(&self.removed);
        resources.sum::<usize>() + texts.map(|text| field_len(text.len())).sum::<usize>()
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        for resource in &self.resources {
            begin(RESOURCES, resource.message_len(&self.type_url), out);
            resource.write(&self.type_url, out);
        }
        put(TYPE_URL, self.type_url.as_bytes(), out);
        put(NONCE, self.nonce.as_bytes(), out);
        for name in &self.removed {
            put(REMOVED, name.as_bytes(), out);
        }
    }

    /// The message with owned copies of the resources.
    pub fn message(&self) -> Result<DeltaDiscoveryResponse, prost::DecodeError> {
        let mut bytes = Vec::with_capacity(self.encoded_len());
        self.write(&mut bytes);
        DeltaDiscoveryResponse::decode(&*bytes)
    }
}
