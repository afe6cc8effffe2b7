//! What a certificate request asks for besides a certificate.

use crate::proto::certificate::IstioCertificateRequest;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

// istio: the names under which an authority looks for them.
/// Which of several signers.
pub const SIGNER: &str = "CertSigner";
/// For whom, if not for the caller.
pub const BEHALF: &str = "ImpersonatedIdentity";

/// Wishes that are not empty, as a request carries them.
pub(crate) fn of(wishes: [(&str, &str); 2]) -> Option<Struct> {
    let said = wishes.into_iter().filter(|(_, text)| !text.is_empty());
    let fields = said.map(|(name, text)| {
        let kind = Some(Kind::StringValue(text.to_owned()));
        (name.to_owned(), Value { kind })
    });
    let wishes = Struct {
        fields: fields.collect(),
    };
    (!wishes.fields.is_empty()).then_some(wishes)
}

/// A wish of a request, if it has it.
pub fn wish<'a>(request: &'a IstioCertificateRequest, name: &str) -> Option<&'a str> {
    let value = request.metadata.as_ref()?.fields.get(name)?;
    match &value.kind {
        Some(Kind::StringValue(text)) if !text.is_empty() => Some(text),
        _ => None,
    }
}
