//! What a kubelet and a Prometheus ask of a control plane, over plain HTTP: `/live`, `/ready`, `/metrics`.
//!
//! A kubelet that gets no answer restarts the control plane. So these are answered by a thread of their own
//! ([`serve_apart`]): no work of the control plane holds them up; and other clients of the port cannot: a connection
//! carries one request, has little time to make it, and gives way to newer ones.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Response, StatusCode};
use remora_http::{Http1, Limits, Registry, accept, http1};
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

const CONNECTIONS: usize = 512;
const CONNECTIONS_PER_SOURCE: usize = 64;

/// Where the metrics come from.
pub type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

/// Answers until it is dropped.
pub async fn serve(listener: TcpListener, ready: watch::Receiver<bool>, metrics: Metrics) {
    let registry = Registry::new(Limits::new(CONNECTIONS, CONNECTIONS_PER_SOURCE));
    let options = Http1::probes();
    accept(listener, registry, options.head_timeout, |stream| {
        let (ready, metrics) = (ready.clone(), Arc::clone(&metrics));
        http1(stream, options, move |request, _| {
            let (status, text) = answer(request.method(), request.uri().path(), *ready.borrow(), &metrics);
            let mut response = Response::new(Full::new(Bytes::from(text)));
            *response.status_mut() = status;
            std::future::ready(response)
        })
    })
    .await;
}

/// Answers from a thread of its own, for the life of the process.
pub fn serve_apart(
    listener: std::net::TcpListener,
    ready: watch::Receiver<bool>,
    metrics: Metrics,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let work = move || {
        runtime.block_on(async move {
            if let Ok(listener) = TcpListener::from_std(listener) {
                serve(listener, ready, metrics).await;
            }
        });
    };
    std::thread::Builder::new()
        .name("status".to_owned())
        .stack_size(512 << 10)
        .spawn(work)?;
    Ok(())
}

fn answer(method: &Method, path: &str, ready: bool, metrics: &Metrics) -> (StatusCode, String) {
    if method != Method::GET {
        return (StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned());
    }
    match path {
        "/live" => (StatusCode::OK, "alive\n".to_owned()),
        "/ready" if ready => (StatusCode::OK, "ready\n".to_owned()),
        "/ready" => {
            let text = "the cluster was not read yet\n".to_owned();
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
        "/metrics" => (StatusCode::OK, metrics()),
        _ => (
            StatusCode::NOT_FOUND,
            "only /live, /ready and /metrics are here\n".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::answer;
    use hyper::{Method, StatusCode};
    use std::sync::Arc;

    #[test]
    fn readiness_is_told_apart_from_life() {
        let metrics: super::Metrics = Arc::new(|| "m 1\n".to_owned());
        let get = |path: &str, ready| answer(&Method::GET, path, ready, &metrics).0;
        assert_eq!(get("/live", false), StatusCode::OK);
        assert_eq!(get("/ready", false), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(get("/ready", true), StatusCode::OK);
        assert_eq!(get("/debug", true), StatusCode::NOT_FOUND);
        assert_eq!(
            answer(&Method::POST, "/live", true, &metrics).0,
            StatusCode::METHOD_NOT_ALLOWED
        );
    }
}
