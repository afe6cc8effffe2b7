//! What Envoy talks to: secrets and discovery, over unix sockets.

use super::{EnvoyError, EnvoySettings};
use crate::certificates::{self, Certificates};
use crate::log::{Log, chain};
use crate::metrics::AgentMetrics;
use crate::readiness::{Readiness, Stage};
use crate::sds::{self, Secrets};
use crate::sidecar::{Sidecar, jitter};
use crate::xds_proxy::{Event, XdsProxy};
use remora_proxy::join::Notice;
use remora_xds::client::ControlPlane;
use remora_xds::types::{CLUSTER, LISTENER};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tonic::metadata::{MetadataKey, MetadataMap};

/// A unix socket for everybody in the pod. What a dead process left behind is taken away.
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

/// Somebody else (SPIRE, for instance) answers for secrets already.
async fn is_answered(path: &Path) -> bool {
    let connect = tokio::time::timeout(Duration::from_secs(1), UnixStream::connect(path));
    matches!(connect.await, Ok(Ok(_)))
}

/// Where certificates are to be put; `None` where somebody else has them.
pub(super) async fn secrets(
    envoy: &EnvoySettings,
    readiness: &Readiness,
    log: &Log,
) -> Result<Option<Secrets>, EnvoyError> {
    let path = Path::new(&envoy.description.sds_socket);
    if is_answered(path).await {
        log.note(format_args!("{} is answered by another program", path.display()));
        readiness.reach(Stage::Certificate);
        return Ok(None);
    }
    let listener = listen(path)?;
    let secrets = Secrets::default();
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
    Ok(Some(secrets))
}

/// Gets a certificate, hands it to Envoy and to whoever wants it as files, and keeps it fresh.
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
        certificates.stay(&identity, jitter(), &mut hear).await;
    });
}

/// Carries discovery from here on.
pub(super) fn discovery(
    control_plane: ControlPlane,
    envoy: &EnvoySettings,
    sidecar: &Sidecar,
    log: &Log,
) -> Result<(), EnvoyError> {
    let listener = listen(Path::new(&envoy.description.xds_socket))?;
    let ear = Ear {
        accepted: AtomicU8::new(0),
        readiness: sidecar.readiness.clone(),
        metrics: Arc::clone(&sidecar.metrics),
        log: log.clone(),
    };
    let (_, health) = tokio::sync::watch::channel(None);
    let proxy = XdsProxy {
        control_plane,
        headers: headers(envoy)?,
        own: Vec::new(),
        health,
        tell: Arc::new(move |event| ear.hear(&event)),
    };
    let failed = log.clone();
    tokio::spawn(async move {
        if let Err(error) = proxy.serve(listener, std::future::pending()).await {
            failed.warning(format_args!("discovery is no longer served: {}", chain(&error)));
        }
    });
    Ok(())
}

fn headers(envoy: &EnvoySettings) -> Result<MetadataMap, EnvoyError> {
    let mut headers = MetadataMap::new();
    for (name, value) in &envoy.headers {
        let wrong = || EnvoyError::Header { name: name.clone() };
        let key = MetadataKey::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        headers.insert(key, value.parse().map_err(|_| wrong())?);
    }
    Ok(headers)
}

/// Makes readiness from what happens on Envoy's stream.
struct Ear {
    /// Bit 0 for clusters, bit 1 for listeners.
    accepted: AtomicU8,
    readiness: Readiness,
    metrics: Arc<AgentMetrics>,
    log: Log,
}

impl Ear {
    fn hear(&self, event: &Event) {
        let trouble = |text: String| {
            self.log.warning(&text);
            self.readiness.trouble(Stage::Configuration, text);
        };
        match event {
            Event::Accepted { type_url } => {
                let bit = match type_url.as_str() {
                    CLUSTER => 1,
                    LISTENER => 2,
                    _ => return,
                };
                if self.accepted.fetch_or(bit, Ordering::Relaxed) | bit == 3 {
                    self.readiness.reach(Stage::Configuration);
                }
            }
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
