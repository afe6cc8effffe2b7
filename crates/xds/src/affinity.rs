//! Session affinity in the workload API, which has no field for it: an extension of a service.
//!
//! Its name is [`EXTENSION`], its configuration a `google.protobuf.StringValue` with Kubernetes' name of the kind,
//! `ClientIP`. Proxies that do not know the extension ignore it, as the API requires.
//!
//! An unknown kind is an error, because ignoring it would spread connections that must reach the same endpoint.

use crate::proto::workload::Extension;
use prost::Message;

/// The name of the extension.
pub const EXTENSION: &str = "remora.dev/session-affinity";
const TYPE_URL: &str = "type.googleapis.com/google.protobuf.StringValue";
const CLIENT_IP: &str = "ClientIP";

/// The property of a connection that selects its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionAffinity {
    /// The client's IP address.
    ClientIp,
}

/// Why a session affinity extension cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AffinityError {
    /// The configuration is not a `StringValue`.
    #[error("its configuration is no text")]
    Text,
    /// The kind is unknown, for example from a newer version.
    #[error("kind {0:?} is not known")]
    Kind(String),
}

/// Encodes the affinity as an extension.
pub fn write(affinity: SessionAffinity) -> Extension {
    let SessionAffinity::ClientIp = affinity;
    Extension {
        name: EXTENSION.to_owned(),
        config: Some(prost_types::Any {
            type_url: TYPE_URL.to_owned(),
            value: CLIENT_IP.to_owned().encode_to_vec(),
        }),
    }
}

/// Decodes the affinity from an extension; `None` for any other extension.
pub fn read(extension: &Extension) -> Result<Option<SessionAffinity>, AffinityError> {
    if extension.name != EXTENSION {
        return Ok(None);
    }
    let config = extension.config.as_ref().filter(|any| any.type_url == TYPE_URL);
    let text = config.and_then(|any| String::decode(any.value.as_slice()).ok());
    match text.ok_or(AffinityError::Text)? {
        kind if kind == CLIENT_IP => Ok(Some(SessionAffinity::ClientIp)),
        kind => Err(AffinityError::Kind(kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::{AffinityError, SessionAffinity, read, write};

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let ours = write(SessionAffinity::ClientIp);
        assert_eq!(read(&ours), Ok(Some(SessionAffinity::ClientIp)));
        let mut theirs = ours.clone();
        theirs.name = "somebody.else/thing".to_owned();
        assert_eq!(read(&theirs), Ok(None));
        let mut broken = ours.clone();
        broken.config = None;
        assert_eq!(read(&broken), Err(AffinityError::Text));
        let mut newer = ours;
        if let Some(config) = &mut newer.config {
            config.value = vec![10, 1, b'x'];
        }
        assert_eq!(read(&newer), Err(AffinityError::Kind("x".to_owned())));
    }
}
