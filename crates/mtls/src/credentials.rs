//! A certificate with its key and the roots that verify peers: checked as a whole, before it is used.

use crate::verify::{Expected, Verifier};
use crate::{Chain, PeerError, Pem, PrivateKey, Roots, SpiffeId, TrustDomains, pem, provider};
use rustls::pki_types::{PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use webpki::KeyUsage;

/// Everything a workload needs for mutual TLS: certificate chain, key and roots.
#[derive(Debug)]
pub struct Credentials {
    pub(crate) chain: Chain,
    pub(crate) certified: Arc<CertifiedKey>,
    pub(crate) roots: Arc<Roots>,
    key: PrivateKeyDer<'static>,
}

/// Why credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The certificate names another workload.
    #[error("the certificate is for {found}, asked was {expected}")]
    Identity {
        /// The requested id.
        expected: SpiffeId,
        /// The id in the certificate.
        found: SpiffeId,
    },
    /// Key and certificate are no pair, or the key cannot sign.
    #[error("use the key with the certificate of {id}")]
    Key {
        /// The id in the certificate.
        id: SpiffeId,
        /// Error of the TLS library.
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
        let verifier = Verifier::new(Arc::clone(&roots), domains, Expected::AnyWorkload, &provider);
        if let Some((leaf, intermediates)) = chain.der.split_first() {
            let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
            verifier.verify(
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

    /// As PEM, for a program that uses the workload's identity (Envoy).
    pub fn to_pem(&self) -> Pem {
        Pem {
            chain: pem::certificates_to_pem(&self.chain.der),
            key: pem::encode("PRIVATE KEY", self.key.secret_der()),
            roots: pem::certificates_to_pem(self.roots.der()),
        }
    }

    /// SPIFFE id of the workload.
    pub fn id(&self) -> &SpiffeId {
        self.chain.id()
    }

    /// The certificate and its intermediates.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }
}
