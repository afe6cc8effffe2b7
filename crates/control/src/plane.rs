//! A running control plane.

use crate::certificates::Certificates;
use crate::config::Config;
use crate::files::{self, LoadError};
use crate::mesh::{self, Document, MeshError};
use crate::tls;
use crate::token::{Authenticator, FileTokens, TokensError, caller};
use remora_mtls::{Authority, AuthorityError, BootstrapError, KeyError, PrivateKey, bootstrap_server};
use remora_xds::proto::certificate::istio_certificate_service_server::IstioCertificateServiceServer;
use remora_xds::server::{Discovery, Snapshots};
use rustls::ServerConfig;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

/// A root of ours lives this long unless one is brought.
// istio: ten years.
const ROOT_LIFE: Duration = Duration::from_hours(10 * 365 * 24);
const SERVER_CERTIFICATE_LIFE: Duration = Duration::from_hours(24);

/// Discovery and certificates for a mesh.
pub struct Plane {
    config: Config,
    authority: Arc<RwLock<Authority>>,
    tokens: Arc<FileTokens>,
    snapshots: watch::Sender<Arc<Snapshots>>,
    server_config: tls::Current,
    notice: Arc<dyn Fn(&Notice) + Send + Sync>,
}

/// Something worth a line in the log.
#[derive(Debug)]
pub enum Notice {
    /// The mesh changed and is served.
    Mesh {
        /// How many workloads and services.
        addresses: usize,
        /// How many policies.
        policies: usize,
    },
    /// New files cannot be used; the last good ones stay in force.
    Kept(PlaneError),
    /// A proxy refused something.
    Refused {
        /// Which.
        caller: String,
        /// What it said.
        why: String,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mesh { addresses, policies } => {
                write!(
                    f,
                    "serving {addresses} workloads and services, {policies} policies"
                )
            }
            Self::Kept(error) => {
                write!(f, "keeping what was served before: {error}")?;
                let mut cause = std::error::Error::source(error);
                while let Some(error) = cause {
                    write!(f, ": {error}")?;
                    cause = error.source();
                }
                Ok(())
            }
            Self::Refused { caller, why } => write!(f, "{caller} refused: {why:?}"),
        }
    }
}

