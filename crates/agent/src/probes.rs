//! The application's probes and hooks, which the injector sent through the agent.
//!
//! The kubelet asks the agent on a path that names the container and the probe; the agent asks the application what the
//! kubelet would have asked, from inside the pod, and passes the status on. Nothing else goes through in either
//! direction: of the kubelet's headers its `User-Agent` and `Accept` (those of the probe's own are in the
//! configuration), of the application's answer no body, which the kubelet would not use. The application takes the
//! agent for a client that was let in, so a client must not be able to say anything to it this way.

mod grpc;

use crate::fetch::{self, Get};
use crate::http::{self as answers, Answer};
use http::{HeaderMap, StatusCode};
use remora_http::SourceLimiter;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

// istio: how much of an application's answer is read; how many redirects are followed.
const LARGEST_BODY: usize = 10 << 10;
const MOST_REDIRECTS: usize = 10;
/// For probes without a time of their own: somebody must end them.
const LONGEST: Duration = Duration::from_mins(1);
/// Probes of the kubelet at once; more are a mistake somewhere.
const AT_ONCE: usize = 64;
/// Probes for other clients at once, all together and of one client address.
const OTHERS_AT_ONCE: usize = 16;
const OTHERS_PER_SOURCE: usize = 2;

/// On whose behalf the application is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The kubelet, or a process of this pod.
    Kubelet,
    /// A client at this address, of which nothing is known.
    Other(IpAddr),
}

/// What to ask the application.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    Http {
        path: String,
        tls: bool,
        headers: Vec<(String, String)>,
    },
    Tcp,
    Grpc {
        service: String,
    },
}

/// A probe of the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Probe {
    action: Action,
    port: u16,
    timeout: Duration,
}

/// `ISTIO_KUBE_APP_PROBERS` that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbesError {
    /// Not a JSON object.
    #[error("ISTIO_KUBE_APP_PROBERS is not a JSON object")]
    Json,
    /// Not a path of the agent.
    #[error("{0} is not a path of a probe")]
    Path(String),
    /// A probe that asks nothing, or too much.
    #[error("the probe {path} {why}")]
    Probe {
        /// Which.
        path: String,
        /// What is wrong.
        why: &'static str,
    },
}

/// All probes of a pod by the agent's path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probes(BTreeMap<String, Probe>);

impl Probes {
    /// Reads `ISTIO_KUBE_APP_PROBERS`.
    pub fn parse(text: &str) -> Result<Self, ProbesError> {
        let value: Value = serde_json::from_str(text).map_err(|_| ProbesError::Json)?;
        let all = value.as_object().ok_or(ProbesError::Json)?;
        let mut probes = BTreeMap::new();
        for (path, value) in all {
            if !is_path(path) {
                return Err(ProbesError::Path(path.clone()));
            }
            let probe = Probe::parse(value).map_err(|why| ProbesError::Probe {
                path: path.clone(),
                why,
            })?;
            probes.insert(path.clone(), probe);
        }
        Ok(Self(probes))
    }
}

/// `/app-health/CONTAINER/livez` and its like.
fn is_path(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let ["", kind, container, what] = parts[..] else {
        return false;
    };
    let known = match kind {
        "app-health" | "app-lifecycle" => ["livez", "readyz", "startupz", "prestopz", "poststartz"],
        _ => return false,
    };
    !container.is_empty() && known.contains(&what)
}

impl Probe {
    pub(crate) fn parse(value: &Value) -> Result<Self, &'static str> {
        let kinds = ["httpGet", "tcpSocket", "grpc"];
        let given: Vec<(&str, &Value)> = kinds
            .into_iter()
            .filter_map(|kind| Some((kind, value.get(kind)?)))
            .filter(|(_, action)| action.is_object())
            .collect();
        let [(kind, action)] = given[..] else {
            return Err("must have exactly one of httpGet, tcpSocket and grpc");
        };
        let port = action.get("port").and_then(Value::as_u64);
        let port = port
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0);
        let text = |key: &str| action.get(key).and_then(Value::as_str).unwrap_or_default();
        let action = match kind {
            "httpGet" => Action::Http {
                path: format!("/{}", text("path").trim_start_matches('/')),
                tls: text("scheme").eq_ignore_ascii_case("https"),
                headers: headers(action),
            },
            "tcpSocket" => Action::Tcp,
            _ => Action::Grpc {
                service: text("service").to_owned(),
            },
        };
        let timeout = value.get("timeoutSeconds").and_then(Value::as_u64);
        Ok(Self {
            action,
            port: port.ok_or("has no port that is a number")?,
            timeout: timeout
                .filter(|seconds| *seconds > 0)
                .map_or(LONGEST, |seconds| Duration::from_secs(seconds).min(LONGEST)),
        })
    }
}

impl Probe {
    /// The status of the application's answer.
    async fn ask(&self, at: IpAddr, incoming: &HeaderMap) -> io::Result<StatusCode> {
        let to = SocketAddr::new(at, self.port);
        match &self.action {
            Action::Http { path, tls, headers } => follow(get(incoming, to, path, *tls, headers)).await,
            Action::Tcp => fetch::connect(to).await.map(|_| StatusCode::OK),
            Action::Grpc { service } => grpc::check(to, service).await.map(|()| StatusCode::OK),
        }
    }

