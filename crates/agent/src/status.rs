//! HTTP endpoints of the agent.
//!
//! | port | paths |
//! |---|---|
//! | 15020 | `/healthz/ready`, `/stats/prometheus`, `/metrics`, the application's probes and hooks; from inside the pod only, by POST: `/drain`, `/quitquitquit` |
//! | 15021 | `/healthz/ready` |
//! | 15090 | `/stats/prometheus` of the proxy alone |
//!
//! Readiness understands `?wait=MILLIS`: the answer comes when it is 200, when the sidecar stops, or after that time,
//! whichever is first. Nothing here lets another pod look inside.
//!
//! The application's hooks (`/app-lifecycle/`) are run for the kubelet and for processes of this pod only, by address:
//! see [`crate::kubelet`]. Its probes (`/app-health/`) are answered to every client, because a kubelet whose address is
//! not recognised would otherwise never see the pod ready; a client that is not the kubelet learns the status and
//! nothing else, and has a small share of its own (see [`crate::probes`]).

use crate::http::{self, Answer, Request};
use crate::kubelet::{self, KubeletSources, is_local};
use crate::log::Log;
use crate::probes::{Origin, Prober};
use crate::readiness::Readiness;
use crate::scrape::Scraper;
use crate::stop::{Asked, StopSwitch};
use remora_http::{Permit, SourceLimiter};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limits for requests with `?wait=` that are held open: of all clients outside of the pod, and per client address.
const MAX_WAITING: usize = 128;
const MAX_WAITING_PER_SOURCE: usize = 16;
/// The same limits for concurrent metrics scrapes.
const MAX_SCRAPES: usize = 32;
const MAX_SCRAPES_PER_SOURCE: usize = 8;
/// Upper limit of `?wait=`, so that a connection is not held indefinitely.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// Response header that confirms to the client that `?wait=` was honoured.
pub(crate) const WAITED_HEADER: &str = "remora-waited";

/// State behind the endpoints.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) readiness: Readiness,
    pub(crate) switch: StopSwitch,
    pub(crate) prober: Arc<Prober>,
    pub(crate) kubelet: KubeletSources,
    pub(crate) strangers: Strangers,
    /// Limit for requests that wait for readiness.
    pub(crate) waiting: Share,
    /// Limit for metrics scrapes.
    pub(crate) scraping: Share,
    pub(crate) scraper: Scraper,
    /// Whether metrics are served to processes of the pod only.
    pub(crate) private_metrics: bool,
}

/// Limit for work that holds a connection open: in total, and per client address.
#[derive(Debug)]
pub(crate) struct Share {
    all: Arc<Semaphore>,
    per_source: Arc<SourceLimiter>,
}

/// Permit for one unit of work; released on drop.
#[derive(Debug)]
pub(crate) struct Granted {
    _all: Option<OwnedSemaphorePermit>,
    _of_source: Permit,
}

impl Share {
    pub(crate) fn waiting() -> Self {
        Self::new(MAX_WAITING, MAX_WAITING_PER_SOURCE)
    }

    pub(crate) fn scraping() -> Self {
        Self::new(MAX_SCRAPES, MAX_SCRAPES_PER_SOURCE)
    }

    fn new(all: usize, per_source: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            per_source: SourceLimiter::new(per_source),
        }
    }

    /// Processes of the pod do not count towards the total, so clients outside of it cannot use up their share.
    pub(crate) fn try_acquire(&self, source: IpAddr) -> Option<Granted> {
        let of_source = self.per_source.try_acquire(source)?;
        let all = if is_local(source) {
            None
        } else {
            Some(Arc::clone(&self.all).try_acquire_owned().ok()?)
        };
        Some(Granted {
            _all: all,
            _of_source: of_source,
        })
    }
}

/// Logs once that a hook was refused: the client may be a kubelet with an unexpected address.
#[derive(Debug)]
pub(crate) struct Strangers {
    log: Log,
    said: AtomicBool,
}

impl Strangers {
    pub(crate) fn new(log: Log) -> Self {
        Self {
            log,
            said: AtomicBool::new(false),
        }
    }

