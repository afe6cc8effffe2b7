//! The life of a sidecar with the built-in proxy.
//!
//! 1. Sockets are opened; readiness answers from here on, with what is missing.
//! 2. Certificate and discovery are asked for at the same time.
//! 3. When both are there connections are taken. Those that came before wait in the sockets: taken without knowledge
//!    of the mesh they would go out unprotected.
//! 4. When the stop is asked for, readiness fails at once, what comes from outside is drained, the application may
//!    still call others, and the end comes when nothing is open or time is over.

use crate::children::Children;
use crate::http;
use crate::log::{Log, chain};
use crate::readiness::{Readiness, Stage};
use crate::settings::Settings;
use crate::sockets::{self, ListenError};
use crate::{dial, status};
use remora_mtls::Identity;
use remora_proxy::join::{Membership, Notice};
use remora_proxy::mesh::Mesh;
use remora_proxy::metrics::Metrics;
use remora_proxy::{Context, Limits, Listeners, serve};
use remora_xds::client::Event;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The sidecar cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No threads or no timers.
    #[error("start the runtime")]
    Runtime(#[source] io::Error),
    /// No signals.
    #[error("listen for signals")]
    Signals(#[source] io::Error),
    /// A port is taken.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The address of the control plane makes no sense.
    #[error("prepare for {host}")]
    Upstream {
        /// Which.
        host: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl RunError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Listen(error) => error.hint(),
            _ => None,
        }
    }
}

/// Runs a sidecar until it is asked to stop.
pub fn run(settings: &Settings, log: &Log) -> Result<(), RunError> {
    let mut builder = if settings.workers == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(settings.workers);
        builder
    };
    let runtime = builder.enable_all().build().map_err(RunError::Runtime)?;
    let result = runtime.block_on(live(settings, log));
    // What still runs (a name being looked up) must not keep the pod.
    runtime.shutdown_background();
    result
}

async fn live(settings: &Settings, log: &Log) -> Result<(), RunError> {
    // Before anything else, so that a signal during the start is not lost.
    let mut signals = Signals::new().map_err(RunError::Signals)?;
    let _children = Children::adopt().map_err(RunError::Signals)?;
    let readiness = Readiness::default();
    let open = Sockets::open(settings)?;
    readiness.reach(Stage::Sockets);
    let asked = readiness.clone();
    tokio::spawn(http::serve(open.readiness, move |request, _| {
        status::readiness_port(request, asked.clone())
    }));
    let sidecar = Sidecar::new(settings, readiness.clone(), log.clone())?;
    let identity = tokio::select! {
        identity = sidecar.prepared() => identity,
        () = signals.stop() => return Ok(()),
    };
    let (ctx, proxy) = sidecar.proxy(identity, open.proxy, settings, async move {
        signals.stop().await;
        readiness.stop();
    });
    tokio::select! {
        () = proxy => {}
        () = sidecar.stay_certified(ctx.identity()) => {}
    }
    log.note("stopped");
    Ok(())
}

/// Asks of the kubelet, and of people.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// All that is listened on.
struct Sockets {
    proxy: Listeners,
    readiness: Vec<TcpListener>,
}

impl Sockets {
    fn open(settings: &Settings) -> Result<Self, ListenError> {
        let ports = settings.ports;
        Ok(Self {
            readiness: sockets::everywhere(ports.readiness)?,
            proxy: Listeners {
                outbound: sockets::everywhere(ports.outbound)?,
                inbound: sockets::everywhere(ports.inbound)?,
                hbone: sockets::everywhere(ports.hbone)?,
            },
        })
    }
}

struct Sidecar {
    readiness: Readiness,
    log: Log,
    mesh: Arc<Mesh>,
    /// Certificates come from here.
    authority: Membership,
    metrics: Arc<Metrics>,
}

