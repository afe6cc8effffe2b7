//! The accept loop, and TLS and HTTP/1 on top of it.

use crate::registry::{Connection, Registry};
use crate::stream::Tracked;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// After an error of accept, so that a process without descriptors does not spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(20);
/// The largest head of a request.
const HEAD_BYTES: usize = 16 << 10;

/// A connection that was admitted.
pub type Accepted = Tracked<TcpStream>;

/// The TLS configuration for new connections, which may be exchanged.
pub type TlsConfig = Arc<RwLock<Arc<ServerConfig>>>;

/// Accepts until dropped; never waits for room. A client must make its first request within `pending` (or authenticate,
/// where the handler says so by [`Connection::trust`] only).
pub async fn accept<H, F>(listener: TcpListener, registry: Arc<Registry>, pending: Duration, handle: H)
where
    H: Fn(Accepted) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Most often no descriptors are left.
            registry.shed();
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        let Some((connection, eviction)) = registry.admit(peer) else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        tokio::spawn(handle(Tracked::new(stream, connection, eviction, pending)));
    }
}

/// The TLS handshake with a client, within a time. Nothing if it failed: the client knows why.
pub async fn handshake(
    stream: Accepted,
    config: &TlsConfig,
    timeout: Duration,
) -> Option<TlsStream<Accepted>> {
    let config = Arc::clone(&config.read().unwrap_or_else(PoisonError::into_inner));
    let handshake = TlsAcceptor::from(config).accept(stream);
    tokio::time::timeout(timeout, handshake).await.ok()?.ok()
}

/// How HTTP/1 is spoken.
#[derive(Debug, Clone, Copy)]
pub struct Http1 {
    /// For a request's head, from the end of the request before it.
    pub head_timeout: Duration,
    /// Whether a connection may carry several requests.
    pub keep_alive: bool,
}

impl Http1 {
    /// For health endpoints: a connection carries one request, and has little time for it.
    pub fn probes() -> Self {
        Self {
            head_timeout: Duration::from_secs(5),
            keep_alive: false,
        }
    }
}

/// Answers the requests of one connection.
pub async fn http1<H, F>(stream: Accepted, options: Http1, handler: H)
where
    H: Fn(Request<Incoming>, Connection) -> F,
    F: Future<Output = Response<Full<Bytes>>>,
{
    let connection = stream.connection().clone();
    let service = hyper::service::service_fn(|request| {
        let in_flight = connection.request();
        let response = handler(request, connection.clone());
        async move {
            let response = response.await;
            drop(in_flight);
            Ok::<_, Infallible>(response)
        }
    });
    // A client that breaks off needs no answer.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(options.head_timeout)
        .keep_alive(options.keep_alive)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
