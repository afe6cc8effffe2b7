//! Names for the pod, on port 15053 by UDP and TCP: the mesh's own are answered, all others are asked of the name
//! servers the pod would ask.
//!
//! [`mod@decide`] says what becomes of a message, purely; [`upstream`] asks others. Promises: whatever arrives, nothing
//! panics and nothing waits without end; questions under way and connections are bounded, and above that refused at
//! once; a question that comes back to us is noticed and refused.
//!
//! Sockets must be bound to the loopback addresses captured questions are redirected to, or the answer would leave
//! with another address than the question came to. Nothing is remembered between questions.

pub mod counters;
pub mod decide;
pub mod lookup;
pub mod names;
pub mod packet;
pub mod resolv;
pub mod upstream;

use crate::mesh::Mesh;
use counters::{Counters, Event};
use decide::{Decision, Transport, decide};
use names::Client;
use packet::{Code, LARGEST_DATAGRAM, Query};
use resolv::Resolv;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use upstream::{Upstream, read_message, write_message};

/// A connection on which nothing is asked is closed after this.
// istio: the same.
const IDLE: Duration = Duration::from_secs(5);
/// After an error of a socket, so that it does not spin.
const PAUSE: Duration = Duration::from_millis(10);

/// How names are served.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What the pod's names are short for.
    pub client: Client,
    /// Whom to ask, in order.
    pub servers: Vec<SocketAddr>,
    /// Whether they take turns.
    pub rotate: bool,
    /// How long all of them together may take.
    pub patience: Duration,
    /// Questions to others under way at once.
    pub questions: usize,
    /// Connections at once.
    pub connections: usize,
}

impl Settings {
    /// For a pod with this `resolv.conf`.
    pub fn new(namespace: &str, domain: &str, resolv: Resolv) -> Self {
        Self {
            client: Client {
                namespace: namespace.to_owned(),
                domain: domain.to_ascii_lowercase(),
                search: resolv.search,
            },
            servers: resolv.servers,
            rotate: resolv.rotate,
            // istio: DNS_FORWARD_TIMEOUT; also how long resolvers wait.
            patience: Duration::from_secs(5),
            questions: 512,
            connections: 128,
        }
    }
}

/// Where names are asked for.
#[derive(Debug, Default)]
pub struct Sockets {
    /// For datagrams.
    pub udp: Vec<UdpSocket>,
    /// For connections.
    pub tcp: Vec<TcpListener>,
}

/// Names that cannot be served like this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DnsError {
    /// A question would go in a circle.
    #[error("serve names on {listening}: the name server {server} is this proxy itself")]
    Circle {
        /// Where we listen.
        listening: SocketAddr,
        /// Whom we would ask.
        server: SocketAddr,
    },
}

impl DnsError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Circle { .. } => {
                "name another server in the pod's resolv.conf (dnsConfig.nameservers), or listen on another port"
            }
        }
    }
}

/// Whether what is sent to `server` arrives at `listening`. An address of the pod itself cannot be told from others
/// here; questions that come back are noticed when they do.
fn is_same(listening: SocketAddr, server: SocketAddr) -> bool {
    let local = |address: IpAddr| address.is_loopback() || address.is_unspecified();
    let same_address = listening.ip() == server.ip()
        || (listening.ip().is_unspecified() && local(server.ip()))
        // The kernel takes the unspecified address for the local one.
        || (server.ip().is_unspecified() && local(listening.ip()));
    listening.port() == server.port() && same_address
}

/// Serves names.
#[derive(Debug)]
pub struct Dns {
    mesh: Arc<Mesh>,
    client: Client,
    upstream: Upstream,
    questions: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    counters: Counters,
    turn: AtomicUsize,
}

impl Dns {
    /// Answers from `mesh`. `listening` are the addresses of the sockets that will be served.
    pub fn new(settings: Settings, mesh: Arc<Mesh>, listening: &[SocketAddr]) -> Result<Self, DnsError> {
        for listening in listening.iter().copied() {
            if let Some(server) = settings
                .servers
                .iter()
                .find(|server| is_same(listening, **server))
            {
                return Err(DnsError::Circle {
                    listening,
                    server: *server,
                });
            }
        }
        Ok(Self {
            mesh,
            client: settings.client,
            upstream: Upstream::new(settings.servers, settings.rotate, settings.patience),
            questions: Arc::new(Semaphore::new(settings.questions)),
            connections: Arc::new(Semaphore::new(settings.connections)),
            counters: Counters::default(),
            turn: AtomicUsize::new(0),
        })
    }

