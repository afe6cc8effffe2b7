//! A running control plane.

use crate::certificates::Certificates;
use crate::chain::Chain;
use crate::config::Config;
use crate::files::{self, Described, LoadError};
use crate::kubernetes::Report;
use crate::mesh::{self, Document, MeshError};
use crate::token::{Authenticator, FileTokens, TokensError, caller};
use crate::{root_files, tls};
use remora_http::{Connection, TlsConfig};
use remora_mtls::{
    Authority, AuthorityError, AuthorityState, BootstrapError, InvalidSpiffeId, KeyError, PrivateKey,
    SpiffeId, TrustDomains, bootstrap_server,
};
use remora_xds::delta::View;
use remora_xds::proto::certificate::istio_certificate_service_server::IstioCertificateServiceServer;
use remora_xds::server::{Admission, Discovery, Snapshots};
use rustls::ServerConfig;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Status};

const SERVER_CERTIFICATE_LIFE: Duration = Duration::from_hours(24);
/// Requests and streams of one connection. A proxy has one stream, and asks for certificates.
const STREAMS_PER_CONNECTION: u32 = 16;
/// A client whose network is gone is noticed within these two.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
const HEADER_BYTES: u32 = 32 << 10;

/// What a control plane is, wherever its mesh comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The trust domain of the mesh.
    pub trust_domain: String,
    /// Names under which the control plane is reached, for its own certificate.
    pub server_names: Vec<String>,
    /// Life of a certificate for which nothing else was asked.
    pub certificate_life: Duration,
    /// The longest that may be asked for.
    pub longest_certificate_life: Duration,
}

/// Files that are looked at again and again.
struct Sources {
    mesh: Vec<PathBuf>,
    trust_domains: TrustDomains,
    tokens: Arc<FileTokens>,
    reload: Duration,
}

