//! Who a caller is, by the token it shows.

use crate::files::{self, Fingerprint, LoadError};
use remora_http::Connection;
use remora_mtls::{InvalidSpiffeId, SpiffeId};
use serde::Deserialize;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};
use tonic::Status;
use tonic::metadata::MetadataMap;

/// Knows callers by their tokens.
#[tonic::async_trait]
pub trait Authenticator: Send + Sync {
    /// Whose token it is, or why it is nobody's.
    async fn identify(&self, token: &str) -> Result<SpiffeId, Unidentified>;

    /// The same, for a client at an address: what a wrong token costs may be limited by it.
    async fn identify_from(&self, token: &str, _source: IpAddr) -> Result<SpiffeId, Unidentified> {
        self.identify(token).await
    }

    /// Whether the owner of a token, the proxy of a node, runs on the same node as a workload with this identity; else
    /// why it may not speak for it.
    async fn is_beside(&self, _token: &str, _workload: &SpiffeId) -> Result<(), Unidentified> {
        Err(Unidentified::Refused(
            "this control plane does not know on which nodes its callers run".to_owned(),
        ))
    }
}

/// Why a caller is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unidentified {
    /// The token is nobody's.
    #[error("{0}")]
    Refused(String),
    /// Nobody could be asked; the caller may try again.
    #[error("cannot tell whose token it is: {0}")]
    Unavailable(String),
}

/// Tokens from a file: a list of `{token, namespace, serviceAccount}`.
pub struct FileTokens {
    path: PathBuf,
    trust_domain: String,
    known: RwLock<Vec<(String, SpiffeId)>>,
    /// Of the file when it was read last.
    seen: Mutex<Option<Fingerprint>>,
}

/// The file of tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// Not readable.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A name that cannot be part of an identity.
    #[error("make an identity of {namespace}/{account}")]
    Identity {
        /// As written.
        namespace: String,
        /// As written.
        account: String,
        /// Why.
        #[source]
        source: InvalidSpiffeId,
    },
    /// An empty token would let everybody in.
    #[error("the token of {namespace}/{account} is empty")]
    Empty {
        /// Whose.
        namespace: String,
        /// Whose.
        account: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Entry {
    token: String,
    namespace: String,
    service_account: String,
}

impl FileTokens {
    /// Reads the file.
    pub fn open(path: &Path, trust_domain: &str) -> Result<Self, TokensError> {
        let tokens = Self {
            path: path.to_owned(),
            trust_domain: trust_domain.to_owned(),
            known: RwLock::default(),
            seen: Mutex::default(),
        };
        tokens.reload()?;
        Ok(tokens)
    }

    /// Reads the file again; what was known stays if it cannot be read.
    pub fn reload(&self) -> Result<(), TokensError> {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = self.fingerprint();
        let entries: Vec<Entry> = files::one(&self.path)?;
        let known = entries
            .into_iter()
            .map(|entry| self.known(entry))
            .collect::<Result<_, _>>()?;
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(())
    }

    /// Whether the file is as it was when it was read last.
    pub(crate) fn is_unchanged(&self) -> bool {
        let now = self.fingerprint();
        now.is_some() && now == *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        files::fingerprint(std::slice::from_ref(&self.path))
    }

    fn known(&self, entry: Entry) -> Result<(String, SpiffeId), TokensError> {
        let Entry {
            token,
            namespace,
            service_account: account,
        } = entry;
        if token.is_empty() {
            return Err(TokensError::Empty { namespace, account });
        }
        match SpiffeId::of_service_account(&self.trust_domain, &namespace, &account) {
            Ok(id) => Ok((token, id)),
            Err(source) => Err(TokensError::Identity {
                namespace,
                account,
                source,
            }),
        }
    }
}

#[tonic::async_trait]
impl Authenticator for FileTokens {
    async fn identify(&self, token: &str) -> Result<SpiffeId, Unidentified> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known
            .iter()
            .find(|(expected, _)| same(expected.as_bytes(), token.as_bytes()))
            .map(|(_, id)| id.clone())
            .ok_or_else(|| Unidentified::Refused("the token is not known".to_owned()))
    }
}

/// Takes as long for a near miss as for a wild guess.
fn same(expected: &[u8], given: &[u8]) -> bool {
    let differences = expected.iter().zip(given).fold(0, |sum, (a, b)| sum | (a ^ b));
    expected.len() == given.len() && differences == 0
}

/// The token of a request.
pub(crate) fn shown(metadata: &MetadataMap) -> Result<&str, Status> {
    metadata
        .get("authorization")
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.strip_prefix("Bearer "))
        .ok_or_else(|| Status::unauthenticated("no bearer token was shown"))
}

