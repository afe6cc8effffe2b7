//! The application's probes and hooks, which the injector redirected to the agent.
//!
//! The kubelet calls the agent on a path that names the container and the probe. The agent sends the kubelet's original
//! probe to the application, from inside the pod, and returns the status. Nothing else is forwarded in either direction:
//! of the kubelet's headers only `User-Agent` and `Accept` (the probe's own headers are in the configuration), and no
//! body of the response, which the kubelet does not use. The application treats the agent as an authorised client, so
//! other clients must not be able to send data to the application this way.

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

// istio: limits for the body of the application's response and for redirects.
const MAX_BODY_BYTES: usize = 10 << 10;
const MAX_REDIRECTS: usize = 10;
/// Upper limit of a probe's timeout, and the timeout of probes without one.
const MAX_PROBE_TIMEOUT: Duration = Duration::from_mins(1);
/// Concurrent probes of the kubelet.
const MAX_KUBELET_PROBES: usize = 64;
/// Concurrent probes of other clients, in total and per client address.
const MAX_OTHER_PROBES: usize = 16;
const MAX_OTHER_PROBES_PER_SOURCE: usize = 2;

/// The client that triggers a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The kubelet, or a process of this pod.
    Kubelet,
    /// An unknown client at this address.
    Other(IpAddr),
}

/// The request of a probe.
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

/// Why `ISTIO_KUBE_APP_PROBERS` is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbesError {
    /// Not a JSON object.
    #[error("ISTIO_KUBE_APP_PROBERS is not a JSON object")]
    Json,
    /// Not a path of the agent.
    #[error("{0} is not a path of a probe")]
    Path(String),
    /// A probe without an action, or with several.
    #[error("the probe {path} {why}")]
    Probe {
        /// Path of the probe.
        path: String,
        /// The problem.
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

/// Whether the path has the form `/app-health/CONTAINER/livez`.
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
                .map_or(MAX_PROBE_TIMEOUT, |seconds| {
                    Duration::from_secs(seconds).min(MAX_PROBE_TIMEOUT)
                }),
        })
    }
}

impl Probe {
    /// Sends the probe; returns the status of the application's response.
    async fn ask(&self, at: IpAddr, incoming: &HeaderMap) -> io::Result<StatusCode> {
        let to = SocketAddr::new(at, self.port);
        match &self.action {
            Action::Http { path, tls, headers } => follow(get(incoming, to, path, *tls, headers)).await,
            Action::Tcp => fetch::connect(to).await.map(|_| StatusCode::OK),
            Action::Grpc { service } => grpc::check(to, service).await.map(|()| StatusCode::OK),
        }
    }

    /// Whether the probe succeeds by the kubelet's rules; if not, why.
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

/// Runs the probes of this pod's application.
#[derive(Debug)]
pub(crate) struct Prober {
    probes: Probes,
    /// Address of the application: that of the pod, as for the kubelet.
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
            kubelet: Semaphore::new(MAX_KUBELET_PROBES),
            others: Semaphore::new(MAX_OTHER_PROBES),
            per_source: SourceLimiter::new(MAX_OTHER_PROBES_PER_SOURCE),
        })
    }

    /// Answers a probe or a hook. A client that is not the kubelet receives the status only, and its headers are ignored.
    pub(crate) async fn answer(&self, path: &str, headers: &HeaderMap, origin: Origin) -> Answer {
        let Some(probe) = self.probes.0.get(path) else {
            return answers::text(400, "no such probe\n");
        };
        let (status, why) = match origin {
            Origin::Kubelet => match self.kubelet.try_acquire() {
                Ok(_permit) => self.ask(probe, &forwarded_headers(headers)).await,
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

    /// The application's status, or 500 and the reason.
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

/// The headers of the kubelet's request that are forwarded to the application.
fn forwarded_headers(incoming: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in [http::header::USER_AGENT, http::header::ACCEPT] {
        if let Some(value) = incoming.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    headers
}

/// The request that the kubelet would have sent to the application.
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
        most: MAX_BODY_BYTES,
    }
}

/// Replaces the port of a host.
fn with_port(host: &str, port: u16) -> String {
    let name = match host.rsplit_once(':') {
        Some((name, old)) if old.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    format!("{name}:{port}")
}

// k8s: redirects on the same host are followed, others are a success by themselves.
async fn follow(mut get: Get) -> io::Result<StatusCode> {
    for _ in 0..=MAX_REDIRECTS {
        let got = get.clone().send().await?;
        let next = got
            .headers
            .get(http::header::LOCATION)
            .filter(|_| got.status.is_redirection())
            .and_then(|location| redirect_target(&get, location.to_str().ok()?));
        match next {
            Some(next) => get = next,
            None if got.status.is_redirection() => return Ok(StatusCode::OK),
            None => return Ok(got.status),
        }
    }
    Err(io::Error::other(format!("more than {MAX_REDIRECTS} redirects")))
}

/// The request for a redirect, if it stays on the same host.
fn redirect_target(get: &Get, location: &str) -> Option<Get> {
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
