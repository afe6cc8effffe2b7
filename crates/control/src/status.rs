//! What a kubelet and a Prometheus ask of a control plane, over plain HTTP: `/live`, `/ready`, `/metrics`.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

const PATIENCE: Duration = Duration::from_secs(5);
const CALLERS: usize = 64;
const PAUSE: Duration = Duration::from_millis(50);

/// Where the metrics come from.
pub type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

/// Answers until it is dropped.
pub async fn serve(listener: TcpListener, ready: watch::Receiver<bool>, metrics: Metrics) {
    let room = Arc::new(Semaphore::new(CALLERS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (ready, metrics) = (ready.clone(), Arc::clone(&metrics));
        tokio::spawn(async move {
            converse(stream, ready, metrics).await;
            drop(permit);
        });
    }
}

async fn converse(stream: TcpStream, ready: watch::Receiver<bool>, metrics: Metrics) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (status, text) = answer(request.method(), request.uri().path(), *ready.borrow(), &metrics);
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Some(PATIENCE))
        .serve_connection(TokioIo::new(stream), service)
        .await;
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
