//! Tunnels to other proxies, each shared by many connections.
//!
//! A tunnel belongs to a workload (its uid), an address and the identity that answered there. So a pod that comes
//! back with the address of another, or with another identity, never gets a tunnel of its predecessor; and when
//! discovery says that a workload is gone, moved or ill, its tunnel is given no new work at once.

use crate::context::Limits;
use crate::mesh::{Mesh, Tunnel};
use crate::rarely::rarely;
use crate::route::TunnelKey as Key;
use crate::socket::{self, Batched};
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong, Reason, RecvStream, SendStream};
use http::{Method, Request, StatusCode, Version};
use remora_mtls::{AlpnProfile, Identity, PeerCertificate, PeerRole, SpiffeId};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Streams a tunnel carries before another is opened, if the peer allows so many.
// istio: POOL_MAX_STREAMS_PER_CONNECTION.
const STREAMS: usize = 100;
/// Tunnels tried for one stream, where each was closed under it.
const TUNNELS: usize = 3;
// istio: stream and connection windows; the connection's is larger so that one stalled stream cannot stop all.
pub(crate) const STREAM_WINDOW: u32 = 1 << 20;
pub(crate) const CONNECTION_WINDOW: u32 = 8 << 20;
pub(crate) const FRAME: u32 = 64 << 10;
/// More than a frame, which would otherwise be cut in two, with a system call for each.
pub(crate) const TLS_BUFFER: usize = 256 << 10;
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_PATIENCE: Duration = Duration::from_secs(20);

/// A tunnel, or the place where one is being opened: a crowd waits for one handshake.
#[derive(Default)]
struct Slot {
    tunnel: tokio::sync::Mutex<Option<Tunnelled>>,
    /// No new work.
    retired: AtomicBool,
    /// Why it could not be opened, for all who waited.
    failure: OnceLock<String>,
}

struct Tunnelled {
    requests: SendRequest<Bytes>,
    /// Of the server.
    certificate: PeerCertificate,
    /// Our certificate it was opened with.
    generation: u64,
    load: Arc<Load>,
}

#[derive(Debug)]
struct Load {
    streams: AtomicUsize,
    /// As many as the peer allows, and we want.
    room: AtomicUsize,
    idle_since: Mutex<Instant>,
    open: AtomicBool,
}

/// All tunnels of a proxy.
#[derive(Default)]
pub(crate) struct Pool {
    slots: Mutex<HashMap<Key, Arc<Slot>>>,
}

/// A stream of a tunnel.
pub(crate) struct Stream {
    pub(crate) send: SendStream<Bytes>,
    pub(crate) receive: RecvStream,
    _ticket: Ticket,
}

/// Counts a stream for as long as it lives.
struct Ticket(Arc<Load>);

