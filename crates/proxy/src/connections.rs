//! Connections that are open now, and their accounts.
//!
//! Whoever serves a connection watches it with a `Watch` from the first moment to the last. When the watch ends,
//! however it ends, the connection is counted, its line is written, and it is open no more.

use crate::access::{Direction, Failure, Party, Reason, Record, Traffic};
use crate::context::Context;
use crate::mesh::{Mesh, Service, Workload};
use crate::metrics::{Labels, Series};
use crate::policy;
use remora_mtls::SpiffeId;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// All connections that are open.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    next: AtomicU64,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// All of them, the oldest first.
    pub fn list(&self) -> Vec<Arc<Connection>> {
        let mut list: Vec<_> = self.lock().values().cloned().collect();
        list.sort_by_key(|connection| connection.number);
        list
    }
}

/// A connection that is open.
#[derive(Debug)]
pub struct Connection {
    /// Another one for every connection.
    pub number: u64,
    /// From whose side it is seen.
    pub direction: Direction,
    /// Who opened it.
    pub source: SocketAddr,
    /// Where it was going.
    pub destination: SocketAddr,
    began: SystemTime,
    started: Instant,
    traffic: Traffic,
    ends: OnceLock<Ends>,
    account: Mutex<Account>,
}

/// How a connection is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Carriage {
    /// As it is.
    #[default]
    Plain,
    /// In a tunnel that others share.
    Hbone,
    /// By mutual TLS as between Istio's sidecars.
    IstioMtls,
}

impl Carriage {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Hbone => "hbone",
            Self::IstioMtls => "istio_mtls",
        }
    }
}

/// Who is at the two ends, as far as it was found out.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    /// Who opened it.
    pub source: Option<Arc<Workload>>,
    /// Whom it proved to be.
    pub source_id: Option<SpiffeId>,
    /// The service that was dialled.
    pub service: Option<Arc<Service>>,
    /// Whom it goes to.
    pub destination: Option<Arc<Workload>>,
    /// Whom that proved to be.
    pub destination_id: Option<SpiffeId>,
    /// Where it arrives.
    pub chosen: Option<SocketAddr>,
    /// How it is carried.
    pub carriage: Carriage,
}

impl Ends {
    /// Of a connection to this pod.
    pub(crate) fn inbound(
        ctx: &Context,
        [source, destination]: [SocketAddr; 2],
        source_id: Option<SpiffeId>,
        carriage: Carriage,
    ) -> Self {
        let to = ctx.mesh.workload(destination.ip());
        Self {
            source: ctx.mesh.workload(source.ip()),
            source_id,
            service: to
                .as_ref()
                .and_then(|to| dialled(&ctx.mesh, to, destination.port())),
            destination: to,
            destination_id: Some(ctx.identity.id()),
            chosen: Some(destination),
            carriage,
        }
    }

    fn labels(&self, direction: Direction, flags: &'static str) -> Labels<'_> {
        // An address says whose it is; only a certificate proves it.
        let believed = |workload: &&Arc<Workload>| {
            let proven = self.source_id.as_ref();
            proven.is_none_or(|id| *id == workload.id) || direction == Direction::Outbound
        };
        Labels {
            direction,
            source: self.source.as_ref().filter(believed).map(Arc::as_ref),
            source_id: self.source_id.as_ref(),
            destination: self.destination.as_deref(),
            destination_id: self.destination_id.as_ref(),
            service: self.service.as_deref(),
            mutual: self.carriage != Carriage::Plain,
            flags,
        }
    }
}

/// The service a caller must have dialled to arrive at a port. Nothing where it could be several.
fn dialled(mesh: &Mesh, workload: &Workload, port: u16) -> Option<Arc<Service>> {
    let listens = |ports: &&Vec<(u16, u16)>| ports.iter().any(|(_, own)| *own == port);
    let mut services = workload.services.iter().filter(|(_, ports)| listens(ports));
    let (key, _) = services.next()?;
    services.next().is_none().then(|| mesh.service(key))?
}

#[derive(Debug, Default)]
struct Account {
    series: Option<Arc<Series>>,
    /// Bytes that are counted already.
    counted: (u64, u64),
}

impl Connection {
    /// Bytes from the one who opened it, and bytes back.
    pub fn bytes(&self) -> (u64, u64) {
        self.traffic.read()
    }