/// Discovery and certificates for a mesh.
pub struct Plane {
    settings: Settings,
    authority: Arc<RwLock<Authority>>,
    authenticator: Arc<dyn Authenticator>,
    files: Option<Sources>,
    node_proxies: Vec<String>,
    snapshots: watch::Sender<Arc<Snapshots>>,
    server_config: TlsConfig,
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
    /// A policy of the files is not enforced as written.
    Policy(Report),
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
            Self::Kept(error) => write!(f, "keeping what was served before: {}", Chain(error)),
            Self::Policy(report) => report.fmt(f),
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
    /// The name of the trust domain, or of one of its aliases.
    #[error("use the trust domain")]
    TrustDomain(#[from] InvalidSpiffeId),
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
    /// A control plane of a mesh that is still to be published.
    pub fn new(
        mut authority: Authority,
        authenticator: Arc<dyn Authenticator>,
        settings: Settings,
        notice: impl Fn(&Notice) + Send + Sync + 'static,
    ) -> Result<Self, PlaneError> {
        authority.limit_lifetime(settings.longest_certificate_life);
        let server_config = server_config(&authority, &settings)?;
        Ok(Self {
            authority: Arc::new(RwLock::new(authority)),
            authenticator,
            files: None,
            // istio: the account that may speak for all workloads of its node unless others are named.
            node_proxies: vec!["istio-system/ztunnel".to_owned()],
            snapshots: watch::channel(Arc::new(Snapshots::new())).0,
            server_config: Arc::new(RwLock::new(Arc::new(server_config))),
            notice: Arc::new(notice),
            settings,
        })
    }

    /// A control plane of a mesh that files describe. Makes a root certificate if there is none.
    pub fn open(
        config: Config,
        notice: impl Fn(&Notice) + Send + Sync + 'static,
    ) -> Result<Self, PlaneError> {
        let authority = root_files::open(&config.authority, SystemTime::now())?;
        let tokens = Arc::new(FileTokens::open(&config.tokens, &config.trust_domain)?);
        let trust_domains = TrustDomains::new(&config.trust_domain, &config.trust_domain_aliases)?;
        let described = files::mesh(&config.mesh, &trust_domains)?;
        let settings = Settings {
            trust_domain: config.trust_domain,
            server_names: config.server_names,
            certificate_life: config.certificate_life,
            longest_certificate_life: config.longest_certificate_life,
        };
        let authenticator = Arc::clone(&tokens) as Arc<dyn Authenticator>;
        let mut plane = Self::new(authority, authenticator, settings, notice)?;
        if let Some(accounts) = config.node_proxies {
            plane.node_proxies(accounts);
        }
        plane.files = Some(Sources {
            mesh: config.mesh,
            trust_domains,
            tokens,
            reload: config.reload,
        });
        plane.publish_described(&described)?;
        Ok(plane)
    }

    /// Accounts, `NAMESPACE/ACCOUNT`, whose proxies serve many namespaces: they are told everything, and may ask for
    /// certificates of workloads on their own node. Others are told what is public, and what is private to their own
    /// namespace.
    pub fn node_proxies(&mut self, accounts: Vec<String>) {
        self.node_proxies = accounts;
    }

    /// Serves another mesh from now on. Proxies are sent what differs.
    pub fn publish(&self, documents: &[Document]) -> Result<(), PlaneError> {
        let next = mesh::encode(documents, &self.settings.trust_domain)?;
        self.replace(next);
        Ok(())
    }

    /// Serves the same mesh with some documents added, exchanged or, where there is `None`, taken away. What cannot
    /// be expressed changes nothing and is given back.
    pub fn amend(
        &self,
        changes: impl IntoIterator<Item = (mesh::Name, Option<Document>)>,
    ) -> Vec<(mesh::Name, MeshError)> {
        let now = Arc::clone(&self.snapshots.borrow());
        let (next, refused) = mesh::amend(&now, changes, &self.settings.trust_domain);
        self.replace(next);
        refused
    }

    fn replace(&self, next: Snapshots) {
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
    }

    /// The configuration for TLS servers of the control plane, always with its newest certificate.
    pub fn server_config(&self) -> Arc<RwLock<Arc<ServerConfig>>> {
        Arc::clone(&self.server_config)
    }

    /// The root certificates, for whoever must trust the control plane.
    pub fn roots(&self) -> String {
        let authority = self.authority.read().unwrap_or_else(PoisonError::into_inner);
        authority.roots()
    }

    /// The authority as it would be kept.
    pub fn kept(&self) -> AuthorityState {
        let authority = self.authority.read().unwrap_or_else(PoisonError::into_inner);
        authority.state()
    }

    /// Works on the authority, to exchange its root for instance. The certificate of the control plane itself is
    /// issued anew afterwards.
    pub fn with_authority<T>(&self, work: impl FnOnce(&mut Authority) -> T) -> Result<T, PlaneError> {
        let mut authority = self.authority.write().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut authority);
        let renewed = server_config(&authority, &self.settings)?;
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
            .http2_keepalive_interval(Some(PING_INTERVAL))
            .http2_keepalive_timeout(Some(PING_TIMEOUT))
            .http2_max_header_list_size(HEADER_BYTES)
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .add_service(self.discovery().into_service())
            .add_service(IstioCertificateServiceServer::new(Certificates {
                authority: Arc::clone(&self.authority),
                authenticator: Arc::clone(&self.authenticator),
                usual_life: self.settings.certificate_life,
                node_proxies: self.node_proxies.clone(),
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
        let notice = Arc::clone(&self.notice);
        Discovery::new(
            self.snapshots.subscribe(),
            Arc::new(ByToken {
                authenticator: Arc::clone(&self.authenticator),
                node_proxies: self.node_proxies.clone(),
            }),
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
        let Some(files) = &self.files else {
            return std::future::pending().await;
        };
        let mut said = String::new();
        let mut seen = None;
        let mut ticks = tokio::time::interval(files.reload);
        loop {
            ticks.tick().await;
            // Taken before they are read: what is written meanwhile is looked at next time.
            let now = files::fingerprint(&files.mesh);
            if now.is_some() && now == seen && files.tokens.is_unchanged() {
                continue;
            }
            seen = now;
            match self.reload(files) {
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

    fn reload(&self, files: &Sources) -> Result<(), PlaneError> {
        files.tokens.reload()?;
        self.publish_described(&files::mesh(&files.mesh, &files.trust_domains)?)
    }

    fn publish_described(&self, described: &Described) -> Result<(), PlaneError> {
        self.publish(&described.documents)?;
        for report in described
            .reports
            .iter()
            .filter(|report| !report.problems.is_empty())
        {
            (self.notice)(&Notice::Policy(report.clone()));
        }
        Ok(())
    }

    /// Issues the certificate of the control plane itself anew, in time.
    async fn renew(&self) {
        loop {
            tokio::time::sleep(server_life(&self.settings) / 2).await;
            if let Err(error) = self.with_authority(|_| ()) {
                (self.notice)(&Notice::Kept(error));
            }
        }
    }

    fn tell(&self) {
        let now = self.snapshots.borrow();
        let count = |url| now.get(url).map_or(0, remora_xds::delta::Snapshot::len);
        (self.notice)(&Notice::Mesh {
            addresses: count(remora_xds::types::ADDRESS),
            policies: count(remora_xds::types::AUTHORIZATION),
        });
    }
}

/// Lets in whoever shows a token.
struct ByToken {
    authenticator: Arc<dyn Authenticator>,
    node_proxies: Vec<String>,
}

#[tonic::async_trait]
impl Admission for ByToken {
    async fn admit(&self, metadata: &MetadataMap) -> Result<String, Status> {
        Ok(caller(&*self.authenticator, metadata, None).await?.to_string())
    }

    async fn admit_over(&self, metadata: &MetadataMap, connection: &Extensions) -> Result<String, Status> {
        let connection = connection.get::<Connection>();
        Ok(caller(&*self.authenticator, metadata, connection)
            .await?
            .to_string())
    }

    /// By the token, whatever the caller says of itself.
    fn view(&self, caller: &str) -> View {
        let id = caller.parse::<SpiffeId>().ok();
        let account = id.as_ref().and_then(SpiffeId::service_account);
        let (namespace, account) = account.unwrap_or_default();
        if self.node_proxies.contains(&format!("{namespace}/{account}")) {
            return View::Everything;
        }
        View::Namespace(namespace.to_owned())
    }
}

fn server_config(authority: &Authority, settings: &Settings) -> Result<ServerConfig, PlaneError> {
    let key = PrivateKey::generate()?;
    let issued = authority.issue_server(
        &key,
        &settings.server_names,
        server_life(settings),
        SystemTime::now(),
    )?;
    Ok(bootstrap_server(&issued.leaf, &key)?)
}

/// The control plane's own certificate keeps the limit it sets for others.
fn server_life(settings: &Settings) -> Duration {
    SERVER_CERTIFICATE_LIFE.min(settings.longest_certificate_life)
}