    /// Whether the application passes, as the kubelet judges; if not, why.
    pub(crate) async fn passes(&self, at: IpAddr) -> Result<(), String> {
        match self.ask(at, &HeaderMap::new()).await {
            Ok(status) if status.as_u16() < 400 => Ok(()),
            Ok(status) => Err(format!("answered with status {}", status.as_u16())),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn headers(action: &Value) -> Vec<(String, String)> {
    let list = action.get("httpHeaders").and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(|header| {
            let text = |key: &str| header.get(key)?.as_str().map(str::to_owned);
            Some((text("name")?, text("value").unwrap_or_default()))
        })
        .collect()
}

/// Asks the application of this pod.
#[derive(Debug)]
pub(crate) struct Prober {
    probes: Probes,
    /// Where the application is asked: the pod's address, as the kubelet would.
    application: IpAddr,
    kubelet: Semaphore,
    others: Semaphore,
    per_source: Arc<SourceLimiter>,
}

impl Prober {
    pub(crate) fn new(probes: Probes, application: IpAddr) -> Arc<Self> {
        Arc::new(Self {
            probes,
            application,
            kubelet: Semaphore::new(AT_ONCE),
            others: Semaphore::new(OTHERS_AT_ONCE),
            per_source: SourceLimiter::new(OTHERS_PER_SOURCE),
        })
    }

    /// Answers a probe or a hook. A client that is not the kubelet learns the status only, and its headers are not read.
    pub(crate) async fn answer(&self, path: &str, headers: &HeaderMap, origin: Origin) -> Answer {
        let Some(probe) = self.probes.0.get(path) else {
            return answers::text(400, "no such probe\n");
        };
        let (status, why) = match origin {
            Origin::Kubelet => match self.kubelet.try_acquire() {
                Ok(_permit) => self.ask(probe, &passed_on(headers)).await,
                Err(_) => return answers::text(500, "too many probes at once\n"),
            },
            Origin::Other(source) => {
                let permits = (self.per_source.try_acquire(source), self.others.try_acquire());
                let (Some(_of_source), Ok(_permit)) = permits else {
                    return answers::text(429, "too many probes at once\n");
                };
                let (status, _) = self.ask(probe, &HeaderMap::new()).await;
                (status, String::new())
            }
        };
        answers::text(status.as_u16(), why)
    }

    /// The application's status, or 500 and why there is none.
    async fn ask(&self, probe: &Probe, headers: &HeaderMap) -> (StatusCode, String) {
        let to = SocketAddr::new(self.application, probe.port);
        let asked = probe.ask(self.application, headers);
        let why = match tokio::time::timeout(probe.timeout, asked).await {
            Ok(Ok(status)) => return (status, String::new()),
            Ok(Err(error)) => format!("ask {to}: {error}\n"),
            Err(_) => format!("ask {to}: no answer in {} s\n", probe.timeout.as_secs()),
        };
        (StatusCode::INTERNAL_SERVER_ERROR, why)
    }
}

/// What the application is told of the kubelet's request.
fn passed_on(incoming: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in [http::header::USER_AGENT, http::header::ACCEPT] {
        if let Some(value) = incoming.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    headers
}

/// The kubelet's request, as the application would have got it.
fn get(incoming: &HeaderMap, to: SocketAddr, path: &str, tls: bool, own: &[(String, String)]) -> Get {
    let mut headers = incoming.clone();
    // k8s: the address the kubelet dials, unless the probe names another host.
    let mut host = to.to_string();
    for (name, value) in own {
        if name.eq_ignore_ascii_case("host") {
            host.clone_from(value);
        } else if let (Ok(name), Ok(value)) = (http::HeaderName::from_bytes(name.as_bytes()), value.parse()) {
            headers.insert(name, value);
        }
    }
    Get {
        to,
        tls,
        host,
        path: path.to_owned(),
        headers,
        most: LARGEST_BODY,
    }
}

/// A host with another port.
fn with_port(host: &str, port: u16) -> String {
    let name = match host.rsplit_once(':') {
        Some((name, old)) if old.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    format!("{name}:{port}")
}

// k8s: redirects on the same host are followed, others are a success by themselves.
async fn follow(mut get: Get) -> io::Result<StatusCode> {
    for _ in 0..=MOST_REDIRECTS {
        let got = get.clone().send().await?;
        let next = got
            .headers
            .get(http::header::LOCATION)
            .filter(|_| got.status.is_redirection())
            .and_then(|location| elsewhere(&get, location.to_str().ok()?));
        match next {
            Some(next) => get = next,
            None if got.status.is_redirection() => return Ok(StatusCode::OK),
            None => return Ok(got.status),
        }
    }
    Err(io::Error::other(format!("more than {MOST_REDIRECTS} redirects")))
}

/// The request a redirect asks for, if it stays on the host.
fn elsewhere(get: &Get, location: &str) -> Option<Get> {
    if location.starts_with('/') && !location.starts_with("//") {
        return Some(Get {
            path: location.to_owned(),
            ..get.clone()
        });
    }
    let uri: http::Uri = location.parse().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
    let name = |host: &str| with_port(host, 0);
    if name(authority.as_str()) != name(&get.host) {
        return None;
    }
    let tls = scheme == "https";
    let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
    Some(Get {
        to: SocketAddr::new(get.to.ip(), port),
        tls,
        host: authority.to_string(),
        path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        ..get.clone()
    })
}

#[cfg(test)]
mod tests;
