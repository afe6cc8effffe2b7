//! HTTP for users and probes: one small server under all ports of the agent.
//!
//! HTTP/1 only. Every port is reachable from the whole network, so each has its own limits: connections in total,
//! connections per client address, and a timeout for the request head. A port never stops accepting: the least important
//! connection is closed to make room (see [`remora_http::limits`]). So other clients cannot block the kubelet.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
pub(crate) use remora_http::Http1;
use remora_http::{Limits, Registry, accept, http1};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Connection limits of one port: in total and per client address.
const MAX_CONNECTIONS: usize = 512;
const MAX_CONNECTIONS_PER_SOURCE: usize = 64;

pub(crate) type Request = http::Request<Incoming>;
pub(crate) type Answer = Response<Full<Bytes>>;

/// A response with a status and a text body.
pub(crate) fn text(status: u16, body: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}

/// A response with a status and a JSON body.
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

/// Value of a query parameter.
pub(crate) fn query<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let pairs = request.uri().query()?.split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(key, value)| (key == name).then_some(value))
}

/// For users and Prometheus: keep-alive, with a timeout for every request head.
pub(crate) fn pages() -> Http1 {
    Http1 {
        keep_alive: true,
        ..Http1::probes()
    }
}

/// Serves on all listeners of a port until dropped. The handler receives the client's address.
pub(crate) async fn serve<H, F>(listeners: Vec<TcpListener>, options: Http1, handler: H)
where
    H: Fn(Request, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let registry = Registry::new(Limits::new(MAX_CONNECTIONS, MAX_CONNECTIONS_PER_SOURCE));
    let mut accepting = tokio::task::JoinSet::new();
    for listener in listeners {
        let (registry, handler) = (Arc::clone(&registry), handler.clone());
        accepting.spawn(accept(listener, registry, options.head_timeout, move |stream| {
            let handler = handler.clone();
            http1(stream, options, move |request, connection| {
                handler(request, connection.peer())
            })
        }));
    }
    while accepting.join_next().await.is_some() {}
}
