//! What the agent answers on its ports.
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

/// Requests with `?wait=` that are held open, of all clients outside of the pod and of one client address.
const WAITING: usize = 128;
const WAITING_PER_SOURCE: usize = 16;
/// Pages of metrics that are being collected, likewise.
const SCRAPES: usize = 32;
const SCRAPES_PER_SOURCE: usize = 8;
/// Longer waits are cut to this: a connection is not held without end.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// Tells a caller that its wait was understood.
pub(crate) const WAITED: &str = "remora-waited";

/// Everything that can be asked for.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) readiness: Readiness,
    pub(crate) switch: StopSwitch,
    pub(crate) prober: Arc<Prober>,
    pub(crate) kubelet: KubeletSources,
    pub(crate) strangers: Strangers,
    /// Requests that wait for readiness.
    pub(crate) waiting: Share,
    /// Pages that are being collected.
    pub(crate) scraping: Share,
    pub(crate) scraper: Scraper,
    /// Metrics are for the pod itself only.
    pub(crate) private_metrics: bool,
}

/// Work that holds a connection open: bounded for all clients, and for each of them.
#[derive(Debug)]
pub(crate) struct Share {
    all: Arc<Semaphore>,
    per_source: Arc<SourceLimiter>,
}

/// The right to one piece of work.
#[derive(Debug)]
pub(crate) struct Granted {
    _all: Option<OwnedSemaphorePermit>,
    _of_source: Permit,
}

impl Share {
    pub(crate) fn waiting() -> Self {
        Self::new(WAITING, WAITING_PER_SOURCE)
    }

    pub(crate) fn scraping() -> Self {
        Self::new(SCRAPES, SCRAPES_PER_SOURCE)
    }

    fn new(all: usize, per_source: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            per_source: SourceLimiter::new(per_source),
        }
    }

    /// Processes of the pod itself do not compete with clients outside of it.
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

/// Says once that a hook was refused: it may be the kubelet of an unusual network.
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

/// A hook does something to the application, so it is run for the kubelet only.
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
    // istio: the answer of both.
    http::text(200, "OK")
}

async fn ready(request: &Request, peer: IpAddr, desk: &Desk) -> Answer {
    let wait = http::query(request, "wait").and_then(|text| text.parse().ok());
    // A client with too many requests waiting gets its answer now.
    let granted = wait.and_then(|_| desk.waiting.try_acquire(peer));
    let wait = wait.filter(|_| granted.is_some());
    let wait = wait.map(|millis| Duration::from_millis(millis).min(LONGEST_WAIT));
    if let Some(wait) = wait {
        // Time over is as good: then the answer says what is missing.
        let _ = tokio::time::timeout(wait, desk.readiness.settled()).await;
    }
    let state = desk.readiness.state();
    let (status, body) = state.answer(SystemTime::now());
    let mut answer = http::json(status, &body);
    // One that stops will not be ready: asking again at once would only keep it busy.
    if wait.is_some() && !state.is_stopping() {
        answer
            .headers_mut()
            .insert(WAITED, ::http::HeaderValue::from_static("true"));
    }
    answer
}

#[cfg(test)]
mod tests;
