//! The life of a sidecar with an Envoy.
//!
//! 1. Sockets are opened: the status port, readiness, secrets, discovery. Readiness answers from here on.
//! 2. Envoy is started at once; certificate and configuration come to it through the agent while it starts.
//! 3. When Envoy has taken its first clusters and listeners and serves, the sidecar is ready. Envoy then has the
//!    readiness port for itself, so that a probe that passes has passed through Envoy.
//! 4. When the stop is asked for, readiness fails at once, Envoy drains by the plan of [`crate::stop`], is asked to end,
//!    and ended if it does not. A second signal ends the drain.
//!
//! Promises: Envoy's end is the agent's end, with Envoy's code; the agent's end is Envoy's, even by `SIGKILL`.
// differs from istio: readiness is an event (what Envoy answered), not a poll of statistics; the readiness port answers
// while Envoy starts; a crash of Envoy is not exit code 0; Envoy is asked to end before it is killed.

mod admin;
mod conduct;
mod config;
mod launch;
mod names;
mod process;
mod settings;
mod sockets;
mod watch;

pub use launch::Launch;
pub use settings::EnvoySettings;
pub(crate) use settings::resolve;

use crate::bootstrap::{self, BootstrapError};
use crate::children::Children;
use crate::log::{Log, chain};
use crate::metrics::AgentMetrics;
use crate::readiness::{Readiness, Stage};
use crate::sds::Secrets;
use crate::settings::Settings;
use crate::sidecar::{RunError, Sidecar, listen_for_signals, membership};
use crate::sockets as ports;
use crate::status::Desk;
use crate::stop::{Asked, StopSwitch};
use crate::xds_proxy::LastGood;
use crate::{http, status};
use admin::Admin;
use config::Config;
use names::Names;
use process::{Envoy, Passed, exit_code, validate};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long Envoy may take to end once it is asked to.
const PATIENCE: Duration = Duration::from_secs(5);

/// An Envoy cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum EnvoyError {
    /// A unix socket.
    #[error("listen on {}", path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// No bootstrap.
    #[error("make Envoy's configuration")]
    Bootstrap(#[from] BootstrapError),
    /// No template.
    #[error("read the bootstrap template {}", path.display())]
    Template {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It cannot be written.
    #[error("write Envoy's configuration to {}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The program cannot be started.
    #[error("start {}", binary.display())]
    Start {
        /// Which.
        binary: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It cannot be stopped.
    #[error("stop Envoy")]
    Stop(#[source] io::Error),
}

impl EnvoyError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("the image holds no Envoy there: name it with --binaryPath, or leave out --proxy envoy")
            }
            Self::Bootstrap(error) => Some(error.hint()),
            _ => None,
        }
    }
}

/// Why an Envoy is not to run on.
enum Over {
    /// It ended by itself.
    Ended(u8),
    /// It is no longer wanted.
    Stop,
    /// Its configuration changed.
    Restart,
}

/// Runs until Envoy ends or is asked to. Gives the exit code: 0 after a stop that was asked for, or Envoy's.
pub fn run(settings: &Settings, envoy: &EnvoySettings, log: &Log) -> Result<u8, RunError> {
    // Little is to be done here, and Envoy has the threads.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().map_err(RunError::Runtime)?;
    let result = runtime.block_on(live(settings, envoy, log));
    // What still runs (a name being looked up) must not keep the pod.
    runtime.shutdown_background();
    result
}

