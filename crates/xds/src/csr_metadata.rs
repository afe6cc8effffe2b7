//! Metadata of a certificate signing request: fields that Istio's certificate service reads next to the CSR.

use crate::proto::certificate::IstioCertificateRequest;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

// istio: the keys that the certificate authority reads.
/// Selects one of several signers.
pub const CERT_SIGNER: &str = "CertSigner";
/// Identity to certify, when a node proxy requests a certificate for a workload of its node.
pub const IMPERSONATED_IDENTITY: &str = "ImpersonatedIdentity";

/// Builds the metadata from the entries that are not empty; `None` without any.
pub(crate) fn build(entries: [(&str, &str); 2]) -> Option<Struct> {
    let present = entries.into_iter().filter(|(_, text)| !text.is_empty());
    let fields = present.map(|(name, text)| {
        let kind = Some(Kind::StringValue(text.to_owned()));
        (name.to_owned(), Value { kind })
    });
    let metadata = Struct {
        fields: fields.collect(),
    };
    (!metadata.fields.is_empty()).then_some(metadata)
}

/// A metadata entry of a request; `None` if it is absent or empty.
pub fn get<'a>(request: &'a IstioCertificateRequest, name: &str) -> Option<&'a str> {
    let value = request.metadata.as_ref()?.fields.get(name)?;
    match &value.kind {
        Some(Kind::StringValue(text)) if !text.is_empty() => Some(text),
        _ => None,
    }
}