impl Drop for Ticket {
    fn drop(&mut self) {
        *self.0.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

/// No stream to a workload.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PoolError {
    #[error("connect to {0}: {1}")]
    Connect(SocketAddr, io::Error),
    #[error("prepare a TLS connection: {0}")]
    Config(#[from] remora_mtls::ConfigError),
    #[error("shake hands with {0} at {1}: {2}")]
    Handshake(SpiffeId, SocketAddr, io::Error),
    #[error("shake hands with {0} at {1} in time")]
    Slow(SpiffeId, SocketAddr),
    #[error("use the tunnel to {0}: {1}")]
    Http(SocketAddr, h2::Error),
    #[error("the proxy at {0} answered {1}")]
    Status(SocketAddr, StatusCode),
    #[error("the tunnel cannot name {0}")]
    Name(SocketAddr),
    /// Somebody else tried while we waited.
    #[error("{0}")]
    Shared(String),
}

impl PoolError {
    /// Whether another endpoint might do better.
    pub(crate) fn elsewhere(&self) -> bool {
        match self {
            Self::Config(_) | Self::Name(_) => false,
            // Denied by policy: the same policy is likely to hold there, and asking around is not polite.
            Self::Status(_, status) => *status != StatusCode::UNAUTHORIZED,
            Self::Connect(..) | Self::Handshake(..) | Self::Slow(..) | Self::Http(..) | Self::Shared(_) => {
                true
            }
        }
    }
}

impl Pool {
    pub(crate) fn len(&self) -> usize {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// A stream to an address behind the proxy at the other end.
    pub(crate) async fn stream(
        &self,
        identity: &Identity,
        limits: &Limits,
        key: &Key,
        address: SocketAddr,
    ) -> Result<Stream, PoolError> {
        let mut tried = 1;
        loop {
            let (requests, ticket) = self.requests(key, identity, limits).await?;
            let load = Arc::clone(&ticket.0);
            match open(requests, ticket, key.address, address, limits).await {
                // Nothing of the application's has been sent before the answer: another tunnel may be asked.
                Err(PoolError::Http(_, error)) if tried < TUNNELS && closed(&error) => {
                    load.open.store(false, Ordering::Release);
                    tried += 1;
                }
                result => return result,
            }
        }
    }

    /// A tunnel with room, opened if need be.
    async fn requests(
        &self,
        key: &Key,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<(SendRequest<Bytes>, Ticket), PoolError> {
        loop {
            let slot = {
                let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(slots.entry(key.clone()).or_default())
            };
            let mut tunnel = slot.tunnel.lock().await;
            if let Some(why) = slot.failure.get() {
                // One after the other would wait for as many timeouts as there are connections.
                return Err(PoolError::Shared(why.clone()));
            }
            if slot.retired.load(Ordering::Acquire) {
                // Thrown out while we waited; the next look finds a fresh one.
                continue;
            }
            if let Some(known) = &mut *tunnel
                && known.takes_work(identity)
            {
                return Ok((known.requests.clone(), Ticket::take(&known.load)));
            }
            let made = match dial(key, identity, limits).await {
                Ok(made) => made,
                Err(error) => {
                    let _ = slot.failure.set(error.to_string());
                    self.retire(|other, candidate| other == key && Arc::ptr_eq(candidate, &slot));
                    return Err(error);
                }
            };
            let result = (made.requests.clone(), Ticket::take(&made.load));
            // A full predecessor goes on until its last stream ends.
            *tunnel = Some(made);
            return Ok(result);
        }
    }

    fn retire(&self, mut which: impl FnMut(&Key, &Arc<Slot>) -> bool) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|key, slot| {
            let out = which(key, slot);
            slot.retired.fetch_or(out, Ordering::AcqRel);
            !out
        });
    }

    /// Gives no new work to tunnels of workloads that are gone, ill, moved or somebody else by now.
    pub(crate) fn follow(&self, mesh: &Mesh) {
        self.retire(|key, _| {
            mesh.by_uid(&key.uid).is_none_or(|workload| {
                let here = workload.addresses.contains(&key.address.ip());
                !here || !workload.healthy || workload.id != key.peer || workload.tunnel != Tunnel::Hbone
            })
        });
    }

    /// Closes what nobody has used for long, and forgets what has closed.
    pub(crate) fn sweep(&self, idle: Duration) {
        self.retire(|_, slot| {
            // Locked: somebody is opening or choosing right now.
            let Ok(tunnel) = slot.tunnel.try_lock() else {
                return false;
            };
            tunnel.as_ref().is_none_or(|tunnel| {
                let since = *tunnel
                    .load
                    .idle_since
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let unused = tunnel.load.streams.load(Ordering::Acquire) == 0 && since.elapsed() >= idle;
                unused || !tunnel.load.open.load(Ordering::Acquire)
            })
        });
    }
}

impl Tunnelled {
    /// Whether it is open, with room, and the peer has not said that it wants no more. A new certificate of ours gets a
    /// new tunnel, so that a stream never rests on an old one; and the server must still be believed.
    fn takes_work(&mut self, identity: &Identity) -> bool {
        let mut now = std::task::Context::from_waker(std::task::Waker::noop());
        let load = &self.load;
        self.generation == identity.generation_number()
            && identity.check(&self.certificate).is_ok()
            && load.open.load(Ordering::Acquire)
            && load.streams.load(Ordering::Acquire) < load.room.load(Ordering::Acquire)
            // A peer that drains says so long before the last stream ends.
            && !matches!(self.requests.poll_ready(&mut now), std::task::Poll::Ready(Err(_)))
    }
}

/// Whether a tunnel closed before it took a request, or never will take it.
fn closed(error: &h2::Error) -> bool {
    error.is_go_away() || error.is_io() || error.reason() == Some(Reason::REFUSED_STREAM)
}

impl Ticket {
    fn take(load: &Arc<Load>) -> Self {
        load.streams.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(load))
    }
}

/// Asks the proxy at the other end for a connection to one of its addresses.
async fn open(
    requests: SendRequest<Bytes>,
    ticket: Ticket,
    proxy: SocketAddr,
    address: SocketAddr,
    limits: &Limits,
) -> Result<Stream, PoolError> {
    let failed = |error| PoolError::Http(proxy, error);
    let request = Request::builder()
        .method(Method::CONNECT)
        .version(Version::HTTP_2)
        .uri(address.to_string())
        .body(())
        .map_err(|_| PoolError::Name(address))?;
    let asking = async {
        let mut requests = requests.ready().await.map_err(failed)?;
        let (response, send) = requests.send_request(request, false).map_err(failed)?;
        Ok::<_, PoolError>((response.await.map_err(failed)?, send))
    };
    // The other proxy connects to its application before it answers.
    let patience = limits.connect + limits.discovery;
    let (response, send) = tokio::time::timeout(patience, asking)
        .await
        .map_err(|_| PoolError::Connect(address, io::ErrorKind::TimedOut.into()))??;
    if response.status() != StatusCode::OK {
        return Err(PoolError::Status(proxy, response.status()));
    }
    Ok(Stream {
        send,
        receive: response.into_body(),
        _ticket: ticket,
    })
}

async fn dial(key: &Key, identity: &Identity, limits: &Limits) -> Result<Tunnelled, PoolError> {
    let address = key.address;
    let stream = socket::connect(address, limits.connect)
        .await
        .map_err(|error| PoolError::Connect(address, error))?;
    let generation = identity.generation_number();
    let config = identity.client(std::slice::from_ref(&key.peer), AlpnProfile::Hbone)?;
    let shaking = shake(stream, TlsConnector::from(config), key, identity);
    let (certificate, requests, mut connection) = tokio::time::timeout(limits.handshake, shaking)
        .await
        .map_err(|_| PoolError::Slow(key.peer.clone(), address))??;
    let load = Arc::new(Load {
        streams: AtomicUsize::new(0),
        room: AtomicUsize::new(STREAMS),
        idle_since: Mutex::new(Instant::now()),
        open: AtomicBool::new(true),
    });
    let watched = Arc::clone(&load);
    tokio::spawn(async move {
        let pings = connection.ping_pong();
        let driven = std::future::poll_fn(|cx| {
            let done = Pin::new(&mut connection).poll(cx);
            // More than the peer allows would wait for others to end. It says so after the handshake.
            let room = connection.max_concurrent_send_streams().clamp(1, STREAMS);
            watched.room.store(room, Ordering::Release);
            done
        });
        tokio::select! {
            biased;
            _ = driven => {}
            () = rarely(Box::pin(keep_alive(pings))) => {}
        }
        watched.open.store(false, Ordering::Release);
    });
    Ok(Tunnelled {
        requests,
        certificate,
        generation,
        load,
    })
}

type Connection = h2::client::Connection<tokio_rustls::client::TlsStream<Batched>, Bytes>;

async fn shake(
    stream: TcpStream,
    connector: TlsConnector,
    key: &Key,
    identity: &Identity,
) -> Result<(PeerCertificate, SendRequest<Bytes>, Connection), PoolError> {
    let roots = identity.roots();
    // The name decides nothing: the certificate is judged by its identity.
    let name = rustls::pki_types::ServerName::IpAddress(key.address.ip().into());
    let mut tls = connector
        .connect(name, Batched::new(stream))
        .await
        .map_err(|error| PoolError::Handshake(key.peer.clone(), key.address, error))?;
    // A resumed session was not verified again: it may rest on a certificate that is over.
    let certificate = identity
        .peer_certificate(tls.get_ref().1.peer_certificates(), PeerRole::Server, roots)
        .map_err(|error| PoolError::Handshake(key.peer.clone(), key.address, io::Error::other(error)))?;
    tls.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
    let (requests, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(16 << 10)
        .enable_push(false)
        .handshake(tls)
        .await
        .map_err(|error| PoolError::Http(key.address, error))?;
    Ok((certificate, requests, connection))
}

/// Ends when the peer no longer answers.
pub(crate) async fn keep_alive(pings: Option<PingPong>) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(PING_EVERY).await;
        let answer = tokio::time::timeout(PING_PATIENCE, pings.ping(Ping::opaque())).await;
        if !matches!(answer, Ok(Ok(_))) {
            return;
        }
    }
}
