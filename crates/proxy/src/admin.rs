//! Questions about a proxy, on a port of the loopback interface (15000).
//!
//! | path | answer |
//! |---|---|
//! | `GET /config_dump` | what the proxy knows and how it behaves; certificates without keys |
//! | `GET /connections` | connections that are open |
//! | `GET /why?src=WHO&dst=WHERE:PORT` | everything that would happen to a connection; `&format=json` |
//! | `GET /stats/prometheus` | metrics |
//! | `GET /healthz/ready` | 200, or 503 once the drain has begun |
//! | `GET /logging`, `POST /logging?level=info` | which lines the access log has: `off`, `error`, `info` |
//! | `POST /quitquitquit` | begins the end: drain, then stop |
//! | `GET /debug/pprof/profile?seconds=10`, `/debug/memory`, `/debug/threads?seconds=1` | where profiling is switched on |
//!
//! Who asks must be on the same host, and must have meant it: a page in a browser that was made to ask gets nothing.
//! Of memory there is what the kernel and the allocator say; of CPU time a profile of the innermost functions.

mod dump;
mod profile;
mod why;

use crate::access::log::Level;
use crate::context::Context;
use crate::drain::Phase;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Also ends connections that ask nothing.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection is closed after this, whatever it does.
const LONGEST: Duration = Duration::from_mins(2);
const CONNECTIONS: usize = 32;
const LARGEST_HEAD: usize = 16 << 10;
/// After an error of accept, so that a proxy without descriptors does not spin.
const PAUSE: Duration = Duration::from_millis(20);

type Answer = Response<Full<Bytes>>;

/// Answers until dropped.
pub(crate) async fn serve(listeners: Vec<TcpListener>, ctx: Arc<Context>) {
    let budget = Arc::new(Semaphore::new(CONNECTIONS));
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept(listener, Arc::clone(&ctx), Arc::clone(&budget)));
    }
    while accepting.join_next().await.is_some() {}
}

async fn accept(listener: TcpListener, ctx: Arc<Context>, budget: Arc<Semaphore>) {
    let mut serving = JoinSet::new();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        while serving.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&budget).try_acquire_owned() else {
            continue;
        };
        let ctx = Arc::clone(&ctx);
        serving.spawn(async move {
            let _ = tokio::time::timeout(LONGEST, connection(stream, peer, ctx)).await;
            drop(permit);
        });
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, ctx: Arc<Context>) {
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let ctx = Arc::clone(&ctx);
        async move { Ok::<_, Infallible>(answer(&request, peer, &ctx).await) }
    });
    // A peer that goes away needs no answer.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer<B>(request: &Request<B>, peer: SocketAddr, ctx: &Context) -> Answer {
    if !peer.ip().to_canonical().is_loopback() {
        return text(StatusCode::FORBIDDEN, "only from the same host\n");
    }
    if !is_meant(request) {
        return text(StatusCode::FORBIDDEN, "only under the name of the same host\n");
    }
    let is_get = request.method() == Method::GET;
    match (request.uri().path(), is_get) {
        ("/config_dump", true) => json(&dump::config(ctx)),
        ("/connections", true) => json(&dump::connections(ctx)),
        ("/why", true) => why::answer(
            ctx,
            &query(request, "src"),
            &query(request, "dst"),
            wants_json(request),
        ),
        ("/stats/prometheus", true) => metrics(ctx),
        ("/healthz/ready", true) => ready(ctx),
        ("/logging", _) => logging(request, ctx),
        ("/quitquitquit", false) if request.method() == Method::POST => {
            ctx.drain.advance(Phase::Draining);
            text(StatusCode::OK, "OK\n")
        }
        ("/quitquitquit", _) => text(StatusCode::METHOD_NOT_ALLOWED, "only POST\n"),
        (path, true) if path.starts_with("/debug/") && !ctx.profiling => text(
            StatusCode::FORBIDDEN,
            "profiling is not switched on (--profiling)\n",
        ),
        ("/debug/memory", true) => json(&profile::memory()),
        ("/debug/threads", true) => {
            let seconds = query(request, "seconds").parse().unwrap_or(1);
            json(&profile::threads(Duration::from_secs(seconds)).await)
        }
        ("/debug/pprof/profile", true) => {
            let seconds = query(request, "seconds").parse().unwrap_or(10);
            match profile::cpu(Duration::from_secs(seconds)).await {
                Ok(bytes) => typed(StatusCode::OK, "application/octet-stream", bytes),
                Err(error) => text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    format!("no profile now: {error}\n"),
                ),
            }
        }
        ("/" | "/help", true) => text(StatusCode::OK, HELP),
        (_, true) => text(StatusCode::NOT_FOUND, HELP),
        _ => text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"),
    }
}

const HELP: &str = "\
GET  /config_dump
GET  /connections
GET  /why?src=WHO&dst=WHERE:PORT[&format=json]
GET  /stats/prometheus
GET  /healthz/ready
GET  /logging
POST /logging?level=off|error|info
POST /quitquitquit
GET  /debug/pprof/profile?seconds=10, /debug/memory, /debug/threads?seconds=1 (where profiling is switched on)
";

/// A page that a browser loads from elsewhere can send requests to the loopback interface, but only under its own name.
fn is_meant<B>(request: &Request<B>) -> bool {
    let host = request.headers().get(header::HOST);
    let Some(host) = host.and_then(|host| host.to_str().ok()) else {
        // HTTP/1.0 knows no names.
        return request.headers().get(header::HOST).is_none();
    };
    let Ok(authority) = host.parse::<http::uri::Authority>() else {
        return false;
    };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let address = name.parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn metrics(ctx: &Context) -> Answer {
    typed(
        StatusCode::OK,
        "text/plain; version=0.0.4; charset=utf-8",
        ctx.metrics.render(),
    )
}

fn ready(ctx: &Context) -> Answer {
    if ctx.drain.phase() == Phase::Running {
        return text(StatusCode::OK, "ready\n");
    }
    text(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
}

/// Changed by POST only: looking must not change anything.
fn logging<B>(request: &Request<B>, ctx: &Context) -> Answer {
    let Some(log) = &ctx.access_log else {
        return text(StatusCode::NOT_FOUND, "there is no access log\n");
    };
    let wanted = query(request, "level");
    if !wanted.is_empty() {
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only POST changes the level\n");
        }
        let Ok(level) = wanted.parse::<Level>() else {
            let words = Level::ALL.map(Level::word).join(", ");
            return text(
                StatusCode::BAD_REQUEST,
                format!("{wanted:?} is none of {words}\n"),
            );
        };
        log.set_level(level);
    }
    text(StatusCode::OK, format!("level: {}\n", log.level().word()))
}

fn wants_json<B>(request: &Request<B>) -> bool {
    let accepted = request.headers().get(header::ACCEPT);
    query(request, "format") == "json" || accepted.is_some_and(|kind| kind == "application/json")
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    typed(status, "text/plain; charset=utf-8", body)
}

fn json(value: &serde_json::Value) -> Answer {
    typed(StatusCode::OK, "application/json", format!("{value:#}\n"))
}

fn typed(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// The value of a word in the query; empty if there is none.
fn query<B>(request: &Request<B>, name: &str) -> String {
    let pairs = request.uri().query().unwrap_or_default().split('&');
    let mut values = pairs.filter_map(|pair| pair.split_once('='));
    let value = values.find(|(key, _)| *key == name).map(|(_, value)| value);
    decoded(value.unwrap_or_default())
}

/// Without `%XX`; what is none stays.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *first == b'%');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        let byte = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = after
            .get(if byte.is_some() { 2 } else { 0 }..)
            .unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
