//! TLS configurations for the two protocols spoken between workloads.

use crate::verify::{Expected, Verifier};
use crate::{Clock, Credentials, SpiffeId, TrustDomains, provider};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig, SignatureScheme, SupportedProtocolVersion, version};
use std::sync::Arc;

/// Protocol inside the TLS connection; decides the TLS versions and the ALPN list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AlpnProfile {
    /// HTTP/2 CONNECT tunnels: TLS 1.3 only, ALPN `h2`.
    Hbone,
    /// Bytes as between two Istio sidecars: TLS 1.2 or 1.3. The client offers `istio`, the server selects nothing.
    // istio: BoringSSL goes on when no protocol overlaps; rustls would abort if the server had a list, so it has none.
    Istio,
}

static TLS13_ONLY: [&SupportedProtocolVersion; 1] = [&version::TLS13];
static TLS12_AND_TLS13: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];

impl AlpnProfile {
    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::Hbone => &TLS13_ONLY,
            Self::Istio => &TLS12_AND_TLS13,
        }
    }

    fn offered(self) -> Vec<Vec<u8>> {
        match self {
            Self::Hbone => vec![b"h2".to_vec()],
            Self::Istio => vec![b"istio".to_vec()],
        }
    }

    fn selectable(self) -> Vec<Vec<u8>> {
        match self {
            Self::Hbone => vec![b"h2".to_vec()],
            Self::Istio => Vec::new(),
        }
    }
}

/// A configuration could not be built.
#[derive(Debug, thiserror::Error)]
#[error("build a TLS configuration")]
pub struct ConfigError(#[from] rustls::Error);

/// Resolver that always presents the workload's one certificate, regardless of what the peer requests.
#[derive(Debug)]
struct SingleCertificate(Arc<CertifiedKey>);

impl ResolvesServerCert for SingleCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

impl ResolvesClientCert for SingleCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

pub(crate) fn server(
    credentials: &Credentials,
    domains: &TrustDomains,
    profile: AlpnProfile,
    clock: &Clock,
) -> Result<ServerConfig, ConfigError> {
    let provider = provider::provider();
    let verifier = Verifier::new(
        Arc::clone(&credentials.roots),
        domains.clone(),
        Expected::AnyWorkload,
        &provider,
    );
    let mut config = ServerConfig::builder_with_details(provider, Arc::new(clock.clone()))
        .with_protocol_versions(profile.versions())?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(SingleCertificate(Arc::clone(&credentials.certified))));
    config.alpn_protocols = profile.selectable();
    // Stateless resumption: clients keep encrypted tickets. One ticket suffices for peers that pool connections.
    config.ticketer = Ticketer::new()?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 1;
    Ok(config)
}

pub(crate) fn client(
    credentials: &Credentials,
    domains: &TrustDomains,
    expected: Vec<SpiffeId>,
    profile: AlpnProfile,
    clock: &Clock,
) -> Result<ClientConfig, ConfigError> {
    let provider = provider::provider();
    let verifier = Verifier::new(
        Arc::clone(&credentials.roots),
        domains.clone(),
        Expected::OneOf(expected),
        &provider,
    );
    let mut config = ClientConfig::builder_with_details(provider, Arc::new(clock.clone()))
        .with_protocol_versions(profile.versions())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(SingleCertificate(Arc::clone(&credentials.certified))));
    config.alpn_protocols = profile.offered();
    // A resumed session is not verified again, so sessions are never shared between expectations: this store
    // belongs to one configuration, and a configuration to one set of expected identities and one certificate.
    config.resumption = Resumption::in_memory_sessions(8);
    config.enable_sni = false;
    Ok(config)
}
