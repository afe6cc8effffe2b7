//! Certificates and keys as PEM, for other programs (Envoy, applications).

use crate::certificate::certificates;
use crate::{CertificateError, provider};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::CertifiedKey;
use std::fmt;

/// Certificate, key and roots of a workload as PEM. `Debug` does not print the key.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// Certificate chain, leaf first.
    pub chain: String,
    /// Private key, PKCS#8.
    pub key: String,
    /// Trusted root certificates.
    pub roots: String,
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pem")
            .field("chain", &self.chain.len())
            .field("key", &"hidden")
            .field("roots", &self.roots.len())
            .finish()
    }
}

/// A certificate and a key that do not work together.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// The certificate cannot be read.
    #[error("read the certificate")]
    Certificate(#[from] CertificateError),
    /// The key cannot be read.
    #[error("read the private key")]
    Key(#[source] rustls::pki_types::pem::Error),
    /// Both can be read, but the key does not belong to the certificate.
    #[error("use the key with the certificate")]
    Pair(#[source] rustls::Error),
}

/// Whether a key (PKCS#1, PKCS#8 or SEC1) belongs to a certificate. The names in the certificate are not checked.
pub fn check_pair(chain: &str, key: &str) -> Result<(), PairError> {
    let chain = certificates(chain)?;
    if chain.is_empty() {
        return Err(CertificateError::Empty.into());
    }
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(PairError::Key)?;
    CertifiedKey::from_der(chain, key, &provider::provider())
        .map(drop)
        .map_err(PairError::Pair)
}

/// Concatenated PEM blocks.
pub(crate) fn certificates_to_pem<D: AsRef<[u8]>>(certificates: &[D]) -> String {
    certificates
        .iter()
        .map(|der| encode("CERTIFICATE", der.as_ref()))
        .collect()
}

pub(crate) fn encode(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n");
    // 48 bytes make a line of 64 characters.
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let mut bytes = [0; 3];
            bytes[..group.len()].copy_from_slice(group);
            let bits = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
            for place in 0..4 {
                let index = (bits >> (18 - 6 * place)) & 63;
                let letter = ALPHABET.get(index as usize).copied().unwrap_or(b'=');
                text.push(if place > group.len() {
                    '='
                } else {
                    char::from(letter)
                });
            }
        }
        text.push('\n');
    }
    text.push_str("-----END ");
    text.push_str(label);
    text.push_str("-----\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, Credentials, PrivateKey, Roots, SpiffeId};
    use std::time::{Duration, SystemTime};

    #[test]
    fn credentials_come_out_as_they_went_in() {
        let now = SystemTime::now();
        let authority = Authority::generate("t", now, Duration::from_hours(10)).unwrap();
        let id = SpiffeId::of_service_account("td", "shop", "web").unwrap();
        let key = PrivateKey::generate().unwrap();
        let issued = authority
            .issue(&key.request(&id).unwrap(), &id, Duration::from_hours(1), now)
            .unwrap();
        let chain = crate::Chain::from_pem(&issued.leaf).unwrap();
        let roots = Roots::from_pem(&authority.roots()).unwrap();
        let pem = Credentials::new(&key, chain, roots.clone(), &id, now)
            .unwrap()
            .to_pem();
        check_pair(&pem.chain, &pem.key).unwrap();
        assert_eq!(Roots::from_pem(&pem.roots).unwrap(), roots);
        assert_eq!(
            certificates(&pem.chain).unwrap(),
            certificates(&issued.leaf).unwrap()
        );
        let other = PrivateKey::generate().unwrap().to_pem();
        assert!(matches!(check_pair(&pem.chain, &other), Err(PairError::Pair(_))));
        assert!(matches!(check_pair("", &other), Err(PairError::Certificate(_))));
        assert!(matches!(check_pair(&pem.chain, "x"), Err(PairError::Key(_))));
        assert!(
            !format!("{pem:?}").contains("PRIVATE"),
            "the key is never printed"
        );
    }

    #[test]
    fn every_length_is_padded_as_base64_asks() {
        for (bytes, expected) in [
            (&b"M"[..], "TQ=="),
            (b"Ma", "TWE="),
            (b"Man", "TWFu"),
            (b"Many", "TWFueQ=="),
            (&[0xff, 0xfe, 0xfd], "//79"),
        ] {
            let text = encode("X", bytes);
            assert_eq!(text, format!("-----BEGIN X-----\n{expected}\n-----END X-----\n"));
        }
    }
}