    /// What the pod's names are short for.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whom others are asked of, in order.
    pub fn servers(&self) -> &[SocketAddr] {
        self.upstream.servers()
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Serves until dropped.
    pub async fn serve(self: Arc<Self>, sockets: Sockets) {
        let mut serving = JoinSet::new();
        for socket in sockets.udp {
            serving.spawn(Arc::clone(&self).serve_udp(socket));
        }
        for listener in sockets.tcp {
            serving.spawn(Arc::clone(&self).serve_tcp(listener));
        }
        while serving.join_next().await.is_some() {}
    }

    async fn serve_udp(self: Arc<Self>, socket: UdpSocket) {
        let socket = Arc::new(socket);
        let mut buffer = [0; LARGEST_DATAGRAM];
        loop {
            let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let message = buffer.get(..length).unwrap_or_default();
            match self.first_look(message, from, Transport::Udp) {
                Next::Reply(Some(answer)) => drop(socket.send_to(&answer, from).await),
                Next::Reply(None) => {}
                Next::Ask(permit, exists) => {
                    let (dns, socket, message) = (Arc::clone(&self), Arc::clone(&socket), message.to_vec());
                    tokio::spawn(async move {
                        if let Some(answer) = dns.ask(&message, Transport::Udp, exists).await {
                            let _ = socket.send_to(&answer, from).await;
                        }
                        drop(permit);
                    });
                }
            }
        }
    }

    async fn serve_tcp(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            // Above the bound a connection is closed at once rather than left waiting.
            let Ok(permit) = Arc::clone(&self.connections).try_acquire_owned() else {
                self.counters.count(Event::Busy);
                continue;
            };
            let dns = Arc::clone(&self);
            tokio::spawn(async move {
                dns.connection(stream, from).await;
                drop(permit);
            });
        }
    }

    /// One question after the other.
    async fn connection(&self, mut stream: TcpStream, from: SocketAddr) {
        while let Some(Ok(message)) = soon(read_message(&mut stream)).await {
            let answer = match self.first_look(&message, from, Transport::Tcp) {
                Next::Reply(answer) => answer,
                Next::Ask(_permit, exists) => self.ask(&message, Transport::Tcp, exists).await,
            };
            let Some(answer) = answer else { return };
            if !matches!(soon(write_message(&mut stream, &answer)).await, Some(Ok(()))) {
                return;
            }
        }
    }

    /// Everything that needs no waiting.
    fn first_look(&self, message: &[u8], from: SocketAddr, transport: Transport) -> Next {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let decision = self
            .mesh
            .names(|directory| decide(message, transport, &self.client, directory, turn));
        let (event, next) = match decision {
            Decision::Answer(answer) => (Event::Answered, Next::Reply(Some(answer))),
            Decision::Refuse(answer) => (Event::Malformed, Next::Reply(Some(answer))),
            Decision::Silence => (Event::Malformed, Next::Reply(None)),
            Decision::Forward { query, .. } if self.upstream.is_own(from) => {
                (Event::Circular, Next::Reply(Some(query.code(Code::Refused))))
            }
            Decision::Forward { query, exists } => match Arc::clone(&self.questions).try_acquire_owned() {
                Ok(permit) => (Event::Forwarded, Next::Ask(permit, exists)),
                Err(_) => (Event::Busy, Next::Reply(Some(query.code(Code::ServerFailure)))),
            },
        };
        self.counters.count(event);
        next
    }

    async fn ask(&self, message: &[u8], transport: Transport, exists: bool) -> Option<Vec<u8>> {
        // It was read before.
        let query = Query::read(message).ok()?;
        let started = Instant::now();
        let asked = self.upstream.ask(&query, transport).await;
        self.counters.asked(asked.is_ok(), started.elapsed());
        let mut answer = asked.unwrap_or_else(|_| query.code(Code::ServerFailure));
        if exists {
            packet::name_exists(&mut answer);
        }
        Some(answer)
    }
}

/// What is left to do for a message.
enum Next {
    /// Nothing but to send this, or nothing.
    Reply(Option<Vec<u8>>),
    /// To ask others. The name may exist whatever they say.
    Ask(OwnedSemaphorePermit, bool),
}

async fn soon<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(IDLE, work).await.ok()
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn a_server_that_is_ourselves_is_recognised() {
        let cases = [
            ("127.0.0.1:53", "127.0.0.1:53", true),
            ("127.0.0.1:15053", "127.0.0.1:53", false),
            ("0.0.0.0:53", "127.0.0.53:53", true),
            ("127.0.0.1:53", "0.0.0.0:53", true),
            ("[::]:53", "[::1]:53", true),
            ("0.0.0.0:53", "10.96.0.10:53", false),
            ("127.0.0.1:53", "127.0.0.53:53", false),
        ];
        for (listening, server, same) in cases {
            let (listening, server) = (listening.parse().unwrap(), server.parse().unwrap());
            assert_eq!(is_same(listening, server), same, "{listening} {server}");
        }
    }
}
