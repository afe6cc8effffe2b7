//! The agent's services for Envoy: SDS and xDS over unix sockets.

use super::names::Names;
use super::{EnvoyError, EnvoySettings};
use crate::certificates::{self, Certificates};
use crate::log::{Log, chain};
use crate::metrics::AgentMetrics;
use crate::readiness::{Readiness, Stage};
use crate::sds::{self, Secrets};
use crate::sidecar::{Sidecar, jitter};
use crate::xds_proxy::{Event, Health, LastGood, Own, XdsProxy};
use prost::Message;
use remora_mtls::Roots;
use remora_proxy::join::Notice;
use remora_xds::client::ControlPlane;
use remora_xds::types::{CLUSTER, LISTENER, NAME_TABLE, PROXY_CONFIG};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// A unix socket for all processes of the pod. A stale socket file of a dead process is removed.
// istio: mode 0666, because Envoy and applications may be other users.
fn listen(path: &Path) -> Result<UnixListener, EnvoyError> {
    let open = || {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        Ok(listener)
    };
    open().map_err(|source| EnvoyError::Socket {
        path: path.to_owned(),
        source,
    })
}

/// Whether another process (SPIRE, for example) already serves secrets on the socket.
async fn is_answered(path: &Path) -> bool {
    let connect = tokio::time::timeout(Duration::from_secs(1), UnixStream::connect(path));
    matches!(connect.await, Ok(Ok(_)))
}

/// Starts to serve secrets; `false` if another process does.
pub(super) async fn secrets(
    envoy: &EnvoySettings,
    secrets: &Secrets,
    readiness: &Readiness,
    log: &Log,
) -> Result<bool, EnvoyError> {
    let path = Path::new(&envoy.description.sds_socket);
    if is_answered(path).await {
        log.note(format_args!("{} is answered by another program", path.display()));
        readiness.reach(Stage::Certificate);
        return Ok(false);
    }
    let listener = listen(path)?;
    let (served, said, failed) = (secrets.clone(), log.clone(), log.clone());
    let tell = move |notice: &sds::Notice| match notice {
        sds::Notice::Sent { name } => said.note(format_args!("secret {name} is sent")),
        sds::Notice::Refused { why } => said.warning(format_args!("a secret was refused: {why}")),
        sds::Notice::Kept { name, why } => {
            said.warning(format_args!("secret {name} stays as it was: {why}"));
        }
    };
    tokio::spawn(async move {
        let serving = sds::serve(listener, served, Arc::new(tell), std::future::pending());
        if let Err(error) = serving.await {
            failed.warning(format_args!("secrets are no longer served: {}", chain(&error)));
        }
    });
    Ok(true)
}

/// Obtains a certificate, passes it to Envoy and writes the configured files, and renews it.
pub(super) fn certify(
    certificates: Certificates,
    secrets: Secrets,
    sidecar: &Sidecar,
    output: Option<PathBuf>,
    log: Log,
) {
    let (mut first, mut later) = (sidecar.ear(), sidecar.ear());
    tokio::spawn(async move {
        let identity = certificates.identity(&mut first).await;
        let hand_out = || {
            secrets.install(identity.credentials().to_pem());
            if let Some(directory) = &output {
                certificates::publish(directory, &identity, &log);
            }
        };
        hand_out();
        let mut hear = |notice: Notice| {
            if matches!(notice, Notice::Certified(_)) {
                hand_out();
            }
            later(notice);
        };
        certificates.renew_forever(&identity, jitter(), &mut hear).await;
    });
}

/// The agent's own use of discovery.
pub(super) struct Interests {
    /// DNS of the pod, if it is captured.
    pub(super) names: Option<Names>,
    /// Trusts additional roots from the control plane, if that is enabled.
    pub(super) secrets: Option<Secrets>,
    /// Health of the application.
    pub(super) health: watch::Receiver<Option<Health>>,
    /// Configuration that Envoy may start with while the control plane is unavailable.
    pub(super) last_good: Option<LastGood>,
}