/// The control plane cannot run.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// The description of the mesh or the configuration.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The description makes no sense.
    #[error("describe the mesh")]
    Mesh(#[from] MeshError),
    /// The tokens.
    #[error("read the tokens")]
    Tokens(#[from] TokensError),
    /// The root certificate.
    #[error("prepare the certificate authority")]
    Authority(#[from] AuthorityError),
    /// The key of the control plane itself.
    #[error("make a key for the control plane")]
    Key(#[from] KeyError),
    /// The certificate of the control plane itself.
    #[error("prepare the certificate of the control plane")]
    Bootstrap(#[from] BootstrapError),
    /// A file of the authority.
    #[error("write {}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The server ended.
    #[error("serve")]
    Serve(#[source] tonic::transport::Error),
}

impl Plane {
    /// Reads everything; makes a root certificate if there is none.
    pub fn open(
        config: Config,
        notice: impl Fn(&Notice) + Send + Sync + 'static,
    ) -> Result<Self, PlaneError> {
        let mut authority = open_authority(&config.authority, SystemTime::now())?;
        authority.limit(config.longest_certificate_life);
        let tokens = FileTokens::open(&config.tokens, &config.trust_domain)?;
        let documents = files::mesh(&config.mesh)?;
        let snapshots = mesh::encode(&documents, &config.trust_domain)?;
        let server_config = server_config(&authority, &config)?;
        let plane = Self {
            authority: Arc::new(RwLock::new(authority)),
            tokens: Arc::new(tokens),
            snapshots: watch::channel(Arc::new(snapshots)).0,
            server_config: Arc::new(RwLock::new(Arc::new(server_config))),
            notice: Arc::new(notice),
            config,
        };
        plane.tell();
        Ok(plane)
    }

    /// The configuration it runs with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Serves another mesh from now on. Proxies are sent what differs.
    pub fn publish(&self, documents: &[Document]) -> Result<(), PlaneError> {
        let next = mesh::encode(documents, &self.config.trust_domain)?;
        let changed = self.snapshots.send_if_modified(|current| {
            let differs = **current != next;
            if differs {
                *current = Arc::new(next);
            }
            differs
        });
        if changed {
            self.tell();
        }
        Ok(())
    }

    /// Works on the authority, to exchange its root for instance. The certificate of the control plane itself is
    /// issued anew afterwards.
    pub fn with_authority<T>(&self, work: impl FnOnce(&mut Authority) -> T) -> Result<T, PlaneError> {
        let mut authority = self.authority.write().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut authority);
        let renewed = server_config(&authority, &self.config)?;
        *self.server_config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(renewed);
        Ok(result)
    }

    /// Serves until `stop` is ready, looking at the files in between.
    pub async fn serve(
        &self,
        listener: TcpListener,
        stop: impl Future<Output = ()>,
    ) -> Result<(), PlaneError> {
        let (ready, connections) = mpsc::channel(16);
        let accepting = tokio::spawn(tls::accept(listener, Arc::clone(&self.server_config), ready));
        let server = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(30)))
            .add_service(self.discovery().into_service())
            .add_service(IstioCertificateServiceServer::new(Certificates {
                authority: Arc::clone(&self.authority),
                authenticator: Arc::clone(&self.tokens) as Arc<dyn Authenticator>,
                usual_life: self.config.certificate_life,
            }))
            .serve_with_incoming(ReceiverStream::new(connections));
        let result = tokio::select! {
            ended = server => ended.map_err(PlaneError::Serve),
            () = self.watch_files() => Ok(()),
            () = self.renew() => Ok(()),
            () = stop => Ok(()),
        };
        accepting.abort();
        result
    }

    fn discovery(&self) -> Discovery {
        let tokens = Arc::clone(&self.tokens);
        let notice = Arc::clone(&self.notice);
        Discovery::new(
            self.snapshots.subscribe(),
            Arc::new(move |metadata| caller(&*tokens, metadata).map(|id| id.to_string())),
            Arc::new(move |caller, why| {
                notice(&Notice::Refused {
                    caller: caller.to_owned(),
                    why: why.to_owned(),
                });
            }),
        )
    }

    /// Looks at the files again and again. The same mistake is said once.
    async fn watch_files(&self) {
        let mut said = String::new();
        let mut ticks = tokio::time::interval(self.config.reload);
        loop {
            ticks.tick().await;
            match self.reload() {
                Ok(()) => said.clear(),
                Err(error) => {
                    let notice = Notice::Kept(error);
                    let text = notice.to_string();
                    if text != said {
                        (self.notice)(&notice);
                        said = text;
                    }
                }
            }
        }
    }

    fn reload(&self) -> Result<(), PlaneError> {
        self.tokens.reload()?;
        self.publish(&files::mesh(&self.config.mesh)?)
    }

    /// Issues the certificate of the control plane itself anew, in time.
    async fn renew(&self) {
        loop {
            tokio::time::sleep(server_life(&self.config) / 2).await;
            if let Err(error) = self.with_authority(|_| ()) {
                (self.notice)(&Notice::Kept(error));
            }
        }
    }

    fn tell(&self) {
        let now = self.snapshots.borrow();
        let count = |url| now.get(url).map_or(0, |s| s.resources().len());
        (self.notice)(&Notice::Mesh {
            addresses: count(remora_xds::types::ADDRESS),
            policies: count(remora_xds::types::AUTHORIZATION),
        });
    }
}

fn server_config(authority: &Authority, config: &Config) -> Result<ServerConfig, PlaneError> {
    let key = PrivateKey::generate()?;
    let issued =
        authority.issue_server(&key, &config.server_names, server_life(config), SystemTime::now())?;
    Ok(bootstrap_server(&issued.leaf, &key)?)
}

/// The control plane's own certificate keeps the limit it sets for others.
fn server_life(config: &Config) -> Duration {
    SERVER_CERTIFICATE_LIFE.min(config.longest_certificate_life)
}

/// `root-cert.pem` and `root-key.pem` in a directory.
fn open_authority(directory: &Path, now: SystemTime) -> Result<Authority, PlaneError> {
    let (certificate, key) = (directory.join("root-cert.pem"), directory.join("root-key.pem"));
    if certificate.exists() || key.exists() {
        return Ok(Authority::from_pem(
            &files::read(&certificate)?,
            &files::read(&key)?,
        )?);
    }
    let authority = Authority::generate("remora", now, ROOT_LIFE)?;
    let (certificate_pem, key_pem) = authority.to_pem();
    std::fs::create_dir_all(directory).map_err(|source| PlaneError::Write {
        path: directory.to_owned(),
        source,
    })?;
    // The key first: a certificate without its key would be an error at the next start, and is one.
    write(&key, &key_pem, 0o600)?;
    write(&certificate, &certificate_pem, 0o644)?;
    Ok(authority)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), PlaneError> {
    use std::io::Write as _;
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .map_err(|source| PlaneError::Write {
            path: path.to_owned(),
            source,
        })
}
