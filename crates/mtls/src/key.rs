//! Private keys and requests to certify them.

use crate::SpiffeId;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::fmt;

/// An ECDSA P-256 key. `Debug` does not print it.
pub struct PrivateKey {
    pair: KeyPair,
}

/// A key could not be made, read or used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The random generator or the algorithm failed.
    #[error("generate a P-256 key")]
    Generate(#[source] rcgen::Error),
    /// Not PKCS#8 PEM of a key we can sign with.
    #[error("read a private key")]
    Read(#[source] rcgen::Error),
    /// The request could not be signed or written.
    #[error("write a certificate request for {id}")]
    Request {
        /// The id in the request.
        id: SpiffeId,
        /// Error of the certificate library.
        #[source]
        source: rcgen::Error,
    },
}

impl PrivateKey {
    /// A new key.
    pub fn generate() -> Result<Self, KeyError> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(KeyError::Generate)?;
        Ok(Self { pair })
    }

    /// A key from PKCS#8 PEM.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let pair = KeyPair::from_pem(pem).map_err(KeyError::Read)?;
        Ok(Self { pair })
    }

    /// PKCS#8 PEM, for files only the owner may read.
    pub fn to_pem(&self) -> String {
        self.pair.serialize_pem()
    }

    /// A PKCS#10 request (PEM) that asks for `id`.
    ///
    // istio: empty subject, one critical SAN with the URI; the authority decides the identity by the caller's
    // credentials, not by this.
    pub fn request(&self, id: &SpiffeId) -> Result<String, KeyError> {
        let failed = |source| KeyError::Request {
            id: id.clone(),
            source,
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let uri = id.as_str().try_into().map_err(failed)?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params
            .serialize_request(&self.pair)
            .and_then(|csr| csr.pem())
            .map_err(failed)
    }

    pub(crate) fn pair(&self) -> &KeyPair {
        &self.pair
    }

    pub(crate) fn der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.pair.serialize_der()))
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(hidden)")
    }
}
