//! The open connections of a port.

use crate::limits::{Admission, Id, Limits, Stage, Table};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Ends the stream of an evicted connection.
pub(crate) type Eviction = oneshot::Receiver<()>;

/// The connections of one port, or of several that share their limits.
#[derive(Debug)]
pub struct Registry {
    open: Mutex<Open>,
    evicted: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug)]
struct Open {
    table: Table,
    evictions: HashMap<Id, oneshot::Sender<()>>,
}

impl Registry {
    /// Without connections.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            open: Mutex::new(Open {
                table: Table::new(limits),
                evictions: HashMap::new(),
            }),
            evicted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// How many connections are open.
    pub fn len(&self) -> usize {
        self.lock().table.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many connections were closed to make room, and how many were not admitted.
    pub fn turned_away(&self) -> (u64, u64) {
        (
            self.evicted.load(Ordering::Relaxed),
            self.refused.load(Ordering::Relaxed),
        )
    }

    /// Takes up a connection, unless there is no room for it.
    pub(crate) fn admit(self: &Arc<Self>, peer: SocketAddr) -> Option<(Connection, Eviction)> {
        let mut open = self.lock();
        let Admission::Admit { id, evict } = open.table.admit(peer.ip()) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        if let Some(id) = evict {
            self.close(&mut open, id);
        }
        let (evict, eviction) = oneshot::channel();
        open.evictions.insert(id, evict);
        let connection = Connection(Arc::new(Shared {
            registry: Arc::clone(self),
            id,
            peer,
            pending: AtomicBool::new(true),
            in_flight: AtomicUsize::new(0),
        }));
        Some((connection, eviction))
    }

    /// Closes one connection that nobody waits for: descriptors are short.
    pub(crate) fn shed(&self) {
        let mut open = self.lock();
        if let Some(id) = open.table.shed() {
            self.close(&mut open, id);
        }
    }

    fn close(&self, open: &mut Open, id: Id) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
        if let Some(evict) = open.evictions.remove(&id) {
            // The stream may be gone already.
            let _ = evict.send(());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One open connection. It counts until the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Connection(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    registry: Arc<Registry>,
    id: Id,
    peer: SocketAddr,
    pending: AtomicBool,
    in_flight: AtomicUsize,
}

impl Connection {
    /// The client's address.
    pub fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// The client's address without its port, the same for both ways to write an IPv4 address.
    pub fn source(&self) -> IpAddr {
        self.0.peer.ip().to_canonical()
    }

    /// Whether the client has not made a request yet, or not authenticated.
    pub fn is_pending(&self) -> bool {
        self.0.pending.load(Ordering::Acquire)
    }

    /// The client made a request, which is at work until the result is dropped.
    pub fn request(&self) -> InFlight {
        let mut open = self.0.registry.lock();
        // Counted under the lock: several requests of one connection may begin and end at the same time.
        if self.0.in_flight.fetch_add(1, Ordering::Relaxed) == 0 {
            self.set(&mut open, Stage::Active);
        }
        drop(open);
        InFlight(self.clone())
    }

    /// The client authenticated: it is not evicted for others.
    pub fn trust(&self) {
        if self.is_pending() {
            self.set(&mut self.0.registry.lock(), Stage::Trusted);
        }
    }

    fn set(&self, open: &mut Open, stage: Stage) {
        self.0.pending.store(false, Ordering::Release);
        open.table.set(self.0.id, stage);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut open = self.registry.lock();
        open.table.remove(self.id);
        open.evictions.remove(&self.id);
    }
}

/// A request at work.
#[derive(Debug)]
pub struct InFlight(Connection);

impl Drop for InFlight {
    fn drop(&mut self) {
        let Self(connection) = self;
        let mut open = connection.0.registry.lock();
        if connection.0.in_flight.fetch_sub(1, Ordering::Relaxed) == 1 {
            connection.set(&mut open, Stage::Idle);
        }
    }
}
