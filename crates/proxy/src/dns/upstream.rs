//! Asks the name servers of `resolv.conf`.
//!
//! Every question has a socket, a port and a number of its own; an answer counts if it comes from the server that was
//! asked and repeats number and question. Servers are tried in order until one answers with more than a failure;
//! together they get no longer than the client would wait. Nothing is remembered: the servers remember by rules of
//! their own, and an answer that is passed on is never older than theirs.

use super::decide::Transport;
use super::packet::{self, LARGEST, LARGEST_DATAGRAM, Query};
use rustls::crypto::SecureRandom;
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// Servers are tried so often each.
const ROUNDS: usize = 2;
/// The least a server is given.
const SHORTEST: Duration = Duration::from_secs(1);

/// Nobody answered.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody to ask.
    #[error("there is no name server to ask")]
    Nobody,
    /// No number that cannot be guessed.
    #[error("no random numbers")]
    Random,
    /// The last one that was tried, and why it was no use.
    #[error("ask {0}")]
    Server(SocketAddr, #[source] io::Error),
}

/// The servers, and what is being asked of them.
#[derive(Debug)]
pub struct Upstream {
    servers: Vec<SocketAddr>,
    rotate: bool,
    patience: Duration,
    random: &'static dyn SecureRandom,
    /// Where questions are sent from: what comes in from there went in a circle.
    asking: Mutex<HashSet<SocketAddr>>,
    turn: AtomicUsize,
}

impl Upstream {
    /// Asks these servers; all together for at most `patience`.
    pub fn new(servers: Vec<SocketAddr>, rotate: bool, patience: Duration) -> Self {
        Self {
            servers,
            rotate,
            patience,
            random: rustls::crypto::aws_lc_rs::default_provider().secure_random,
            asking: Mutex::default(),
            turn: AtomicUsize::new(0),
        }
    }

    /// The servers, in order.
    pub fn servers(&self) -> &[SocketAddr] {
        &self.servers
    }

    /// Whether a message from this address is a question of ours that came back.
    pub fn is_own(&self, address: SocketAddr) -> bool {
        self.asking().contains(&address)
    }

    fn asking(&self) -> std::sync::MutexGuard<'_, HashSet<SocketAddr>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, with the client's number. A failure that servers agree on is an answer too.
    pub async fn ask(&self, query: &Query<'_>, transport: Transport) -> Result<Vec<u8>, AskError> {
        let end = Instant::now() + self.patience;
        let tries = self.servers.len() * ROUNDS;
        let each = (self.patience / u32::try_from(tries.max(1)).unwrap_or(u32::MAX)).max(SHORTEST);
        let first = if self.rotate {
            self.turn.fetch_add(1, Ordering::Relaxed)
        } else {
            0
        };
        let order = self
            .servers
            .iter()
            .cycle()
            .skip(first % self.servers.len().max(1));
        let mut last = Err(AskError::Nobody);
        for server in order.take(tries) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match self.ask_one(*server, query, transport, each.min(left)).await {
                Ok(answer) if !packet::is_failure(&answer) => return Ok(answer),
                Ok(answer) => last = Ok(answer),
                // A failure that was said is worth more than silence.
                Err(error) if last.is_err() => last = Err(error),
                Err(_) => {}
            }
        }
        last
    }

    async fn ask_one(
        &self,
        server: SocketAddr,
        query: &Query<'_>,
        transport: Transport,
        patience: Duration,
    ) -> Result<Vec<u8>, AskError> {
        let failed = |error| AskError::Server(server, error);
        let mut id = [0; 2];
        self.random.fill(&mut id).map_err(|_| AskError::Random)?;
        let id = u16::from_be_bytes(id);
        let by_tcp = async || bounded(patience, self.by_tcp(server, query, id)).await;
        let mut answer = match transport {
            Transport::Tcp => by_tcp().await.map_err(failed)?,
            Transport::Udp => {
                let short = bounded(patience, self.by_udp(server, query, id))
                    .await
                    .map_err(failed)?;
                // The server's limit for datagrams may be smaller than the client's.
                let whole = if packet::is_truncated(&short) {
                    by_tcp().await.ok()
                } else {
                    None
                };
                let fitting = [whole, Some(short)]
                    .into_iter()
                    .flatten()
                    .find(|answer| answer.len() <= query.datagram());
                fitting.unwrap_or_else(|| query.by_tcp_only())
            }
        };
        query.renumber(&mut answer);
        Ok(answer)
    }

    async fn by_udp(&self, server: SocketAddr, query: &Query<'_>, id: u16) -> io::Result<Vec<u8>> {
        let any: IpAddr = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).await?;
        // From now on the kernel drops what comes from anybody else.
        socket.connect(server).await?;
        let _asking = Asking::new(self, socket.local_addr()?);
        socket.send(&query.forwarded(id)).await?;
        let mut buffer = vec![0; LARGEST_DATAGRAM];
        loop {
            let length = socket.recv(&mut buffer).await?;
            if buffer
                .get(..length)
                .is_some_and(|answer| query.is_answered_by(id, answer))
            {
                buffer.truncate(length);
                return Ok(buffer);
            }
        }
    }

    async fn by_tcp(&self, server: SocketAddr, query: &Query<'_>, id: u16) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(server).await?;
        let _asking = Asking::new(self, stream.local_addr()?);
        write_message(&mut stream, &query.forwarded(id)).await?;
        let answer = read_message(&mut stream).await?;
        if query.is_answered_by(id, &answer) {
            return Ok(answer);
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it answered something else",
        ))
    }
}

async fn bounded<T>(patience: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| Err(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(patience, work).await.unwrap_or_else(late)
}

/// Messages in a connection come with their length before them.
pub(super) async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    // Grows with what arrives, not with what is announced.
    let mut message = Vec::new();
    stream.take(length.into()).read_to_end(&mut message).await?;
    if message.len() == usize::from(length) {
        return Ok(message);
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// In one piece, so that length and message travel together.
pub(super) async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len().min(LARGEST)).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(message.len() + 2);
    bytes.extend(length.to_be_bytes());
    bytes.extend(message);
    stream.write_all(&bytes).await
}

/// Remembers where a question was sent from for as long as it is open.
struct Asking<'a> {
    upstream: &'a Upstream,
    address: SocketAddr,
}

impl<'a> Asking<'a> {
    fn new(upstream: &'a Upstream, address: SocketAddr) -> Self {
        upstream.asking().insert(address);
        Self { upstream, address }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.upstream.asking().remove(&self.address);
    }
}