impl Sidecar {
    /// Discovery is followed from here on.
    fn new(settings: &Settings, readiness: Readiness, log: Log) -> Result<Self, RunError> {
        let membership = |upstream: &crate::settings::Upstream| {
            let control_plane =
                dial::control_plane(upstream, &settings.token).map_err(|source| RunError::Upstream {
                    host: upstream.server.host.clone(),
                    source,
                })?;
            Ok::<_, RunError>(Membership {
                control_plane,
                id: settings.id.clone(),
                domains: settings.domains.clone(),
                life: settings.certificate_life,
                node: settings.node.id.clone(),
            })
        };
        let mesh = Arc::new(Mesh::default());
        let discovery = membership(&settings.discovery)?;
        let (followed, heard) = (Arc::clone(&mesh), (readiness.clone(), log.clone()));
        tokio::spawn(async move {
            let (readiness, log) = heard;
            let mut notice = |notice| hear(&notice, &readiness, &log);
            discovery.follow(&followed, &mut notice).await;
        });
        Ok(Self {
            authority: membership(&settings.authority)?,
            readiness,
            log,
            mesh,
            metrics: Arc::default(),
        })
    }

    /// Waits until certificate and configuration are there.
    async fn prepared(&self) -> Identity {
        let mut notice = |notice| hear(&notice, &self.readiness, &self.log);
        let identity = self.authority.identity(&mut notice).await;
        self.readiness.reached(Stage::Configuration).await;
        identity
    }

    /// Takes connections from now until `stop`.
    fn proxy(
        &self,
        identity: Identity,
        listeners: Listeners,
        settings: &Settings,
        stop: impl Future<Output = ()>,
    ) -> (Arc<Context>, impl Future<Output = ()>) {
        let (log, metrics) = (self.log.clone(), Arc::clone(&self.metrics));
        let shown = settings.access_log;
        let behaviour = remora_proxy::Settings {
            limits: Limits {
                drain: settings.drain,
                ..Limits::default()
            },
            unknown: settings.unknown,
            ..remora_proxy::Settings::default()
        };
        let ctx = Arc::new(Context::new(
            Arc::new(identity),
            Arc::clone(&self.mesh),
            behaviour,
            move |record| {
                metrics.count(record);
                if shown {
                    log.access(record);
                }
            },
        ));
        self.readiness.reach(Stage::Proxy);
        self.log.note("ready");
        (Arc::clone(&ctx), serve(ctx, listeners, stop))
    }

    async fn stay_certified(&self, identity: &Identity) {
        let mut notice = |notice| hear(&notice, &self.readiness, &self.log);
        self.authority
            .stay_certified(identity, jitter(), &mut notice)
            .await;
    }
}

/// Any number between 0 and 1 will do: pods that start together must not renew together.
fn jitter() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanos = now.map_or(0, |now| now.subsec_nanos()) ^ std::process::id().rotate_left(16);
    f64::from(nanos % 1000) / 1000.0
}

fn hear(notice: &Notice, readiness: &Readiness, log: &Log) {
    match notice {
        Notice::Certified(until) => {
            let left = until.duration_since(SystemTime::now()).unwrap_or_default();
            log.note(format_args!("certified for {} s", left.as_secs()));
            readiness.reach(Stage::Certificate);
        }
        Notice::NotCertified(error) => {
            let why = chain(error);
            log.warning(&why);
            readiness.trouble(Stage::Certificate, why);
        }
        Notice::Discovery(Event::Connected) => {}
        Notice::Discovery(Event::InSync) => {
            log.note("discovery is in sync");
            readiness.reach(Stage::Configuration);
        }
        Notice::Discovery(Event::Refused(list)) => {
            for (name, why) in list {
                log.warning(format_args!(
                    "discovery sent {name}, which is not understood: {why}"
                ));
            }
        }
        Notice::Discovery(Event::Disconnected(error)) => {
            let why = chain(error);
            log.warning(format_args!("discovery: {why}"));
            readiness.trouble(Stage::Configuration, why);
        }
    }
}