async fn live(settings: &Settings, envoy: &EnvoySettings, log: &Log) -> Result<u8, RunError> {
    let started = Instant::now();
    // Before anything else: a signal during the start is taken here.
    let switch = StopSwitch::default();
    listen_for_signals(&switch).map_err(RunError::Signals)?;
    let children = Children::adopt().map_err(RunError::Signals)?;
    let sidecar = Sidecar::new(Readiness::default(), log.clone(), settings);
    let early = answer(settings, &sidecar.desk(settings, &switch))?;
    let discovery = membership(settings, &settings.discovery)?;
    let (secrets, health) = (Secrets::default(), tokio::sync::watch::Sender::new(None));
    let interests = sockets::Interests {
        names: names(settings, &sidecar)?,
        secrets: envoy.follow_config.then(|| secrets.clone()),
        health: health.subscribe(),
        last_good: last_good(settings, &sidecar, log),
    };
    sockets::discovery(discovery.control_plane, envoy, &sidecar, interests, log)?;
    if let Some(schedule) = envoy.health.clone() {
        let local = envoy.description.admin_address().ip();
        let readiness = sidecar.readiness.clone();
        tokio::spawn(schedule.follow(local, readiness, children.clone(), health));
    }
    if sockets::secrets(envoy, &secrets, &sidecar.readiness, log).await? {
        let certificates = sidecar.certificates(settings)?;
        sockets::certify(
            certificates,
            secrets,
            &sidecar,
            settings.output.clone(),
            log.clone(),
        );
    }
    sidecar.readiness.reach(Stage::Sockets);
    describe(envoy, settings.output.as_deref(), log);
    if envoy.disabled {
        alone(&sidecar, &switch, started).await;
        return Ok(0);
    }
    let config = Config::write(envoy)?;
    let admin = Admin(envoy.description.admin_address());
    let ready = BecomeReady {
        admin,
        custom: envoy.custom_config.is_some(),
        readiness: sidecar.readiness.clone(),
        metrics: Arc::clone(&sidecar.metrics),
        early,
        started,
        log: log.clone(),
    };
    tokio::spawn(ready.run());
    let readiness = sidecar.readiness.clone();
    let running = supervise(settings, envoy, &children, &config, &switch, &readiness, log);
    tokio::select! {
        code = running => code,
        () = sidecar.say_when_stopping(&switch) => Ok(0),
    }
}

/// The agent without an Envoy: ready with the certificate, since programs get their configuration themselves.
async fn alone(sidecar: &Sidecar, switch: &StopSwitch, started: Instant) {
    let ready = async {
        sidecar.readiness.reached(Stage::Certificate).await;
        sidecar.readiness.reach(Stage::Configuration);
        sidecar.metrics.ready_after(started.elapsed());
        sidecar.readiness.reach(Stage::Proxy);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = ready => {}
        () = switch.reached(Asked::Stop) => sidecar.readiness.stop(),
    }
}

/// Who answers for names, if they are captured.
fn names(settings: &Settings, sidecar: &Sidecar) -> Result<Option<Names>, RunError> {
    let Some(port) = settings.ports.dns else {
        return Ok(None);
    };
    let sockets = ports::names(port)?;
    let dns = sidecar.names(settings, &sockets)?;
    Ok(dns.map(|dns| Names::new(Arc::clone(&sidecar.mesh), dns, sockets)))
}

/// What Envoy may start with while the control plane is away, if that is wanted; kept from here on.
fn last_good(settings: &Settings, sidecar: &Sidecar, log: &Log) -> Option<LastGood> {
    let keeper = sidecar.keeper(settings, "envoy.snapshot")?;
    let found = keeper.load().map(|found| found.confirmed);
    tokio::spawn(keeper.clone().keep());
    Some(LastGood {
        keeper,
        found,
        readiness: sidecar.readiness.clone(),
        log: log.clone(),
    })
}

/// Writes what programs that speak discovery themselves need. Without it only those do not start.
fn describe(envoy: &EnvoySettings, certificates: Option<&Path>, log: &Log) {
    let path = &envoy.grpc_bootstrap;
    let write = || {
        let socket = std::path::absolute(&envoy.description.xds_socket)?;
        let certificates = certificates.map(std::path::absolute).transpose()?;
        let file = bootstrap::grpc(&envoy.description, &socket, certificates.as_deref());
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(path, format!("{file:#}\n"))
    };
    if let Err(error) = write() {
        let path = path.display();
        log.warning(format_args!(
            "the bootstrap for gRPC is not written to {path}: {error}"
        ));
    }
}

