//! Envelopes of discovery messages, with the field numbers of the interface. Their resources stay bytes.

use bytes::{Bytes, BytesMut};
use prost::Message;
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::xds_proxy) struct DeltaRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::xds_proxy) node: Vec<u8>,
    #[prost(string, tag = "2")]
    pub(in crate::xds_proxy) type_url: String,
    #[prost(string, repeated, tag = "3")]
    pub(in crate::xds_proxy) subscribe: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(in crate::xds_proxy) unsubscribe: Vec<String>,
    #[prost(btree_map = "string, string", tag = "5")]
    pub(in crate::xds_proxy) initial_versions: BTreeMap<String, String>,
    #[prost(string, tag = "6")]
    pub(in crate::xds_proxy) response_nonce: String,
    #[prost(bytes = "vec", optional, tag = "7")]
    pub(in crate::xds_proxy) error_detail: Option<Vec<u8>>,
}

/// Without the content of the resources: decoding copies names and versions only.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DeltaResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) resources: Vec<NamedVersion>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) nonce: String,
    #[prost(string, repeated, tag = "6")]
    pub(super) removed: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::xds_proxy) struct NamedVersion {
    #[prost(string, tag = "1")]
    pub(in crate::xds_proxy) version: String,
    #[prost(string, tag = "3")]
    pub(in crate::xds_proxy) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::xds_proxy) struct SotwRequest {
    #[prost(string, tag = "1")]
    pub(in crate::xds_proxy) version_info: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(in crate::xds_proxy) node: Vec<u8>,
    #[prost(string, repeated, tag = "3")]
    pub(in crate::xds_proxy) names: Vec<String>,
    #[prost(string, tag = "4")]
    pub(in crate::xds_proxy) type_url: String,
    #[prost(string, tag = "5")]
    pub(in crate::xds_proxy) response_nonce: String,
    #[prost(bytes = "vec", optional, tag = "6")]
    pub(in crate::xds_proxy) error_detail: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SotwResponse {
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) nonce: String,
}

/// Replaces a string field of a message. In protobuf the last occurrence of a field wins, so the field is appended and
/// the rest stays unchanged.
pub(super) fn with_text(message: &Bytes, field: u32, text: &str) -> Bytes {
    let mut changed = BytesMut::with_capacity(message.len() + text.len() + 8);
    changed.extend_from_slice(message);
    prost::encoding::string::encode(field, &text.to_owned(), &mut changed);
    changed.freeze()
}

/// The content of the first resource.
pub(super) fn first_delta_resource(message: &[u8]) -> Option<Vec<u8>> {
    #[derive(Clone, PartialEq, Message)]
    struct Response {
        #[prost(message, repeated, tag = "2")]
        resources: Vec<Resource>,
    }
    #[derive(Clone, PartialEq, Message)]
    struct Resource {
        #[prost(message, optional, tag = "2")]
        resource: Option<prost_types::Any>,
    }
    let response = Response::decode(message).ok()?;
    Some(response.resources.into_iter().next()?.resource?.value)
}

/// The content of the first resource.
pub(super) fn first_sotw_resource(message: &[u8]) -> Option<Vec<u8>> {
    #[derive(Clone, PartialEq, Message)]
    struct Response {
        #[prost(message, repeated, tag = "2")]
        resources: Vec<prost_types::Any>,
    }
    let response = Response::decode(message).ok()?;
    Some(response.resources.into_iter().next()?.value)
}
