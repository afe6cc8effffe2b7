//! HTTP for people and probes: one small server under all of the agent's ports.
//!
//! HTTP/1 only. Bounded: so many connections at once, so long for a request's head, so long for an idle connection.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Also ends connections that ask nothing.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECTIONS: usize = 512;
/// After an error of accept, so that an agent without descriptors does not spin.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) type Request = http::Request<Incoming>;
pub(crate) type Answer = Response<Full<Bytes>>;

/// An answer with a status and a text.
pub(crate) fn text(status: u16, body: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}

/// An answer with a status and a value.
pub(crate) fn json(status: u16, value: &serde_json::Value) -> Answer {
    answer(status, "application/json", format!("{value}\n"))
}

pub(crate) fn answer(status: u16, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

/// The value of a word in a query.
pub(crate) fn query<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let pairs = request.uri().query()?.split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(key, value)| (key == name).then_some(value))
}

/// Serves on all listeners until dropped. The handler is told who asks.
pub(crate) async fn serve<H, F>(listeners: Vec<TcpListener>, handler: H)
where
    H: Fn(Request, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let budget = Arc::new(Semaphore::new(CONNECTIONS));
    let mut accepting = tokio::task::JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept(listener, handler.clone(), Arc::clone(&budget)));
    }
    while accepting.join_next().await.is_some() {}
}

async fn accept<H, F>(listener: TcpListener, handler: H, budget: Arc<Semaphore>)
where
    H: Fn(Request, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // Above the limit the connection is closed at once: a probe that fails says more than one that hangs.
        let Ok(permit) = Arc::clone(&budget).try_acquire_owned() else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        let handler = handler.clone();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(|request| {
                let answer = handler(request, peer);
                async { Ok::<_, Infallible>(answer.await) }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(permit);
        });
    }
}
