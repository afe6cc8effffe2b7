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

use crate::http::{self, Answer, Request};
use crate::probes::Prober;
use crate::readiness::Readiness;
use crate::scrape::Scraper;
use crate::stop::{Asked, StopSwitch};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Longer waits are cut to this, so that nobody holds connections for ever.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// Tells a caller that its wait was understood.
pub(crate) const WAITED: &str = "remora-waited";

/// Everything that can be asked for.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) readiness: Readiness,
    pub(crate) switch: StopSwitch,
    pub(crate) prober: Arc<Prober>,
    pub(crate) scraper: Scraper,
    /// Metrics are for the pod itself only.
    pub(crate) private_metrics: bool,
}

/// Answers on 15021.
pub(crate) async fn readiness_port(request: Request, desk: Arc<Desk>) -> Answer {
    match request.uri().path() {
        "/healthz/ready" => ready(&request, &desk.readiness).await,
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
        "/healthz/ready" => ready(&request, &desk.readiness).await,
        "/stats/prometheus" | "/metrics" => {
            if desk.private_metrics && !local {
                return http::text(403, "only from inside the pod\n");
            }
            desk.scraper.page(request.headers()).await
        }
        "/drain" => command(&request, local, &desk, Asked::Drain),
        "/quitquitquit" => command(&request, local, &desk, Asked::Quit),
        _ if path.starts_with("/app-health/") || path.starts_with("/app-lifecycle/") => {
            desk.prober.answer(path, request.headers()).await
        }
        _ => http::text(404, "no such thing\n"),
    }
}

/// Whether somebody inside the pod asks. What the proxy carries into the pod comes from a loopback address too, by which
/// it is known: a tunnel is no way to pass for the pod itself.
fn is_local(peer: IpAddr) -> bool {
    let carried: [IpAddr; 2] = [
        Ipv4Addr::new(127, 0, 0, 6).into(),
        Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6).into(),
    ];
    let peer = peer.to_canonical();
    peer.is_loopback() && !carried.contains(&peer)
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

async fn ready(request: &Request, readiness: &Readiness) -> Answer {
    let wait = http::query(request, "wait").and_then(|text| text.parse().ok());
    let wait = wait.map(|millis| Duration::from_millis(millis).min(LONGEST_WAIT));
    if let Some(wait) = wait {
        // Time over is as good: then the answer says what is missing.
        let _ = tokio::time::timeout(wait, readiness.settled()).await;
    }
    let state = readiness.state();
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
mod tests {
    use super::is_local;

    #[test]
    fn what_comes_through_the_proxy_is_not_local() {
        for (peer, local) in [
            ("127.0.0.1", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("127.0.0.6", false),
            ("::ffff:127.0.0.6", false),
            ("::6", false),
            ("10.1.0.2", false),
        ] {
            assert_eq!(is_local(peer.parse().unwrap()), local, "{peer}");
        }
    }
}
