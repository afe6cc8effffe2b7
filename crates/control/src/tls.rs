//! The TLS port of discovery and certificates: which connections it holds, and for how long without a token.

use remora_http::{Accepted, Connection, Limits, Registry, TlsConfig};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// From the connection to the first request with a good token.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(15);

/// How many connections discovery holds. One source may be a node behind which many pods are, so the limit of those
/// that authenticated is high; the limit of others is not.
pub(crate) fn discovery_limits() -> Limits {
    Limits {
        connections: 16_384,
        per_source: 1024,
        pending: 2048,
        pending_per_source: 64,
    }
}

/// Passes on connections whose handshake is done, until the receiver goes away.
pub(crate) async fn accept(
    listener: TcpListener,
    config: TlsConfig,
    ready: mpsc::Sender<io::Result<Client>>,
) {
    let registry = Registry::new(discovery_limits());
    let gone = ready.clone();
    let accepting = remora_http::accept(listener, registry, AUTHENTICATION_TIMEOUT, move |stream| {
        let (config, ready) = (Arc::clone(&config), ready.clone());
        async move {
            if let Some(stream) = remora_http::handshake(stream, &config, HANDSHAKE_TIMEOUT).await {
                let _ = ready.send(Ok(Client(stream))).await;
            }
        }
    });
    tokio::select! {
        () = accepting => {}
        () = gone.closed() => {}
    }
}

/// A client whose handshake is done. Requests carry its [`Connection`].
pub(crate) struct Client(TlsStream<Accepted>);

impl Connected for Client {
    type ConnectInfo = Connection;

    fn connect_info(&self) -> Connection {
        self.0.get_ref().0.connection().clone()
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
