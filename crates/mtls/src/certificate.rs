//! Certificate chains: a leaf with its intermediates.

use crate::SpiffeId;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// A leaf and its intermediates, leaf first, with the parsed fields of the leaf.
#[derive(Debug, Clone)]
pub struct Chain {
    pub(crate) der: Vec<CertificateDer<'static>>,
    pub(crate) leaf: Leaf,
}

/// The fields of a leaf certificate that are used here.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    pub(crate) id: SpiffeId,
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
}

/// Why a certificate is not a workload certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Not PEM, or PEM of something else.
    #[error("read certificates in PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    /// The PEM text holds no certificate.
    #[error("no certificate given")]
    Empty,
    /// Not X.509.
    #[error("read an X.509 certificate")]
    Der(#[source] x509_parser::nom::Err<x509_parser::error::X509Error>),
    /// Bytes after the end of the certificate.
    #[error("{count} bytes follow the certificate")]
    Trailing {
        /// Number of bytes.
        count: usize,
    },
    /// SPIFFE X509-SVID §2: exactly one URI name.
    #[error("a workload's certificate has one URI name, this one {count}")]
    UriNames {
        /// Number of URI names found.
        count: usize,
    },
    /// The URI name is not a SPIFFE id.
    #[error("read the identity in a certificate")]
    Identity(#[from] crate::InvalidSpiffeId),
    /// A date before 1970 or beyond what the system can count.
    #[error("a date in the certificate cannot be represented")]
    Date,
}

impl Chain {
    /// Reads PEM, leaf first.
    pub fn from_pem(pem: &str) -> Result<Self, CertificateError> {
        let der = certificates(pem)?;
        let leaf = Leaf::read(der.first().ok_or(CertificateError::Empty)?)?;
        Ok(Self { der, leaf })
    }

    /// SPIFFE id of the leaf.
    pub fn id(&self) -> &SpiffeId {
        &self.leaf.id
    }

    /// End of the leaf's validity.
    pub fn not_after(&self) -> SystemTime {
        self.leaf.not_after
    }

    /// Start of the leaf's validity.
    pub fn not_before(&self) -> SystemTime {
        self.leaf.not_before
    }

    /// When to request a new certificate: at 49 to 51 % of the lifetime. `jitter` (0.0 to 1.0) selects the point, so
    /// that workloads started together do not all renew at the same moment.
    // istio: pilot-agent renews at half life, give or take one percent.
    pub fn renew_at(&self, jitter: f64) -> SystemTime {
        let life = self
            .leaf
            .not_after
            .duration_since(self.leaf.not_before)
            .unwrap_or_default();
        let share = 0.49 + 0.02 * jitter.clamp(0.0, 1.0);
        self.leaf.not_before + life.mul_f64(share)
    }
}

pub(crate) fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(CertificateError::Pem)
}

impl Leaf {
    pub(crate) fn read(der: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let (rest, certificate) = X509Certificate::from_der(der).map_err(CertificateError::Der)?;
        if !rest.is_empty() {
            return Err(CertificateError::Trailing { count: rest.len() });
        }
        Ok(Self {
            id: spiffe_id(&certificate)?,
            not_before: time(certificate.validity().not_before.timestamp())?,
            not_after: time(certificate.validity().not_after.timestamp())?,
        })
    }

    pub(crate) fn valid_at(&self, now: SystemTime) -> bool {
        self.not_before <= now && now < self.not_after
    }
}

fn spiffe_id(certificate: &X509Certificate<'_>) -> Result<SpiffeId, CertificateError> {
    let names = certificate
        .subject_alternative_name()
        .map_err(|e| CertificateError::Der(x509_parser::nom::Err::Error(e)))?;
    let uris: Vec<&str> = names
        .iter()
        .flat_map(|san| &san.value.general_names)
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        })
        .collect();
    match uris.as_slice() {
        [one] => Ok(one.parse()?),
        _ => Err(CertificateError::UriNames { count: uris.len() }),
    }
}

fn time(seconds: i64) -> Result<SystemTime, CertificateError> {
    let seconds = u64::try_from(seconds).map_err(|_| CertificateError::Date)?;
    UNIX_EPOCH
        .checked_add(Duration::from_secs(seconds))
        .ok_or(CertificateError::Date)
}

#[cfg(test)]
mod tests {
    use super::Leaf;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn a_certificate_is_valid_from_its_first_instant_until_before_its_last() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let leaf = Leaf {
            id: "spiffe://td/ns/shop/sa/cart".parse().unwrap(),
            not_before: at(10),
            not_after: at(20),
        };
        let valid = [9, 10, 19, 20, 21].map(|seconds| leaf.valid_at(at(seconds)));
        assert_eq!(valid, [false, true, true, false, false]);
    }
}
