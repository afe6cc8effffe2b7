//! HTTPS for the webhooks: bytes in, bytes out, within limits.

use super::mutate::mutate;
use super::review::{Answer, Review};
use super::{Counts, Rules, judge, policy};
use crate::tls;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

/// Reviews longer than this are worked on beside the event loop.
const LONG: usize = 64 << 10;

/// Times and sizes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The longest review.
    // istio: 6 MiB; k8s: an object in etcd has at most 1.5 MB, a review carries up to two of them.
    pub body: usize,
    /// For a caller to send its question.
    pub patience: Duration,
    /// Callers at once.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 6 << 20,
            patience: Duration::from_secs(10),
            connections: 512,
        }
    }
}

/// The webhooks of a control plane.
#[derive(Debug)]
pub struct Webhook {
    rules: RwLock<Arc<Rules>>,
    counts: Counts,
    limits: Limits,
}

impl Webhook {
    /// With rules, which can be exchanged.
    pub fn new(rules: Rules, limits: Limits) -> Self {
        Self {
            rules: RwLock::new(Arc::new(rules)),
            counts: Counts::default(),
            limits,
        }
    }

    /// The rules for questions that come from now on.
    pub fn publish(&self, rules: Rules) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What was asked so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Serves until `stop` is ready; questions that are being answered get their answer.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        config: Arc<RwLock<Arc<ServerConfig>>>,
        stop: impl Future<Output = ()>,
    ) {
        let (ready, mut connections) = mpsc::channel(16);
        let accepting = tokio::spawn(tls::accept(listener, config, ready));
        let room = Arc::new(Semaphore::new(self.limits.connections));
        let (closing, _) = tokio::sync::watch::channel(false);
        tokio::pin!(stop);
        loop {
            let connection = tokio::select! {
                connection = connections.recv() => connection,
                () = &mut stop => break,
            };
            let Some(Ok(stream)) = connection else { break };
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
                break;
            };
            let webhook = Arc::clone(&self);
            let mut closed = closing.subscribe();
            tokio::spawn(async move {
                webhook
                    .converse(TokioIo::new(stream), async move {
                        let _ = closed.wait_for(|closed| *closed).await;
                    })
                    .await;
                drop(permit);
            });
        }
        accepting.abort();
        closing.send_replace(true);
        let all = u32::try_from(self.limits.connections).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(self.limits.patience, room.acquire_many(all)).await;
    }

    /// One connection, over which many questions may come.
    async fn converse<I>(self: Arc<Self>, stream: I, closed: impl Future<Output = ()>)
    where
        I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(Some(self.limits.patience))
            .max_buf_size(64 << 10);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(self.limits.patience))
            .max_concurrent_streams(256);
        let service = service_fn(move |request| {
            let webhook = Arc::clone(&self);
            async move { Ok::<_, Infallible>(webhook.answer(request).await) }
        });
        let connection = builder.serve_connection(stream, service);
        tokio::pin!(connection, closed);
        tokio::select! {
            // A caller that breaks off has nobody to be told.
            _ = connection.as_mut() => {}
            () = closed => {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        }
    }

    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        match Door::of(&path) {
            None => said(
                StatusCode::NOT_FOUND,
                "only /inject, /check and /policy are here\n",
            ),
            Some(_) if request.method() != Method::POST => {
                let mut response = said(StatusCode::METHOD_NOT_ALLOWED, "an admission review is posted\n");
                response
                    .headers_mut()
                    .insert(ALLOW, hyper::header::HeaderValue::from_static("POST"));
                response
            }
            Some(_) if !is_json(&request) => said(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "Content-Type must be application/json\n",
            ),
            Some(door) => match self.body(request).await {
                Ok(body) => self.review(door, path, body).await,
                Err(refusal) => refusal,
            },
        }
    }

    async fn body(&self, request: Request<Incoming>) -> Result<Bytes, Response<Full<Bytes>>> {
        let reading = Limited::new(request.into_body(), self.limits.body).collect();
        match tokio::time::timeout(self.limits.patience, reading).await {
            Err(_) => Err(said(StatusCode::REQUEST_TIMEOUT, "the body took too long\n")),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                let text = format!("the body is longer than {} bytes\n", self.limits.body);
                Err(said(StatusCode::BAD_REQUEST, text))
            }
            Ok(Err(_)) => Err(said(StatusCode::BAD_REQUEST, "the body broke off\n")),
            Ok(Ok(body)) => {
                let body = body.to_bytes();
                if body.is_empty() {
                    return Err(said(StatusCode::BAD_REQUEST, "the body is empty\n"));
                }
                Ok(body)
            }
        }
    }

    async fn review(self: &Arc<Self>, door: Door, path: String, body: Bytes) -> Response<Full<Bytes>> {
        let answer = if body.len() > LONG {
            let webhook = Arc::clone(self);
            match tokio::task::spawn_blocking(move || webhook.decide(door, &path, &body)).await {
                Ok(answer) => answer,
                Err(_) => return said(StatusCode::INTERNAL_SERVER_ERROR, "the review failed\n"),
            }
        } else {
            self.decide(door, &path, &body)
        };
        let mut response = Response::new(Full::new(Bytes::from(answer)));
        response.headers_mut().insert(
            CONTENT_TYPE,
            hyper::header::HeaderValue::from_static("application/json"),
        );
        response
    }

    /// From a body to a body.
    fn decide(&self, door: Door, path: &str, body: &[u8]) -> Vec<u8> {
        let began = Instant::now();
        let rules = self.rules();
        let review = match Review::parse(body) {
            Ok(review) => review,
            Err(unreadable) => {
                self.counts.unreadable();
                return Answer::refuse(unreadable.error.to_string()).to_json(&unreadable.head);
            }
        };
        let answer = match door {
            Door::Inject => {
                let (answer, outcome) = mutate(&review, path, &rules);
                self.counts.mutated(outcome, began.elapsed());
                answer
            }
            Door::Check => {
                let (answer, _) = judge::judge(&review, &rules);
                self.counts.judged(!answer.allowed);
                answer
            }
            Door::Policy => policy::judge(&review, &rules.policies),
        };
        answer.to_json(&review.head)
    }
}

/// Where a question can be put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    Inject,
    Check,
    Policy,
}

impl Door {
    fn of(path: &str) -> Option<Self> {
        match path.strip_prefix('/')?.split('/').next()? {
            "inject" => Some(Self::Inject),
            "check" => Some(Self::Check),
            "policy" => Some(Self::Policy),
            _ => None,
        }
    }
}

fn is_json(request: &Request<Incoming>) -> bool {
    let said = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    said.and_then(|value| value.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

fn said(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
}
