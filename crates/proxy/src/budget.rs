//! The connection limit of a proxy, and who gives way when it is reached.
//!
//! | connection | may use | when there is no room |
//! |---|---|---|
//! | of the pod's own application | everything | a connection without an identity makes room |
//! | of a mesh peer, by identity | all but a sixteenth of what is left for others | a connection without an identity makes room |
//! | plaintext | all but an eighth, which is kept for mesh peers | the source that holds most loses first |
//! | in its handshake | everything | the source that holds most loses first |
//!
//! A source may use all that is free: an ingress gateway or a NAT address stands for many clients. Only when there is no
//! room does it matter how much each source holds: the one with most connections loses its oldest idle connection. A
//! source that holds most itself loses only what is idle; if nothing is, its new connection is refused.
//!
//! [`ledger`] decides, without sockets or clocks; this module carries it out.

pub(crate) mod ledger;

use crate::connections::Connection;
pub(crate) use ledger::Full;
use ledger::{Activity, Key, Ledger};
use remora_mtls::SpiffeId;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// What a connection whose permit was taken away is told, and the log.
pub(crate) const EVICTED: &str = "closed to make room: its source holds more connections than any other";
/// Why a connection gets no permit.
pub(crate) const FULL: &str = "too many connections";

/// All connections of a proxy.
pub(crate) struct Budget {
    ledger: Mutex<Ledger<Arc<Slot>>>,
    started: Instant,
}

/// A connection without an identity, which may have to make room.
#[derive(Default)]
pub(crate) struct Slot {
    evicted: AtomicBool,
    /// The task that serves the connection.
    task: Mutex<Option<Waker>>,
    connection: OnceLock<Arc<Connection>>,
}

impl Slot {
    fn task(&self) -> MutexGuard<'_, Option<Waker>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn evict(&self) {
        self.evicted.store(true, Ordering::Release);
        if let Some(task) = self.task().take() {
            task.wake();
        }
    }

    fn poll_evicted(&self, cx: &Context<'_>) -> Poll<()> {
        // First the waker, then the look: an eviction in between is seen.
        *self.task() = Some(cx.waker().clone());
        if self.evicted.load(Ordering::Acquire) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Activity for Arc<Slot> {
    fn bytes(&self) -> u64 {
        self.connection.get().map_or(0, |connection| {
            let (forward, backward) = connection.bytes();
            forward.wrapping_add(backward)
        })
    }
}

/// One connection of the limit, until this is dropped.
pub(crate) struct Permit {
    budget: Arc<Budget>,
    holder: Holder,
}

enum Holder {
    Local,
    Source(Key, Arc<Slot>),
    Peer(SpiffeId),
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            ledger: Mutex::new(Ledger::new(limit)),
            started: Instant::now(),
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger<Arc<Slot>>> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the start.
    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Connections that are open.
    pub(crate) fn used(&self) -> usize {
        self.ledger().used()
    }

    /// For a connection of the pod's own application.
    pub(crate) fn local(self: &Arc<Self>) -> Result<Permit, Full> {
        evict(self.ledger().admit_local(self.now())?);
        Ok(self.permit(Holder::Local))
    }

    /// For a connection from outside that has not proved an identity.
    pub(crate) fn source(self: &Arc<Self>, source: IpAddr) -> Result<Permit, Full> {
        let slot = Arc::<Slot>::default();
        let (key, victim) = self
            .ledger()
            .admit_source(source, Arc::clone(&slot), self.now())?;
        evict(victim);
        Ok(self.permit(Holder::Source(key, slot)))
    }

    /// For a request in the tunnel of a mesh peer.
    pub(crate) fn peer(self: &Arc<Self>, id: &SpiffeId) -> Result<Permit, Full> {
        evict(self.ledger().admit_peer(id, self.now())?);
        Ok(self.permit(Holder::Peer(id.clone())))
    }

    fn permit(self: &Arc<Self>, holder: Holder) -> Permit {
        Permit {
            budget: Arc::clone(self),
            holder,
        }
    }
}

/// Wakes the connection that makes room, if one must.
fn evict(victim: Option<Arc<Slot>>) {
    if let Some(victim) = victim {
        victim.evict();
    }
}

impl Permit {
    /// Its bytes tell whether the connection is idle.
    pub(crate) fn follow(&self, connection: &Arc<Connection>) {
        if let Holder::Source(_, slot) = &self.holder {
            let _ = slot.connection.set(Arc::clone(connection));
        }
    }

    /// The connection stays without an identity.
    pub(crate) fn plaintext(&self) -> Result<(), Full> {
        match &self.holder {
            Holder::Source(key, _) => {
                evict(self.budget.ledger().settle(key, self.budget.now())?);
                Ok(())
            }
            Holder::Local | Holder::Peer(_) => Ok(()),
        }
    }

    /// The connection belongs to a mesh peer from now on.
    pub(crate) fn authenticated(&mut self, id: &SpiffeId) -> Result<(), Full> {
        if let Holder::Source(key, _) = &self.holder {
            if !self.budget.ledger().authenticate(key, id) {
                return Err(Full);
            }
            self.holder = Holder::Peer(id.clone());
        }
        Ok(())
    }

    /// Ready when the connection has to make room for another.
    pub(crate) fn evicted(&self) -> Evicted<'_> {
        Evicted(match &self.holder {
            Holder::Source(_, slot) => Some(slot),
            Holder::Local | Holder::Peer(_) => None,
        })
    }
}

/// What [`Permit::evicted`] gives. Written out because it is part of every connection from outside and must be small.
pub(crate) struct Evicted<'a>(Option<&'a Slot>);

impl Future for Evicted<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.map_or(Poll::Pending, |slot| slot.poll_evicted(cx))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut ledger = self.budget.ledger();
        match &self.holder {
            Holder::Local => ledger.release_local(),
            Holder::Source(key, _) => ledger.release_source(key),
            Holder::Peer(id) => ledger.release_peer(id),
        }
    }
}