/// Starts Envoy, again when its configuration changes, until it is over.
async fn supervise(
    settings: &Settings,
    envoy: &EnvoySettings,
    children: &Children,
    config: &Config,
    switch: &StopSwitch,
    readiness: &Readiness,
    log: &Log,
) -> Result<u8, RunError> {
    let admin = Admin(envoy.description.admin_address());
    let ports = settings.ports.all();
    let trouble = |error: &admin::AdminError| log.warning(format_args!("drain: {}", chain(error)));
    let mut signals = Passed::listen().map_err(RunError::Signals)?;
    loop {
        let started = Envoy::start(children, &envoy.launch, config.path());
        let mut running = started.map_err(|source| EnvoyError::Start {
            binary: envoy.launch.binary.clone(),
            source,
        })?;
        let stop = async {
            // One that does not serve yet has nothing to drain.
            tokio::select! {
                () = readiness.reached(Stage::Proxy) => {}
                () = switch.reached(Asked::Stop) => return,
            }
            conduct::conduct(admin, switch, &settings.stop, &ports, trouble).await;
        };
        let over = tokio::select! {
            over = until_over(&mut running, &mut signals) => over?,
            () = stop => Over::Stop,
            () = changed(children, envoy, config.path(), log) => Over::Restart,
        };
        if let Over::Ended(code) = over {
            let why = why(code);
            log.warning(format_args!("Envoy ended by itself, with exit code {code}{why}"));
            return Ok(code);
        }
        if matches!(over, Over::Restart) {
            log.note("Envoy's configuration changed: it is started again");
            let patience = settings.stop.termination_drain.unwrap_or(PATIENCE);
            tokio::select! {
                () = conduct::let_finish(admin, patience, trouble) => {}
                () = switch.reached(Asked::Stop) => {}
            }
        }
        running.stop(PATIENCE).await.map_err(EnvoyError::Stop)?;
        if matches!(over, Over::Stop) {
            log.note("stopped");
            return Ok(0);
        }
    }
}

/// Waits for Envoy's end, and passes on what is meant for it.
async fn until_over(running: &mut Envoy, signals: &mut Passed) -> Result<Over, RunError> {
    loop {
        tokio::select! {
            status = running.ended() => return Ok(Over::Ended(exit_code(status))),
            number = signals.next() => running.signal(number).map_err(EnvoyError::Stop)?,
        }
    }
}

fn why(code: u8) -> &'static str {
    match code {
        137 => " (killed; most often because the container's memory was used up)",
        139 => " (a crash: segmentation fault)",
        134 => " (a crash: it gave up by itself)",
        _ => "",
    }
}

/// Answers on the agent's port, and on the readiness port until Envoy does.
fn answer(settings: &Settings, desk: &Arc<Desk>) -> Result<JoinHandle<()>, RunError> {
    if settings.ports.agent != 0 {
        let shared = Arc::clone(desk);
        let listeners = ports::everywhere(settings.ports.agent)?;
        tokio::spawn(http::serve(listeners, http::pages(), move |request, peer| {
            status::agent_port(request, peer, Arc::clone(&shared))
        }));
    }
    let shared = Arc::clone(desk);
    let listeners = ports::shared(settings.ports.readiness)?;
    Ok(tokio::spawn(http::serve(
        listeners,
        http::Http1::probes(),
        move |request, peer| status::readiness_port(request, peer, Arc::clone(&shared)),
    )))
}

/// Waits until Envoy serves. From then on it answers for readiness itself.
struct BecomeReady {
    admin: Admin,
    /// A configuration of the user's may know nothing of ours; then Envoy's own word must do.
    custom: bool,
    readiness: Readiness,
    metrics: Arc<AgentMetrics>,
    early: JoinHandle<()>,
    started: Instant,
    log: Log,
}

impl BecomeReady {
    async fn run(self) {
        if !self.custom {
            self.readiness.reached(Stage::Configuration).await;
        }
        let mut wait = Duration::from_millis(2);
        while !self.admin.is_live().await {
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_millis(100));
        }
        self.readiness.reach(Stage::Configuration);
        self.metrics.ready_after(self.started.elapsed());
        self.readiness.reach(Stage::Proxy);
        self.log.note(format_args!(
            "ready after {} ms",
            self.started.elapsed().as_millis()
        ));
        if !self.custom {
            self.early.abort();
        }
    }
}

/// Ready when files that belong to the configuration were changed and Envoy would take them.
async fn changed(children: &Children, envoy: &EnvoySettings, config: &Path, log: &Log) {
    let files: Vec<PathBuf> = [&envoy.custom_config, &envoy.launch.override_file]
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let mut files = watch::Files::new(files);
    loop {
        files.changed().await;
        match validate(children, &envoy.launch, config).await {
            Ok(true) => return,
            Ok(false) => {
                log.warning("the changed configuration is refused by Envoy: it goes on with the old one");
            }
            Err(error) => log.warning(format_args!(
                "the changed configuration cannot be checked: {error}"
            )),
        }
    }
}
