//! The cluster's DNS server.
//!
//! Answers for the names of Services and pods ([`crate::services::Names`]), over UDP and TCP. Other names are handed
//! to the servers of the host if the run may talk to the outside, and do not exist otherwise.
//! It keeps no cache and asks nobody for names of the cluster's own domain.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;

use crate::services::Names;

pub mod message;

/// Longest wait for a client or for another server.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest answer over UDP: what every client takes.
const UDP_LIMIT: usize = 512;

/// The name servers that a `resolv.conf` lists.
pub fn servers(resolv_conf: &str) -> Vec<SocketAddr> {
    remora_proxy::dns::resolv::Resolv::parse(resolv_conf).servers
}

/// A server with its sockets, bound in the node's namespace.
#[derive(Debug)]
pub struct Server {
    udp: UdpSocket,
    tcp: TcpListener,
    names: watch::Receiver<Arc<Names>>,
    /// Servers of the host, for names that are not the cluster's.
    upstream: Arc<Vec<SocketAddr>>,
}

impl Server {
    /// A server on these sockets.
    pub fn new(
        udp: UdpSocket,
        tcp: TcpListener,
        names: watch::Receiver<Arc<Names>>,
        upstream: Vec<SocketAddr>,
    ) -> Self {
        Self {
            udp,
            tcp,
            names,
            upstream: Arc::new(upstream),
        }
    }

    /// Serves for ever.
    pub async fn serve(self) {
        let udp = Arc::new(self.udp);
        let (names, upstream) = (self.names, self.upstream);
        let over_tcp = serve_tcp(self.tcp, names.clone(), Arc::clone(&upstream));
        tokio::join!(serve_udp(udp, names, upstream), over_tcp);
    }
}

async fn serve_udp(udp: Arc<UdpSocket>, names: watch::Receiver<Arc<Names>>, upstream: Arc<Vec<SocketAddr>>) {
    let mut buffer = vec![0; 4096];
    loop {
        // An error here is a client that went away (ICMP); the socket itself stays good.
        let Ok((length, client)) = udp.recv_from(&mut buffer).await else {
            tokio::task::yield_now().await;
            continue;
        };
        let query = buffer[..length].to_vec();
        let known = Arc::clone(&names.borrow());
        let (udp, upstream) = (Arc::clone(&udp), Arc::clone(&upstream));
        tokio::spawn(async move {
            if let Some(answer) = respond(&query, &known, &upstream, UDP_LIMIT).await {
                // A client that is gone needs no answer.
                let _ = udp.send_to(&answer, client).await;
            }
        });
    }
}

async fn serve_tcp(
    listener: TcpListener,
    names: watch::Receiver<Arc<Names>>,
    upstream: Arc<Vec<SocketAddr>>,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let known = Arc::clone(&names.borrow());
        let upstream = Arc::clone(&upstream);
        tokio::spawn(async move {
            // A client that breaks off gets no answer; there is nobody else to tell.
            let _ = tokio::time::timeout(PATIENCE, talk(stream, &known, &upstream)).await;
        });
    }
}

async fn talk(mut stream: TcpStream, names: &Names, upstream: &[SocketAddr]) -> io::Result<()> {
    loop {
        let length = usize::from(stream.read_u16().await?);
        let mut query = vec![0; length];
        stream.read_exact(&mut query).await?;
        let Some(answer) = respond(&query, names, upstream, usize::from(u16::MAX)).await else {
            return Ok(());
        };
        stream
            .write_u16(u16::try_from(answer.len()).unwrap_or(u16::MAX))
            .await?;
        stream.write_all(&answer).await?;
    }
}

/// The answer to a query; `None` for what is none.
async fn respond(query: &[u8], names: &Names, upstream: &[SocketAddr], limit: usize) -> Option<Vec<u8>> {
    let question = message::Question::read(query)?;
    if Names::is_ours(&question.name) || upstream.is_empty() {
        return Some(message::answer(&question, names, limit));
    }
    for server in upstream {
        if let Ok(Ok(answer)) = tokio::time::timeout(PATIENCE, ask(*server, query)).await {
            return Some(answer);
        }
    }
    Some(message::failure(&question))
}

async fn ask(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any: SocketAddr = if server.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0_u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if buffer.get(..2) == query.get(..2) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}
