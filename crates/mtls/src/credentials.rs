//! A certificate with its key and the roots to judge others by: checked as a whole, before it is used.

use crate::verify::{Expected, Verifier};
use crate::{Chain, PeerError, Pem, PrivateKey, Roots, SpiffeId, TrustDomains, pem, provider};
use rustls::pki_types::{PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use webpki::KeyUsage;

/// What a workload needs to speak mutual TLS.
#[derive(Debug)]
pub struct Credentials {
    pub(crate) chain: Chain,
    pub(crate) certified: Arc<CertifiedKey>,
    pub(crate) roots: Arc<Roots>,
    key: PrivateKeyDer<'static>,
}

/// Credentials that would not work.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The certificate names somebody else.
    #[error("the certificate is for {found}, asked was {expected}")]
    Identity {
        /// Asked for.
        expected: SpiffeId,
        /// In the certificate.
        found: SpiffeId,
    },
    /// Key and certificate are no pair, or the key cannot sign.
    #[error("use the key with the certificate of {id}")]
    Key {
        /// Whose.
        id: SpiffeId,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The chain does not lead to the roots, or is not valid now: every peer would refuse it.
    #[error("verify the new certificate as a peer would")]
    Unusable(#[from] PeerError),
}

impl Credentials {
    /// Checks that the parts belong together and work at the time `now`.
    pub fn new(
        key: &PrivateKey,
        chain: Chain,
        roots: Roots,
        expected: &SpiffeId,
        now: SystemTime,
    ) -> Result<Self, CredentialsError> {
        if chain.id() != expected {
            return Err(CredentialsError::Identity {
                expected: expected.clone(),
                found: chain.id().clone(),
            });
        }
        let provider = provider::provider();
        let certified =
            CertifiedKey::from_der(chain.der.clone(), key.der(), &provider).map_err(|source| {
                CredentialsError::Key {
                    id: expected.clone(),
                    source,
                }
            })?;
        let roots = Arc::new(roots);
        let domains = TrustDomains::of(expected);
        let verifier = Verifier::new(Arc::clone(&roots), domains, Expected::Anybody, &provider);
        if let Some((leaf, intermediates)) = chain.der.split_first() {
            let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
            verifier.judge(
                leaf,
                intermediates,
                UnixTime::since_unix_epoch(since),
                KeyUsage::server_auth(),
            )?;
        }
        Ok(Self {
            chain,
            certified: Arc::new(certified),
            roots,
            key: key.der(),
        })
    }

    /// As text, for a program that speaks in the workload's name.
    pub fn to_pem(&self) -> Pem {
        Pem {
            chain: pem::certificates_to_pem(&self.chain.der),
            key: pem::encode("PRIVATE KEY", self.key.secret_der()),
            roots: pem::certificates_to_pem(self.roots.der()),
        }
    }

    /// Whose they are.
    pub fn id(&self) -> &SpiffeId {
        self.chain.id()
    }

    /// The certificate and its intermediates.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }
}
