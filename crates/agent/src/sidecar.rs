//! The life of a sidecar with the built-in proxy.
//!
//! 1. Sockets are opened; readiness answers from here on, with what is missing.
//! 2. Certificate and discovery are asked for at the same time.
//! 3. When both are there connections are taken. Those that came before wait in the sockets: taken without knowledge
//!    of the mesh they would go out unprotected.
//! 4. When the stop is asked for, readiness fails at once, what comes from outside is drained, the application may
//!    still call others, and the end comes when nothing is open or time is over.

mod join;
mod open;

pub(crate) use join::{jitter, membership};

use crate::certificates::{self, Authority, Certificates, Files};
use crate::children::Children;
use crate::envoy::EnvoyError;
use crate::log::Log;
use crate::metrics::AgentMetrics;
use crate::probes::Prober;
use crate::readiness::{Readiness, Stage};
use crate::scrape::{ProxyMetrics, Scraper};
use crate::settings::{CertificateFiles, Server, Settings};
use crate::snapshot::Keeper;
use crate::sockets::ListenError;
use crate::status::{Desk, Share, Strangers};
use crate::stop::{self, Asked, StopSwitch};
use crate::{access, application};
use join::{Kept, hear};
use open::Sockets;
use remora_mtls::Identity;
use remora_proxy::dns::resolv::Resolv;
use remora_proxy::dns::{self, Dns, DnsError};
use remora_proxy::drain::Phase;
use remora_proxy::join::Notice;
use remora_proxy::mesh::Mesh;
use remora_proxy::metrics::Metrics;
use remora_proxy::{Context, Limits, rest, serve};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Freed memory that waits for the next use: some buffers of a few flows.
const KEPT: usize = 2 << 20;

/// How long the last lines of the access log may take.
const LAST_LINES: Duration = Duration::from_secs(1);

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
    /// Names cannot be served.
    #[error(transparent)]
    Names(#[from] DnsError),
    /// The address of the control plane makes no sense.
    #[error("prepare for {host}")]
    Upstream {
        /// Which.
        host: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An Envoy cannot be run.
    #[error(transparent)]
    Envoy(#[from] EnvoyError),
}

impl RunError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Listen(error) => error.hint(),
            Self::Envoy(error) => error.hint(),
            Self::Names(error) => Some(error.hint()),
            _ => None,
        }
    }
}

/// Runs a sidecar until it is asked to stop.
pub fn run(settings: &Settings, log: &Log) -> Result<(), RunError> {
    // What another allocator does with memory is its own business.
    remora_net::memory::set_trim_threshold(KEPT);
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
    let started = Instant::now();
    // Before anything else: a signal during the start is taken here.
    let switch = StopSwitch::default();
    listen_for_signals(&switch).map_err(RunError::Signals)?;
    let _children = Children::adopt().map_err(RunError::Signals)?;
    let open = Sockets::open(settings)?;
    let readiness = Readiness::default();
    readiness.reach(Stage::Sockets);
    let sidecar = Sidecar::new(readiness, log.clone(), settings);
    let proxy = open.answer(&sidecar.desk(settings, &switch));
    let names = sidecar.names(settings, &proxy.dns)?;
    if let Some(name) = settings.watched.clone() {
        tokio::spawn(application::quit_with(name, switch.clone(), log.clone()));
    }
    let certificates = sidecar.join(settings)?;
    let identity = tokio::select! {
        identity = sidecar.prepared(&certificates) => identity,
        () = switch.reached(Asked::Stop) => {
            sidecar.readiness.stop();
            return Ok(());
        }
    };
    let ctx = sidecar.context(identity, settings, names);
    // Only the stop ends it, not a lack of work.
    let hold = ctx.hold();
    let serving = tokio::spawn(serve(Arc::clone(&ctx), proxy, std::future::pending()));
    sidecar.metrics.ready_after(started.elapsed());
    sidecar.readiness.reach(Stage::Proxy);
    log.note(format_args!("ready after {} ms", started.elapsed().as_millis()));
    tokio::spawn(rest::give_back_when_idle());
    let ports = settings.ports.all();
    tokio::select! {
        () = stop::conduct(&ctx, &switch, &settings.stop, &ports) => {}
        () = sidecar.stay_certified(&certificates, ctx.identity(), settings.output.as_deref()) => {}
        () = sidecar.say_when_stopping(&switch) => {}
        () = stop_when_told(&ctx, &switch) => {}
    }
    drop(hold);
    let _ = serving.await;
    if let Some(lines) = ctx.access_log() {
        lines.flush(LAST_LINES);
    }
    log.note("stopped");
    Ok(())
}

