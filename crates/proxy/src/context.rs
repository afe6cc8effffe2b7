//! What every connection of a proxy shares.

use crate::access::{Log, Record};
use crate::budget::{Budget, Permit};
use crate::crowd::Crowd;
use crate::decision::Decision;
use crate::dns::Dns;
use crate::drain::Drain;
use crate::inbound::Modes;
use crate::mesh::Mesh;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::route::Ask;
use remora_mtls::Identity;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Times and sizes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Captured connections, tunnels from others and their streams at once, together. Fewer if the process may not
    /// have as many descriptors as they need.
    pub connections: usize,
    /// Connections and requests of one source that have not yet proved who they are or been answered.
    pub judged: usize,
    /// For a TLS and HTTP/2 handshake.
    pub handshake: Duration,
    /// For a TCP connection to somebody.
    pub connect: Duration,
    /// How long a connection waits for discovery to name the workload it is about.
    pub discovery: Duration,
    /// How long a caller may be silent before the application is asked whether it speaks first.
    pub sniff: Duration,
    /// A connection on which nothing moves is cut after this, and before twice this.
    pub idle: Duration,
    /// A pooled tunnel that nobody uses is closed after this; one of somebody else's after twice this.
    pub pool_idle: Duration,
    /// How long open connections may go on after the certificate of their peer expired or lost its root.
    pub certificate_grace: Duration,
    /// How long open connections may go on after the drain began.
    pub drain: Duration,
    /// Endpoints that are tried before a connection fails.
    pub attempts: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 20_000,
            judged: 1024,
            handshake: Duration::from_secs(10),
            connect: Duration::from_secs(10),
            discovery: Duration::from_secs(5),
            sniff: Duration::from_millis(100),
            // istio: the idle timeout of TCP connections is one hour.
            idle: Duration::from_hours(1),
            pool_idle: Duration::from_mins(5),
            certificate_grace: Duration::from_hours(1),
            drain: Duration::from_secs(5),
            attempts: 3,
        }
    }
}

/// Descriptors for everything that is no connection: listeners, discovery, logs, name service.
const KEPT: u64 = 64;
/// A connection has two ends, and a tunnel or pipes in between.
const EACH: u64 = 3;

/// Connections for which there are descriptors.
fn affordable(descriptors: u64) -> usize {
    usize::try_from(descriptors.saturating_sub(KEPT) / EACH)
        .unwrap_or(usize::MAX)
        .max(1)
}

/// What happens to connections whose destination is not of the mesh.
// istio: outboundTrafficPolicy, ALLOW_ANY and REGISTRY_ONLY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownDestinations {
    /// They are passed on as they are.
    #[default]
    Pass,
    /// They are refused.
    Refuse,
}

/// How a proxy behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Times and sizes.
    pub limits: Limits,
    /// Destinations that are not of the mesh.
    pub unknown: UnknownDestinations,
    /// What is accepted on the pod's ports.
    pub modes: Modes,
    /// On connections to the application that keep the caller's address: those that came by a listener that is
    /// transparent. The capture rules know it.
    pub mark: u32,
    /// Where everything is counted; can be shown before the proxy is there.
    pub metrics: Arc<Metrics>,
    /// Where a line goes for every connection that is over.
    pub access_log: Option<Log>,
    /// Who serves names.
    pub dns: Option<Arc<Dns>>,
    /// Whether CPU time, threads and memory may be asked for.
    pub profiling: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            unknown: UnknownDestinations::default(),
            modes: Modes::default(),
            // istio: the mark of interception mode TPROXY unless another is given.
            mark: 1337,
            metrics: Arc::default(),
            access_log: None,
            dns: None,
            profiling: false,
        }
    }
}

/// Shared by all connections of a pod.
pub struct Context {
    pub(crate) identity: Arc<Identity>,
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) limits: Limits,
    pub(crate) unknown: UnknownDestinations,
    pub(crate) modes: Modes,
    pub(crate) mark: u32,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) access_log: Option<Log>,
    pub(crate) dns: Option<Arc<Dns>>,
    pub(crate) profiling: bool,
    pub(crate) drain: Drain,
    pub(crate) pool: Arc<Pool>,
    pub(crate) budget: Arc<Budget>,
    held: AtomicUsize,
    pub(crate) crowd: Arc<Crowd>,
    log: Arc<dyn Fn(&Record) + Send + Sync>,
    /// Where the numbers that decide draws start: elsewhere in every process.
    seed: AtomicU64,
    started: Instant,
}

