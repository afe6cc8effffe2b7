//! TLS to the control plane, where a workload has no certificate yet: the client verifies the server by its DNS name
//! and the mesh roots, and authenticates with a token inside the connection.
//!
//! Only here DNS names are verified, and only for the control plane.

use crate::certificate::certificates;
use crate::{CertificateError, PrivateKey, Roots, provider};
use rustls::client::{WantsClientCert, WebPkiServerVerifier};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig};
use std::sync::Arc;

/// A configuration for the control plane could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The certificate cannot be read.
    #[error("read the certificate of the control plane")]
    Certificate(#[from] CertificateError),
    /// The parts do not work together.
    #[error("build a TLS configuration for the control plane")]
    Tls(#[from] rustls::Error),
    /// The roots cannot be used.
    #[error("use the mesh roots for the control plane")]
    Roots(#[from] rustls::client::VerifierBuilderError),
}

/// For the control plane: presents its certificate and requests none from the client. HTTP/2 or HTTP/1.1.
pub fn bootstrap_server(chain_pem: &str, key: &PrivateKey) -> Result<ServerConfig, BootstrapError> {
    let mut config = ServerConfig::builder_with_provider(provider::provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates(chain_pem)?, key.der())?;
    // gRPC needs h2; an API server that calls a webhook may use HTTP/1.1.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// For clients of the control plane: verifies the server by `roots` and its DNS name. HTTP/2.
pub fn bootstrap_client(roots: &Roots) -> Result<ClientConfig, BootstrapError> {
    Ok(http2(trusting(roots)?.with_no_client_auth()))
}

/// The same for a client that already has a certificate to authenticate with.
pub fn bootstrap_client_as(
    roots: &Roots,
    chain_pem: &str,
    key: &PrivateKey,
) -> Result<ClientConfig, BootstrapError> {
    let config = trusting(roots)?.with_client_auth_cert(certificates(chain_pem)?, key.der())?;
    Ok(http2(config))
}

fn trusting(roots: &Roots) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, BootstrapError> {
    let mut store = RootCertStore::empty();
    for root in roots.der() {
        store.add(root.clone())?;
    }
    let provider = provider::provider();
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(&provider)).build()?;
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_webpki_verifier(verifier))
}

fn http2(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}