/// Somebody may begin the drain through the admin API: that is a stop as well. Never done.
async fn stop_when_told(ctx: &Context, switch: &StopSwitch) {
    ctx.drain().reached(Phase::Draining).await;
    if switch.asked() == Asked::Nothing {
        switch.ask(Asked::Stop);
    }
    std::future::pending::<()>().await;
}

pub(crate) fn listen_for_signals(switch: &StopSwitch) -> io::Result<()> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let (mut signals, switch) = (signal(kind)?, switch.clone());
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                switch.terminate();
            }
        });
    }
    // One that came before is kept until here.
    remora_net::process::unblock_stop_signals()
}

/// What every kind of sidecar has.
pub(crate) struct Sidecar {
    pub(crate) readiness: Readiness,
    log: Log,
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) metrics: Arc<AgentMetrics>,
    proxy_metrics: Arc<Metrics>,
}

impl Sidecar {
    pub(crate) fn new(readiness: Readiness, log: Log, settings: &Settings) -> Self {
        Self {
            readiness,
            log,
            mesh: Arc::new(Mesh::new(&settings.root_namespace)),
            metrics: Arc::default(),
            proxy_metrics: Arc::default(),
        }
    }

    pub(crate) fn desk(&self, settings: &Settings, switch: &StopSwitch) -> Arc<Desk> {
        Arc::new(Desk {
            readiness: self.readiness.clone(),
            switch: switch.clone(),
            prober: Prober::new(settings.probes.clone(), settings.application),
            kubelet: settings.kubelet.clone(),
            strangers: Strangers::new(self.log.clone()),
            waiting: Share::waiting(),
            scraping: Share::scraping(),
            scraper: Scraper {
                agent: Arc::clone(&self.metrics),
                proxy: match &settings.envoy {
                    Some(envoy) if envoy.disabled || !settings.merge_envoy => ProxyMetrics::None,
                    Some(envoy) => ProxyMetrics::Envoy(envoy.description.ports.prometheus),
                    None => ProxyMetrics::BuiltIn(Arc::clone(&self.proxy_metrics)),
                },
                targets: settings.metrics.clone(),
            },
            private_metrics: settings.private_metrics,
        })
    }

    /// Who answers for names, if they are captured. Questions wait in the sockets until the mesh is known.
    pub(crate) fn names(
        &self,
        settings: &Settings,
        sockets: &dns::Sockets,
    ) -> Result<Option<Arc<Dns>>, RunError> {
        if settings.ports.dns.is_none() {
            return Ok(None);
        }
        let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let resolv = Resolv::parse(&text);
        for server in &resolv.unusable {
            self.log.warning(format_args!(
                "resolv.conf: {server} is no address of a name server"
            ));
        }
        let listening: Vec<SocketAddr> = sockets
            .udp
            .iter()
            .filter_map(|socket| socket.local_addr().ok())
            .collect();
        let behaviour = dns::Settings::new(&settings.namespace, &settings.cluster_domain, resolv);
        Ok(Some(Arc::new(Dns::new(
            behaviour,
            Arc::clone(&self.mesh),
            &listening,
        )?)))
    }