    fn refused(&self, peer: IpAddr, known: &KubeletSources) {
        if !self.said.swap(true, Ordering::Relaxed) {
            self.log.warning(format_args!(
                "refused a hook of the application to {peer}, which is not the kubelet ({known}); if it is, name it \
                 in {}",
                kubelet::VARIABLE
            ));
        }
    }
}

/// Answers on 15021.
pub(crate) async fn readiness_port(request: Request, peer: SocketAddr, desk: Arc<Desk>) -> Answer {
    match request.uri().path() {
        "/healthz/ready" => ready(&request, peer.ip(), &desk).await,
        _ => http::text(404, "only /healthz/ready is here\n"),
    }
}

/// Answers on 15090.
pub(crate) fn metrics_port(request: &Request, desk: &Desk) -> Answer {
    match request.uri().path() {
        "/stats/prometheus" => desk.scraper.proxy_page(),
        _ => http::text(404, "only /stats/prometheus is here\n"),
    }
}

/// Answers on 15020.
pub(crate) async fn agent_port(request: Request, peer: SocketAddr, desk: Arc<Desk>) -> Answer {
    let path = request.uri().path();
    let local = is_local(peer.ip());
    match path {
        "/healthz/ready" => ready(&request, peer.ip(), &desk).await,
        "/stats/prometheus" | "/metrics" => {
            if desk.private_metrics && !local {
                return http::text(403, "only from inside the pod\n");
            }
            let Some(_granted) = desk.scraping.try_acquire(peer.ip()) else {
                return http::text(503, "too many pages are being collected\n");
            };
            desk.scraper.page(request.headers()).await
        }
        "/drain" => command(&request, local, &desk, Asked::Drain),
        "/quitquitquit" => command(&request, local, &desk, Asked::Quit),
        _ if path.starts_with("/app-lifecycle/") => hook(&request, peer.ip(), &desk).await,
        _ if path.starts_with("/app-health/") => {
            let origin = origin(peer.ip(), &desk.kubelet);
            desk.prober.answer(path, request.headers(), origin).await
        }
        _ => http::text(404, "no such thing\n"),
    }
}

fn origin(peer: IpAddr, kubelet: &KubeletSources) -> Origin {
    if kubelet.contains(peer) {
        Origin::Kubelet
    } else {
        Origin::Other(peer)
    }
}

/// A hook changes the state of the application, so it is run for the kubelet only.
async fn hook(request: &Request, peer: IpAddr, desk: &Desk) -> Answer {
    match origin(peer, &desk.kubelet) {
        Origin::Kubelet => {
            let path = request.uri().path();
            desk.prober.answer(path, request.headers(), Origin::Kubelet).await
        }
        Origin::Other(peer) => {
            desk.strangers.refused(peer, &desk.kubelet);
            http::text(403, "only for the kubelet\n")
        }
    }
}

fn command(request: &Request, local: bool, desk: &Desk, asked: Asked) -> Answer {
    if !local {
        return http::text(403, "only from inside the pod\n");
    }
    if request.method() != ::http::Method::POST {
        return http::text(405, "use POST\n");
    }
    desk.switch.ask(asked);
    // istio: the response of both endpoints.
    http::text(200, "OK")
}

async fn ready(request: &Request, peer: IpAddr, desk: &Desk) -> Answer {
    let wait = http::query(request, "wait").and_then(|text| text.parse().ok());
    // A client with too many waiting requests gets its response immediately.
    let granted = wait.and_then(|_| desk.waiting.try_acquire(peer));
    let wait = wait.filter(|_| granted.is_some());
    let wait = wait.map(|millis| Duration::from_millis(millis).min(MAX_WAIT));
    if let Some(wait) = wait {
        // After the timeout the response names the missing stage.
        let _ = tokio::time::timeout(wait, desk.readiness.settled()).await;
    }
    let state = desk.readiness.state();
    let (status, body) = state.answer(SystemTime::now());
    let mut answer = http::json(status, &body);
    // A stopping sidecar does not become ready. Without the header the client polls instead of retrying immediately.
    if wait.is_some() && !state.is_stopping() {
        answer
            .headers_mut()
            .insert(WAITED_HEADER, ::http::HeaderValue::from_static("true"));
    }
    answer
}

#[cfg(test)]
mod tests;