    /// How long it has been open.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Who is at its ends, once that is known.
    pub fn ends(&self) -> Option<&Ends> {
        self.ends.get()
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what has moved since the last time, so that long connections do not wait for their end to be seen.
    pub(crate) fn count_bytes(&self) {
        let mut account = self.account();
        if let Some(series) = account.series.clone() {
            self.move_bytes(&mut account, &series);
        }
    }

    fn move_bytes(&self, account: &mut Account, series: &Series) {
        let (forward, backward) = self.traffic.read();
        let (before, back_before) = account.counted;
        series.bytes(forward - before, backward - back_before);
        account.counted = (forward, backward);
    }
}

/// Watches a connection while it is served.
pub(crate) struct Watch {
    connection: Arc<Connection>,
    ctx: Arc<Context>,
    failure: Option<Failure>,
}

impl Watch {
    pub(crate) fn new(
        ctx: &Arc<Context>,
        direction: Direction,
        [source, destination]: [SocketAddr; 2],
    ) -> Self {
        let connections = ctx.metrics.connections();
        let connection = Arc::new(Connection {
            number: connections.next.fetch_add(1, Ordering::Relaxed),
            direction,
            source,
            destination,
            began: SystemTime::now(),
            started: Instant::now(),
            traffic: Traffic::default(),
            ends: OnceLock::new(),
            account: Mutex::default(),
        });
        connections
            .lock()
            .insert(connection.number, Arc::clone(&connection));
        Self {
            connection,
            ctx: Arc::clone(ctx),
            // Unless it comes to an end of its own.
            failure: Some(Failure::new(Reason::Abandoned, "given up by the proxy")),
        }
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.connection.traffic
    }

    /// Says who is at the ends. The first word counts.
    pub(crate) fn know(&self, ends: Ends) {
        let _ = self.connection.ends.set(ends);
    }

    /// Bytes can move from here on.
    pub(crate) fn established(&self) {
        let series = self.series("-");
        series.opened();
        self.connection.account().series = Some(series);
    }

    /// The end.
    pub(crate) fn end(mut self, failure: Option<Failure>) {
        self.failure = failure;
    }

    fn series(&self, flags: &'static str) -> Arc<Series> {
        let ends = self.connection.ends.get_or_init(|| Ends {
            source: self.ctx.mesh.workload(self.connection.source.ip()),
            ..Ends::default()
        });
        let labels = ends.labels(self.connection.direction, flags);
        self.ctx.metrics.series(&labels)
    }

    fn settle(&self) {
        let reason = self.failure.as_ref().map(|failure| failure.reason);
        let mut account = self.connection.account();
        let established = account.series.clone();
        let series = match (&established, reason) {
            (Some(series), None) => Arc::clone(series),
            (_, reason) => self.series(reason.map_or("-", Reason::flag)),
        };
        if established.is_none() {
            series.opened();
        }
        self.connection.move_bytes(&mut account, &series);
        series.closed(reason.is_some());
        if let Some(reason) = reason {
            self.ctx.metrics.failed(self.connection.direction, reason);
        }
    }

    /// Policies are kept where connections arrive.
    fn on_trial(&self, ends: &Ends) -> Option<String> {
        if self.connection.direction != Direction::Inbound {
            return None;
        }
        let verdict = self.ctx.mesh.on_trial(&policy::Connection {
            source: ends.source_id.clone(),
            source_ip: self.connection.source.ip(),
            destination_ip: self.connection.destination.ip(),
            destination_port: self.connection.destination.port(),
        })?;
        Some(match verdict {
            policy::Verdict::Allow => "would be allowed".to_owned(),
            policy::Verdict::Deny(why) => format!("would be refused: {why}"),
        })
    }

    fn record(&mut self) -> Record {
        let Connection {
            direction,
            source,
            destination,
            ..
        } = *self.connection;
        let ends = self.connection.ends.get().cloned().unwrap_or_default();
        let party = |workload: Option<&Arc<Workload>>| Party {
            workload: workload.map(|w| w.name.clone()),
            namespace: workload.map(|w| w.namespace.clone()),
        };
        let (forward, backward) = self.connection.bytes();
        let failure = self.failure.take();
        let on_trial = self.on_trial(&ends);
        Record {
            began: self.connection.began,
            direction,
            source,
            source_party: party(ends.source.as_ref()),
            source_id: ends.source_id,
            destination,
            chosen: ends.chosen,
            destination_party: party(ends.destination.as_ref()),
            destination_id: ends.destination_id,
            service: ends.service.map(|service| service.hostname.clone()),
            forward,
            backward,
            duration: self.connection.age(),
            on_trial,
            reason: failure.as_ref().map(|failure| failure.reason),
            error: failure.map(|failure| failure.text),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ctx
            .metrics
            .connections()
            .lock()
            .remove(&self.connection.number);
        self.settle();
        let record = self.record();
        self.ctx.log(&record);
    }
}