/// Starts to proxy discovery.
pub(super) fn discovery(
    control_plane: ControlPlane,
    envoy: &EnvoySettings,
    sidecar: &Sidecar,
    interests: Interests,
    log: &Log,
) -> Result<(), EnvoyError> {
    let listener = listen(Path::new(&envoy.description.xds_socket))?;
    let needed = CLUSTERS | LISTENERS | if interests.names.is_some() { NAMES } else { 0 };
    let observer = Arc::new(DiscoveryObserver {
        needed,
        seen: AtomicU8::new(0),
        readiness: sidecar.readiness.clone(),
        metrics: Arc::clone(&sidecar.metrics),
        log: log.clone(),
    });
    let mut own = Vec::new();
    if let Some(names) = interests.names {
        let observer = Arc::clone(&observer);
        own.push(Own {
            type_url: NAME_TABLE.to_owned(),
            apply: Arc::new(move |bytes| {
                names.apply(bytes)?;
                observer.mark_seen(NAMES);
                Ok(())
            }),
        });
    }
    if let Some(secrets) = interests.secrets {
        own.push(Own {
            type_url: PROXY_CONFIG.to_owned(),
            apply: Arc::new(move |bytes| believe(bytes, &secrets)),
        });
    }
    let proxy = XdsProxy {
        control_plane,
        own,
        health: interests.health,
        last_good: interests.last_good,
        tell: Arc::new(move |event| observer.on_event(&event)),
    };
    let failed = log.clone();
    tokio::spawn(async move {
        if let Err(error) = proxy.serve(listener, std::future::pending()).await {
            failed.warning(format_args!("discovery is no longer served: {}", chain(&error)));
        }
    });
    Ok(())
}

/// The part of a `ProxyConfig` that changes while the agent runs.
#[derive(Clone, PartialEq, Message)]
struct ProxyConfig {
    #[prost(string, repeated, tag = "34")]
    roots: Vec<String>,
}

/// Trusts the roots in a configuration, all or none.
fn believe(bytes: &[u8], secrets: &Secrets) -> Result<(), String> {
    let config = ProxyConfig::decode(bytes).map_err(|error| error.to_string())?;
    for root in &config.roots {
        Roots::from_pem(root).map_err(|error| chain(&error))?;
    }
    secrets.believe(config.roots.join("\n"));
    Ok(())
}

const CLUSTERS: u8 = 1;
const LISTENERS: u8 = 2;
const NAMES: u8 = 4;

/// Updates readiness, metrics and log from the events of Envoy's stream.
struct DiscoveryObserver {
    /// Bits of the types that readiness requires.
    needed: u8,
    /// Bits of the types that Envoy accepted so far.
    seen: AtomicU8,
    readiness: Readiness,
    metrics: Arc<AgentMetrics>,
    log: Log,
}

impl DiscoveryObserver {
    fn mark_seen(&self, what: u8) {
        if self.seen.fetch_or(what, Ordering::Relaxed) | what == self.needed {
            self.readiness.reach(Stage::Configuration);
        }
    }

    fn on_event(&self, event: &Event) {
        let trouble = |text: String| {
            self.log.warning(&text);
            self.readiness.trouble(Stage::Configuration, text);
        };
        match event {
            Event::Accepted { type_url } => match type_url.as_str() {
                CLUSTER => self.mark_seen(CLUSTERS),
                LISTENER => self.mark_seen(LISTENERS),
                _ => {}
            },
            Event::Refused { type_url, why } => trouble(format!("Envoy refused {type_url}: {why}")),
            Event::Disconnected(error) => {
                self.metrics.discovery_failures.count();
                trouble(format!("discovery: {}", chain(error)));
            }
            Event::NotUnderstood { type_url, why } => self.log.warning(format_args!(
                "discovery sent {type_url}, which is not understood: {why}"
            )),
            Event::Connected => self.log.note("discovery is connected"),
            Event::Opened(_) | Event::Closed => {}
        }
    }
}