    /// Follows discovery from here on; gives where certificates come from.
    fn join(&self, settings: &Settings) -> Result<Certificates, RunError> {
        let discovery = membership(settings, &settings.discovery)?;
        let (mesh, mut ear) = (Arc::clone(&self.mesh), self.ear());
        match self.keeper(settings, "mesh.snapshot") {
            Some(keeper) => {
                let kept = Kept {
                    keeper,
                    readiness: self.readiness.clone(),
                    metrics: Arc::clone(&self.metrics),
                    log: self.log.clone(),
                };
                tokio::spawn(async move { kept.follow(&discovery, &mesh, &mut ear).await });
            }
            None => {
                tokio::spawn(async move { discovery.follow(&mesh, &mut ear).await });
            }
        }
        self.certificates(settings)
    }

    /// Who keeps the last good configuration, if somebody is to.
    pub(crate) fn keeper(&self, settings: &Settings, name: &str) -> Option<Keeper> {
        let place = settings.last_good.as_ref()?;
        let Server { host, port } = &settings.discovery.server;
        let owner = format!("{} {} by {host}:{port}", settings.node.id, settings.id);
        let metrics = Arc::clone(&self.metrics);
        Some(Keeper::new(place, name, owner, metrics, self.log.clone()))
    }

    /// Where certificates come from.
    pub(crate) fn certificates(&self, settings: &Settings) -> Result<Certificates, RunError> {
        if let Some(paths) = settings.certificate_files.clone() {
            return Ok(Certificates::Files(Box::new(Files {
                paths,
                expected: settings.id.clone(),
                domains: settings.domains.clone(),
                log: self.log.clone(),
            })));
        }
        let membership = membership(settings, &settings.authority)?;
        // Who wants to start without a control plane and has its certificate written can start with that.
        let kept = settings.last_good.as_ref().and(settings.output.as_deref());
        let kept = kept.map(|directory| Files {
            paths: CertificateFiles::below(&directory.to_string_lossy()),
            expected: settings.id.clone(),
            domains: settings.domains.clone(),
            log: self.log.clone(),
        });
        Ok(Certificates::Authority(Box::new(Authority { membership, kept })))
    }

    /// Waits until certificate and configuration are there.
    async fn prepared(&self, certificates: &Certificates) -> Identity {
        let identity = certificates.identity(&mut self.ear()).await;
        self.readiness.reached(Stage::Configuration).await;
        identity
    }

    fn context(&self, identity: Identity, settings: &Settings, names: Option<Arc<Dns>>) -> Arc<Context> {
        let behaviour = remora_proxy::Settings {
            limits: Limits {
                // The end is conducted from outside.
                drain: Duration::from_hours(24 * 365),
                ..Limits::default()
            },
            unknown: settings.unknown,
            metrics: Arc::clone(&self.proxy_metrics),
            dns: names,
            access_log: access::open(&settings.access_log, &self.log),
            profiling: settings.profiling,
            ..remora_proxy::Settings::default()
        };
        Arc::new(Context::new(
            Arc::new(identity),
            Arc::clone(&self.mesh),
            behaviour,
            |_| {},
        ))
    }

    /// Keeps the certificate fresh, and written where others want it. Never done.
    async fn stay_certified(&self, certificates: &Certificates, identity: &Identity, output: Option<&Path>) {
        let publish = || {
            if let Some(directory) = output {
                certificates::publish(directory, identity, &self.log);
            }
        };
        publish();
        let mut ear = self.ear();
        let mut notice = |notice: Notice| {
            let renewed = matches!(notice, Notice::Certified(_));
            ear(notice);
            if renewed {
                publish();
            }
        };
        certificates.renew_forever(identity, jitter(), &mut notice).await;
    }

    /// Readiness fails from the moment the stop is asked for. Never done.
    pub(crate) async fn say_when_stopping(&self, switch: &StopSwitch) {
        switch.reached(Asked::Stop).await;
        self.readiness.stop();
        self.log.note("asked to stop");
        std::future::pending::<()>().await;
    }

    /// Hears what happens on the way.
    pub(crate) fn ear(&self) -> impl FnMut(Notice) + Send + use<> {
        let (readiness, log, metrics) = (
            self.readiness.clone(),
            self.log.clone(),
            Arc::clone(&self.metrics),
        );
        move |notice| hear(&notice, &readiness, &log, &metrics)
    }
}