/// The caller of a request that came over a connection.
pub(crate) async fn caller(
    authenticator: &dyn Authenticator,
    metadata: &MetadataMap,
    connection: Option<&Connection>,
) -> Result<SpiffeId, Status> {
    let token = shown(metadata)?;
    let identified = match connection {
        Some(connection) => authenticator.identify_from(token, connection.source()).await,
        None => authenticator.identify(token).await,
    };
    let id = identified.map_err(|why| match why {
        Unidentified::Refused(_) => Status::unauthenticated(why.to_string()),
        Unidentified::Unavailable(_) => Status::unavailable(why.to_string()),
    })?;
    // From here on the connection is kept, however many others want its place.
    if let Some(connection) = connection {
        connection.trust();
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::{Authenticator, FileTokens, TokensError, Unidentified, caller, same, shown};
    use remora_mtls::SpiffeId;
    use tonic::Code;
    use tonic::metadata::MetadataMap;

    const TOKENS: &str = "[{token: secret, namespace: shop, serviceAccount: web}]";

    /// A directory and the path of a file of tokens in it.
    fn file(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.yaml");
        std::fs::write(&path, text).unwrap();
        (directory, path)
    }

    async fn owner(tokens: &FileTokens, token: &str) -> Result<String, Unidentified> {
        tokens.identify(token).await.map(|id| id.to_string())
    }

    #[tokio::test]
    async fn a_token_of_the_file_is_an_identity_and_every_other_is_refused() {
        let (_directory, path) = file(TOKENS);
        let tokens = FileTokens::open(&path, "td").unwrap();
        let id = "spiffe://td/ns/shop/sa/web".to_owned();
        assert_eq!(owner(&tokens, "secret").await, Ok(id));
        for wrong in ["", "secre", "secrets", "other"] {
            let refused = owner(&tokens, wrong).await;
            assert!(matches!(refused, Err(Unidentified::Refused(_))), "{wrong}");
        }
        let workload = "spiffe://td/ns/shop/sa/web".parse().unwrap();
        let refused = tokens.is_beside("secret", &workload).await;
        assert!(matches!(refused, Err(Unidentified::Refused(_))), "{refused:?}");
    }

    #[test]
    fn a_file_with_an_empty_token_or_an_impossible_name_is_refused() {
        let open = |text: &str| {
            let (_directory, path) = file(text);
            FileTokens::open(&path, "td").err()
        };
        let empty = open("[{token: '', namespace: shop, serviceAccount: web}]");
        assert!(matches!(empty, Some(TokensError::Empty { .. })), "{empty:?}");
        let name = open("[{token: secret, namespace: 'a b', serviceAccount: web}]");
        assert!(matches!(name, Some(TokensError::Identity { .. })), "{name:?}");
        let unknown = open("[{token: secret, namespace: shop, serviceAccount: web, admin: true}]");
        assert!(matches!(unknown, Some(TokensError::Load(_))), "{unknown:?}");
    }

    #[tokio::test]
    async fn a_changed_file_is_noticed_and_a_broken_one_keeps_what_was_known() {
        let (_directory, path) = file(TOKENS);
        let tokens = FileTokens::open(&path, "td").unwrap();
        assert!(tokens.is_unchanged());
        std::fs::write(&path, "[{token: renewed, namespace: shop, serviceAccount: web}]").unwrap();
        assert!(!tokens.is_unchanged());
        tokens.reload().unwrap();
        assert!(tokens.is_unchanged());
        assert!(owner(&tokens, "renewed").await.is_ok());
        assert!(owner(&tokens, "secret").await.is_err());
        std::fs::write(&path, "[{token: ").unwrap();
        assert!(tokens.reload().is_err());
        assert!(owner(&tokens, "renewed").await.is_ok());
        std::fs::remove_file(&path).unwrap();
        assert!(!tokens.is_unchanged());
        assert!(tokens.reload().is_err());
        assert!(!tokens.is_unchanged(), "a file that is not there is read again");
    }

    fn metadata(authorization: Option<&str>) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        if let Some(text) = authorization {
            metadata.insert("authorization", text.parse().unwrap());
        }
        metadata
    }

    #[test]
    fn only_a_bearer_token_is_a_token() {
        assert_eq!(shown(&metadata(Some("Bearer secret"))).unwrap(), "secret");
        for wrong in [None, Some("Basic secret"), Some("secret"), Some("Bearer")] {
            let refused = shown(&metadata(wrong)).unwrap_err();
            assert_eq!(refused.code(), Code::Unauthenticated, "{wrong:?}");
        }
    }

    /// Gives the same answer for every token.
    struct Always(Result<SpiffeId, Unidentified>);

    #[tonic::async_trait]
    impl Authenticator for Always {
        async fn identify(&self, _: &str) -> Result<SpiffeId, Unidentified> {
            self.0.clone()
        }
    }

    #[tokio::test]
    async fn a_client_can_tell_a_refused_token_from_one_that_could_not_be_judged() {
        let id: SpiffeId = "spiffe://td/ns/shop/sa/web".parse().unwrap();
        let ask = async |answer, header| caller(&Always(answer), &metadata(header), None).await;
        let bearer = Some("Bearer secret");
        assert_eq!(ask(Ok(id.clone()), bearer).await.unwrap(), id);
        let why = "x".to_owned();
        for (answer, header, code) in [
            (Ok(id), None, Code::Unauthenticated),
            (
                Err(Unidentified::Refused(why.clone())),
                bearer,
                Code::Unauthenticated,
            ),
            (Err(Unidentified::Unavailable(why)), bearer, Code::Unavailable),
        ] {
            assert_eq!(ask(answer, header).await.unwrap_err().code(), code);
        }
    }

    #[test]
    fn tokens_are_the_same_only_if_every_byte_is() {
        assert!(same(b"secret", b"secret"));
        // Differences in several bytes whose bits have nothing in common, and such that cancel out.
        for other in [
            "Secret", "secreT", "tecrer", "SECRET", "secre", "secrets", "", "crests", "rfcqdu",
        ] {
            assert!(!same(b"secret", other.as_bytes()), "{other}");
            assert!(!same(other.as_bytes(), b"secret"), "{other}");
        }
        for bit in 0..8 {
            for at in 0..6 {
                let mut near = *b"secret";
                near[at] ^= 1 << bit;
                assert!(!same(b"secret", &near), "bit {bit} of byte {at}");
            }
        }
    }
}
