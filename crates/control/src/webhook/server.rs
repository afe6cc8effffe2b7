//! HTTPS for the webhooks: bytes in, bytes out, within limits.
//!
//! The port is open to every pod of the cluster, and the API server cannot be told apart from them. So connections are
//! limited by client address and idle ones give way to new ones (see [`remora_http::limits`]; an API server connects
//! again), a review waits for its turn among few at work, and none of that is done by a thread that accepts.

use super::mutate::mutate;
use super::review::{Answer, Review};
use super::{Counts, Rules, judge, policy};
use crate::tls::HANDSHAKE_TIMEOUT;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use remora_http::{Connection, Permit, Registry, SourceLimiter, TlsConfig};
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// Requests at once on one connection.
const STREAMS_PER_CONNECTION: u32 = 128;

/// Times and sizes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The longest review.
    // istio: 6 MiB; k8s: an object in etcd has at most 1.5 MB, a review carries up to two of them.
    pub body: usize,
    /// For a caller to send its question.
    pub patience: Duration,
    /// Connections at once.
    pub connections: usize,
    /// The same, of one client address.
    pub connections_per_source: usize,
    /// Reviews that are worked on or wait for it, of one client address.
    pub reviews_per_source: usize,
    /// For a review to wait for its turn. Shorter than an API server waits for the answer.
    // k8s: ten seconds unless the webhook's configuration says otherwise.
    pub queue: Duration,
    /// Containers of a pod, all lists together.
    // k8s: there is no limit but the size of an object; real pods have a few dozen at most.
    pub containers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 6 << 20,
            patience: Duration::from_secs(10),
            connections: 1024,
            connections_per_source: 128,
            reviews_per_source: 256,
            queue: Duration::from_secs(5),
            containers: 1000,
        }
    }
}

/// The webhooks of a control plane.
#[derive(Debug)]
pub struct Webhook {
    rules: RwLock<Arc<Rules>>,
    counts: Counts,
    limits: Limits,
    /// Reviews that are worked on.
    at_work: Arc<Semaphore>,
    per_source: Arc<SourceLimiter>,
}

impl Webhook {
    /// With rules, which can be exchanged.
    pub fn new(rules: Rules, limits: Limits) -> Self {
        Self {
            rules: RwLock::new(Arc::new(rules)),
            counts: Counts::default(),
            at_work: Arc::new(Semaphore::new(reviews_at_once())),
            per_source: SourceLimiter::new(limits.reviews_per_source),
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
        config: TlsConfig,
        stop: impl Future<Output = ()>,
    ) {
        let limits = self.limits;
        let registry = Registry::new(remora_http::Limits::new(
            limits.connections,
            limits.connections_per_source,
        ));
        let (closing, closed) = watch::channel(false);
        // Every connection holds a sender: when the last one is dropped all are done.
        let (open, mut all_closed) = mpsc::channel::<()>(1);
        let accepting = remora_http::accept(listener, registry, limits.patience, move |stream| {
            let (webhook, config, open) = (Arc::clone(&self), Arc::clone(&config), open.clone());
            let mut closed = closed.clone();
            async move {
                let connection = stream.connection().clone();
                if let Some(stream) = remora_http::handshake(stream, &config, HANDSHAKE_TIMEOUT).await {
                    let closed = async move { drop(closed.wait_for(|closed| *closed).await) };
                    webhook.converse(TokioIo::new(stream), connection, closed).await;
                }
                drop(open);
            }
        });
        tokio::select! {
            () = accepting => {}
            () = stop => {}
        }
        closing.send_replace(true);
        let _ = tokio::time::timeout(limits.patience, all_closed.recv()).await;
    }

    /// One connection, over which many questions may come.
    async fn converse<I>(self: Arc<Self>, stream: I, connection: Connection, closed: impl Future<Output = ()>)
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
            .max_concurrent_streams(STREAMS_PER_CONNECTION);
        let service = service_fn(move |request| {
            let (webhook, in_flight) = (Arc::clone(&self), connection.request());
            let source = connection.source();
            async move {
                let response = webhook.answer(request, source).await;
                drop(in_flight);
                Ok::<_, Infallible>(response)
            }
        });
        let connection = builder.serve_connection(stream, service);
        tokio::pin!(connection, closed);
        tokio::select! {
            // A client that breaks off needs no answer.
            _ = connection.as_mut() => {}
            () = closed => {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        }
    }

    async fn answer(self: &Arc<Self>, request: Request<Incoming>, source: IpAddr) -> Response<Full<Bytes>> {
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
                Ok(body) => self.review(door, path, body, source).await,
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

    async fn review(
        self: &Arc<Self>,
        door: Door,
        path: String,
        body: Bytes,
        source: IpAddr,
    ) -> Response<Full<Bytes>> {
        let Some(turn) = self.turn(source).await else {
            return said(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many reviews are waiting; try again\n",
            );
        };
        let webhook = Arc::clone(self);
        let work = move || {
            // Held to the end, also when the client left meanwhile: what is worked on counts.
            let _turn = turn;
            webhook.decide(door, &path, &body)
        };
        let Ok(answer) = tokio::task::spawn_blocking(work).await else {
            return said(StatusCode::INTERNAL_SERVER_ERROR, "the review failed\n");
        };
        let mut response = Response::new(Full::new(Bytes::from(answer)));
        response.headers_mut().insert(
            CONTENT_TYPE,
            hyper::header::HeaderValue::from_static("application/json"),
        );
        response
    }

    /// The right to work on a review, when it is this one's turn. A client that leaves meanwhile gives up its place.
    async fn turn(&self, source: IpAddr) -> Option<(Permit, OwnedSemaphorePermit)> {
        let of_source = self.per_source.try_acquire(source)?;
        let turn = Arc::clone(&self.at_work).acquire_owned();
        let turn = tokio::time::timeout(self.limits.queue, turn).await.ok()?.ok()?;
        Some((of_source, turn))
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
        let containers = containers(&review.object);
        if containers > self.limits.containers {
            let message = format!(
                "the pod has {containers} containers; at most {} are looked at",
                self.limits.containers
            );
            self.counts.unreadable();
            return Answer::refuse(message).to_json(&review.head);
        }
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

/// Reviews are work for a CPU: more at once than there are CPUs only use memory.
fn reviews_at_once() -> usize {
    std::thread::available_parallelism().map_or(2, |cpus| cpus.get().clamp(2, 8))
}

/// How many containers a pod has.
fn containers(pod: &serde_json::Value) -> usize {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let lists = lists.iter().filter_map(|list| pod["spec"][list].as_array());
    lists.map(Vec::len).sum()
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
