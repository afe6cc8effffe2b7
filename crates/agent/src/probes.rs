//! The application's probes and hooks, which the injector sent through the agent.
//!
//! The kubelet asks the agent on a path that names the container and the probe; the agent asks the application what the
//! kubelet would have asked, from inside the pod, and passes the verdict on.

mod grpc;

use crate::fetch::{self, Get};
use crate::http::{self as answers, Answer};
use http::HeaderMap;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

// istio: how much of an application's answer is passed on; how many redirects are followed.
const LARGEST_BODY: usize = 10 << 10;
const MOST_REDIRECTS: usize = 10;
/// For probes without a time of their own: somebody must end them.
const LONGEST: Duration = Duration::from_mins(1);
/// Probes at once; more are a mistake somewhere.
const AT_ONCE: usize = 64;

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
    async fn ask(&self, at: IpAddr, incoming: &HeaderMap) -> io::Result<Answer> {
        let to = SocketAddr::new(at, self.port);
        match &self.action {
            Action::Http { path, tls, headers } => follow(get(incoming, to, path, *tls, headers)).await,
            Action::Tcp => fetch::connect(to).await.map(|_| answers::text(200, "")),
            Action::Grpc { service } => grpc::check(to, service).await.map(|()| answers::text(200, "")),
        }
    }

    /// Whether the application passes, as the kubelet judges; if not, why.
    pub(crate) async fn passes(&self, at: IpAddr) -> Result<(), String> {
        match self.ask(at, &HeaderMap::new()).await {
            Ok(answer) if answer.status().as_u16() < 400 => Ok(()),
            Ok(answer) => Err(format!("answered with status {}", answer.status().as_u16())),
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
    budget: Semaphore,
}

impl Prober {
    pub(crate) fn new(probes: Probes, application: IpAddr) -> Arc<Self> {
        Arc::new(Self {
            probes,
            application,
            budget: Semaphore::new(AT_ONCE),
        })
    }

    /// Answers one of the kubelet's questions.
    pub(crate) async fn answer(&self, path: &str, headers: &HeaderMap) -> Answer {
        let Some(probe) = self.probes.0.get(path) else {
            return answers::text(400, "no such probe\n");
        };
        let Ok(_permit) = self.budget.try_acquire() else {
            return answers::text(500, "too many probes at once\n");
        };
        let to = SocketAddr::new(self.application, probe.port);
        let asked = probe.ask(self.application, headers);
        match tokio::time::timeout(probe.timeout, asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => answers::text(500, format!("ask {to}: {error}\n")),
            Err(_) => answers::text(
                500,
                format!("ask {to}: no answer in {} s\n", probe.timeout.as_secs()),
            ),
        }
    }
}

/// The kubelet's request, as the application would have got it.
fn get(incoming: &HeaderMap, to: SocketAddr, path: &str, tls: bool, own: &[(String, String)]) -> Get {
    let mut headers = incoming.clone();
    // Ours to decide: the body is passed on as it is.
    headers.remove(http::header::ACCEPT_ENCODING);
    let mut host = incoming
        .get(http::header::HOST)
        .and_then(|host| host.to_str().ok())
        .map_or_else(|| to.to_string(), |host| with_port(host, to.port()));
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
async fn follow(mut get: Get) -> io::Result<Answer> {
    for _ in 0..=MOST_REDIRECTS {
        let got = get.clone().send().await?;
        let next = got
            .headers
            .get(http::header::LOCATION)
            .filter(|_| got.status.is_redirection())
            .and_then(|location| elsewhere(&get, location.to_str().ok()?));
        match next {
            Some(next) => get = next,
            None if got.status.is_redirection() => return Ok(answers::text(200, got.body)),
            None => {
                let mut answer = answers::text(got.status.as_u16(), got.body);
                if let Some(kind) = got.headers.get(http::header::CONTENT_TYPE) {
                    answer
                        .headers_mut()
                        .insert(http::header::CONTENT_TYPE, kind.clone());
                }
                return Ok(answer);
            }
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