/// See [`Context::hold`].
pub struct Hold {
    ctx: Arc<Context>,
    _permit: Permit,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.ctx.held.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Context {
    /// A proxy for one workload. `log` is given every connection when it is over.
    pub fn new(
        identity: Arc<Identity>,
        mesh: Arc<Mesh>,
        settings: Settings,
        log: impl Fn(&Record) + Send + Sync + 'static,
    ) -> Self {
        let Settings {
            mut limits,
            unknown,
            modes,
            mark,
            metrics,
            access_log,
            dns,
            profiling,
        } = settings;
        if let Ok(descriptors) = remora_net::privilege::descriptor_limit() {
            limits.connections = limits.connections.min(affordable(descriptors));
        }
        let pool = Arc::new(Pool::default());
        metrics.show_proxy(Arc::clone(&identity), Arc::clone(&mesh), Arc::clone(&pool));
        if let Some(log) = &access_log {
            metrics.show_log(log.clone());
        }
        if let Some(dns) = &dns {
            metrics.show_dns(Arc::clone(dns));
        }
        Self {
            identity,
            mesh,
            limits,
            unknown,
            modes,
            mark,
            metrics,
            access_log,
            dns,
            profiling,
            drain: Drain::default(),
            pool,
            budget: Arc::new(Budget::new(limits.connections)),
            held: AtomicUsize::new(0),
            crowd: Arc::new(Crowd::new(limits.judged)),
            log: Arc::new(log),
            seed: AtomicU64::new(RandomState::new().hash_one(0)),
            started: Instant::now(),
        }
    }

    /// Starts and tells the end.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Who the proxy is; new certificates are installed there.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What is counted, and what is open.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Where lines about connections go.
    pub fn access_log(&self) -> Option<&Log> {
        self.access_log.as_ref()
    }

    /// Tunnels that are open to other proxies.
    pub fn tunnels(&self) -> usize {
        self.pool.len()
    }

    /// Captured connections, tunnels from others and their streams that are open.
    pub fn open(&self) -> usize {
        let held = self.held.load(Ordering::Relaxed);
        self.budget.used().saturating_sub(held)
    }

    /// Keeps the proxy from ending its drain for lack of work, until it is dropped or the drain is cut. `None` when
    /// there is no room, and so enough work.
    pub fn hold(self: &Arc<Self>) -> Option<Hold> {
        let permit = self.budget.local().ok()?;
        self.held.fetch_add(1, Ordering::Relaxed);
        Some(Hold {
            ctx: Arc::clone(self),
            _permit: permit,
        })
    }

    pub(crate) fn log(&self, record: &Record) {
        if let Some(log) = &self.access_log {
            log.record(record);
        }
        (self.log)(record);
    }

    /// What there is to decide about a connection the pod opens.
    pub(crate) fn ask(&self, source: IpAddr, destination: SocketAddr) -> Ask {
        Ask {
            source,
            destination,
            unknown: self.unknown,
            seed: self.seed.fetch_add(1, Ordering::Relaxed),
            now: self.now(),
        }
    }

    /// Milliseconds since the proxy started.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Everything that would happen to a connection now. Sends nothing, changes nothing.
    pub fn why(&self, source: IpAddr, destination: SocketAddr) -> Decision {
        Decision::new(&self.mesh, &self.ask(source, destination))
    }

    /// What the proxy knows of the mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// What is accepted on the pod's ports.
    pub fn modes(&self) -> &Modes {
        &self.modes
    }
}

#[cfg(test)]
mod tests {
    use super::affordable;

    #[test]
    fn there_are_descriptors_for_every_connection_of_the_budget() {
        assert_eq!(affordable(1024), 320);
        assert_eq!(affordable(10), 1, "even the poorest proxy takes one");
        assert_eq!(
            affordable(u64::MAX),
            usize::try_from((u64::MAX - 64) / 3).unwrap()
        );
    }
}
