//! Verifies a peer: chain to our roots, valid now, one SPIFFE id, of our trust domain, and one of the expected ids.
//!
//! DNS names play no part: the server name of the connection is ignored.

use crate::certificate::{CertificateError, Leaf};
use crate::{Roots, SpiffeId, TrustDomains};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError as TlsError, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    SignatureScheme,
};
use std::sync::Arc;
use std::time::SystemTime;
use webpki::{EndEntityCert, KeyUsage};

/// Why a peer is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The peer sent no certificate.
    #[error("the peer sent no certificate")]
    NoCertificate,
    /// The peer sent something else than a workload certificate.
    #[error("read the peer's certificate")]
    Certificate(#[from] CertificateError),
    /// No chain to our roots, or a broken one.
    #[error("verify the peer's certificate chain")]
    Chain(#[source] webpki::Error),
    /// Not valid yet, or no longer.
    #[error("the peer's certificate is not valid at this time")]
    Expired,
    /// The peer belongs to another trust domain.
    #[error("{id} is not of trust domain {own}")]
    TrustDomain {
        /// SPIFFE id of the peer.
        id: SpiffeId,
        /// Our trust domain.
        own: String,
    },
    /// The peer belongs to our trust domain, but is not one of the expected workloads.
    #[error("expected {expected}, found {found}")]
    Mismatch {
        /// The ids that would have been accepted, as text.
        expected: String,
        /// SPIFFE id of the peer.
        found: SpiffeId,
    },
}

/// The peers that a handshake accepts.
#[derive(Debug)]
pub(crate) enum Expected {
    /// Every workload of our trust domain; authorization policy decides the rest.
    AnyWorkload,
    /// One of these, in canonical form.
    OneOf(Vec<SpiffeId>),
}

#[derive(Debug)]
pub(crate) struct Verifier {
    roots: Arc<Roots>,
    domains: TrustDomains,
    expected: Expected,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub(crate) fn new(
        roots: Arc<Roots>,
        domains: TrustDomains,
        expected: Expected,
        provider: &CryptoProvider,
    ) -> Self {
        Self {
            roots,
            domains,
            expected,
            algorithms: provider.signature_verification_algorithms,
        }
    }

    /// Verifies the chain, then the identity of the leaf. Returns the id in our own trust domain.
    pub(crate) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<SpiffeId, PeerError> {
        EndEntityCert::try_from(leaf)
            .and_then(|entity| {
                entity
                    .verify_for_usage(
                        self.algorithms.all,
                        self.roots.anchors(),
                        intermediates,
                        now,
                        usage,
                        None,
                        None,
                    )
                    .map(drop)
            })
            .map_err(PeerError::Chain)?;
        let found = Leaf::read(leaf)?.id;
        let canonical = canonical(&self.domains, &found)?;
        match &self.expected {
            Expected::OneOf(ids) if !ids.contains(&canonical) => Err(PeerError::Mismatch {
                expected: ids.iter().map(SpiffeId::as_str).collect::<Vec<_>>().join(" or "),
                found,
            }),
            Expected::AnyWorkload | Expected::OneOf(_) => Ok(canonical),
        }
    }
}

pub(crate) fn canonical(domains: &TrustDomains, id: &SpiffeId) -> Result<SpiffeId, PeerError> {
    domains.canonical(id).ok_or_else(|| PeerError::TrustDomain {
        id: id.clone(),
        own: domains.own().to_owned(),
    })
}

/// SPIFFE id of the peer of a finished handshake, mapped to our own trust domain.
///
/// A resumed session brings the certificate of its first handshake and is not verified again by the TLS library:
/// this function checks the dates again, so a session cannot outlive the certificate it was made with.
pub fn peer_identity(
    certificates: Option<&[CertificateDer<'_>]>,
    domains: &TrustDomains,
    now: SystemTime,
) -> Result<SpiffeId, PeerError> {
    let leaf = certificates
        .and_then(<[_]>::first)
        .ok_or(PeerError::NoCertificate)?;
    let leaf = Leaf::read(leaf)?;
    if !leaf.valid_at(now) {
        return Err(PeerError::Expired);
    }
    canonical(domains, &leaf.id)
}

/// Maps to the TLS library's error, which selects the alert; our own error stays in the source chain.
fn tls_error(error: PeerError) -> Error {
    let kind = match &error {
        PeerError::Chain(webpki::Error::CertExpired { .. }) | PeerError::Expired => TlsError::Expired,
        PeerError::Chain(webpki::Error::CertNotValidYet { .. }) => TlsError::NotValidYet,
        PeerError::Chain(webpki::Error::UnknownIssuer) => TlsError::UnknownIssuer,
        _ => TlsError::Other(OtherError(Arc::new(error))),
    };
    Error::InvalidCertificate(kind)
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(end_entity, intermediates, now, KeyUsage::server_auth())
            .map(|_| ServerCertVerified::assertion())
            .map_err(tls_error)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    /// None: root names in the handshake would only disclose the mesh to unauthenticated clients.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(end_entity, intermediates, now, KeyUsage::client_auth())
            .map(|_| ClientCertVerified::assertion())
            .map_err(tls_error)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
