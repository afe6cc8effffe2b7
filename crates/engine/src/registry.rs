//! Images from registries: the pull side of OCI's distribution protocol.
//!
//! [`ensure`] is what a node does before a container starts: look, ask, fetch what is missing, verify, unpack. Digests
//! and sizes are enforced while bytes arrive, downloads are taken up where they broke off, and no wait is without end.
//! Plain HTTP is spoken to this machine itself and to hosts that the operator named for it. Credentials go to the host
//! they belong to, or to the realm that this host names; see `trust`.

mod challenge;
pub mod credentials;
pub(crate) mod fuzz;
mod names;
mod pull;
mod session;
mod trust;

pub use credentials::Credentials;
pub use pull::{Event, Progress, ensure};

use bytes::Bytes;
use http_body_util::Full;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as Pool, Error as LegacyError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use names::Names;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use crate::image::manifest::ManifestError;
use crate::image::reference::{Reference, ReferenceError};
use crate::store::StoreError;

/// How registries are reached.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Hosts (with port) that are spoken to without TLS, besides this machine itself.
    pub insecure: Vec<String>,
    /// For a registry: others to ask first, as `https://host[:port]` or `http://…`.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Certificates to trust besides those of this machine, in PEM.
    pub extra_roots: Option<String>,
}

/// Reaches registries; one for all pulls, so that connections are shared.
#[derive(Debug, Clone)]
pub struct Client {
    pool: Pool<HttpsConnector<HttpConnector<Names>>, Full<Bytes>>,
    settings: Settings,
}

/// Why an image could not be had.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// Not a reference.
    #[error(transparent)]
    Name(#[from] ReferenceError),
    /// Not in the store, and nobody may be asked.
    #[error("{0} is not in the local store")]
    Absent(Reference),
    /// The connection.
    #[error("ask {url}")]
    Request {
        /// Whom and what.
        url: String,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An answer that says no.
    #[error("{url} answered {status}{}", if message.is_empty() { String::new() } else { format!(": {message}") })]
    Status {
        /// Whom and what.
        url: String,
        /// The number.
        status: u16,
        /// What the registry says about it.
        message: String,
    },
    /// An answer that makes no sense.
    #[error("{url} {why}")]
    Protocol {
        /// Whom and what.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The manifest.
    #[error("manifest of {reference}")]
    Manifest {
        /// Of which image.
        reference: Reference,
        /// What is wrong.
        #[source]
        source: ManifestError,
    },
    /// Verification, unpacking, or the disk.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Credentials could not be had.
    #[error(transparent)]
    Credentials(#[from] credentials::CredentialsError),
}

impl PullError {
    /// The word Kubernetes has for it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Name(_) => "InvalidImageName",
            Self::Absent(_) => "ErrImageNeverPull",
            _ => "ErrImagePull",
        }
    }

    /// What a person can do about it, if anything.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Absent(_) => Some("import it, or let imagePullPolicy allow a pull"),
            Self::Status {
                status: 401 | 403, ..
            } => Some(
                "the registry wants credentials, or the image does not exist: docker login, or imagePullSecrets",
            ),
            Self::Status { status: 404, .. } => Some("check the name and the tag"),
            Self::Status { status: 429, .. } => Some("the registry's limit is used up; log in or wait"),
            Self::Store(error) => error.hint(),
            Self::Request { .. } => Some("check the registry's name and that this machine reaches it"),
            _ => None,
        }
    }

    /// Whether asking again may help.
    fn is_passing(&self) -> bool {
        match self {
            // Who is not there now will hardly be in a second; whoever starts the container tries again later.
            Self::Request { source, .. } => !source.downcast_ref().is_some_and(LegacyError::is_connect),
            Self::Status { status, .. } => *status >= 500 || *status == 429,
            _ => false,
        }
    }
}

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a connection that nobody uses is kept.
const IDLE: Duration = Duration::from_secs(30);

/// A client could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A certificate cannot be read.
    #[error("read the certificates to trust")]
    Roots(#[source] std::io::Error),
    /// The TLS library refused.
    #[error("set up TLS")]
    Tls(#[from] rustls::Error),
}

/// The certificates of this machine, read once. A machine without any can still use registries without TLS.
fn native_roots() -> &'static rustls::RootCertStore {
    static ROOTS: OnceLock<rustls::RootCertStore> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    })
}

impl Client {
    /// Reads the certificates of this machine and makes a client.
    pub fn new(settings: Settings) -> Result<Self, ClientError> {
        let mut roots = native_roots().clone();
        if let Some(pem) = &settings.extra_roots {
            use rustls::pki_types::pem::PemObject as _;
            for certificate in rustls::pki_types::CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let certificate =
                    certificate.map_err(|e| ClientError::Roots(std::io::Error::other(e.to_string())))?;
                roots.add(certificate)?;
            }
        }
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let tls = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut connector = HttpConnector::new_with_resolver(Names);
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_nodelay(true);
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let pool = Pool::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self { pool, settings })
    }

    /// Where to ask for the images of a registry, in order: `https://host`.
    fn endpoints(&self, registry: &str) -> Vec<String> {
        let mut all = self.settings.mirrors.get(registry).cloned().unwrap_or_default();
        let host = if registry == "docker.io" {
            "registry-1.docker.io"
        } else {
            registry
        };
        let scheme = if self.plain().allows(host) {
            "http"
        } else {
            "https"
        };
        all.push(format!("{scheme}://{host}"));
        all
    }

    /// Where plain HTTP is allowed.
    fn plain(&self) -> trust::Plain<'_> {
        trust::Plain {
            insecure: &self.settings.insecure,
        }
    }
}
