//! The agent's services for Envoy, without Envoy: SDS and xDS over unix sockets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "envoy_streams/discovery.rs"]
mod discovery;
#[path = "envoy_streams/secrets.rs"]
mod secrets;

use hyper_util::rt::TokioIo;
use std::future::Future;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// Timeout for steps that normally complete immediately.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A channel to a unix socket.
fn channel(path: &Path) -> Channel {
    let path = path.to_owned();
    Endpoint::from_static("http://agent").connect_with_connector_lazy(tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    }))
}

/// The result, or a failure after a while.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, what).await.unwrap()
}
