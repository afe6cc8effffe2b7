//! Session affinity in the workload API, which has no field for it: an extension of a service.
//!
//! Its name is [`EXTENSION`], its configuration a `google.protobuf.StringValue` with Kubernetes' name of the kind,
//! `ClientIP`. Proxies that do not know the extension leave it aside, as the API asks of them.
//!
//! A kind that is not known is an error: connections that must stay together would be spread.

use crate::proto::workload::Extension;
use prost::Message;

/// The name of the extension.
pub const EXTENSION: &str = "remora.dev/session-affinity";
const TYPE_URL: &str = "type.googleapis.com/google.protobuf.StringValue";
const CLIENT_IP: &str = "ClientIP";

/// What keeps connections together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionAffinity {
    /// The address of the one who opens them.
    ClientIp,
}

/// An extension that is ours and not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AffinityError {
    /// No text in it.
    #[error("its configuration is no text")]
    Text,
    /// A kind of a newer version.
    #[error("kind {0:?} is not known")]
    Kind(String),
}

/// Asks for affinity.
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

/// What an extension asks for; nothing if it is somebody else's.
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
