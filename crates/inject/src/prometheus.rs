//! Metrics: the agent scrapes the application and serves both on its own port.

use crate::names::{self, annotation};
use crate::settings::Settings;
use remora_pod::view;
use serde_json::{Map, Value, json};

/// Ports the mesh uses itself; scraping one would scrape the scraper.
const RESERVED: [u16; 9] = [15000, 15001, 15004, 15006, 15008, 15020, 15021, 15053, 15090];

/// A scrape annotation that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrometheusError {
    /// Not a port.
    #[error("annotation {annotation}: {value:?} is not a port from 1 to 65535")]
    NotAPort {
        /// The name of the annotation.
        annotation: String,
        /// Its value.
        value: String,
    },
    /// A port of the mesh.
    #[error("annotation {annotation}: port {port} is reserved for Istio; scrape the application's own port")]
    Reserved {
        /// The name of the annotation.
        annotation: String,
        /// The port.
        port: u16,
    },
}

/// The application's metrics endpoint, from its annotations.
#[derive(Debug, Default)]
struct Scrape {
    wanted: String,
    path: String,
    port: String,
    targets: Vec<Value>,
}

/// Redirects a pod's scrape annotations to the agent and configures the agent with the application's endpoint.
pub(crate) fn merge(pod: &mut Value, settings: &Settings) -> Result<(), PrometheusError> {
    let status_port = settings.mesh.proxy.status_port();
    if !is_enabled(pod, settings)
        || scrape_annotation(pod, "port").is_some_and(|(_, v)| v == status_port.to_string())
    {
        return Ok(());
    }
    let scrape = Scrape::of(pod, status_port)?;
    if let Some(value) = scrape.render()
        && let Some(proxy) = view::container_mut(pod, names::PROXY)
    {
        set_variable(proxy, "ISTIO_PROMETHEUS_ANNOTATIONS", &value);
        view::map_mut(pod, &["metadata", "annotations"]).remove(annotation::SCRAPE_TARGETS);
    }
    let annotations = view::map_mut(pod, &["metadata", "annotations"]);
    annotations.retain(|key, _| {
        !["scrape", "port", "path"]
            .iter()
            .any(|what| is_spelling(key, what))
    });
    annotations.insert("prometheus.io/port".to_owned(), json!(status_port.to_string()));
    annotations.insert("prometheus.io/path".to_owned(), json!("/stats/prometheus"));
    annotations.insert("prometheus.io/scrape".to_owned(), json!("true"));
    Ok(())
}

fn is_enabled(pod: &Value, settings: &Settings) -> bool {
    if scrape_annotation(pod, "scrape").is_some_and(|(_, value)| parse_bool(value) == Some(false)) {
        return false;
    }
    view::annotation(pod, annotation::MERGE_METRICS)
        .and_then(parse_bool)
        .unwrap_or_else(|| settings.mesh.merges_metrics())
}

/// The first annotation that Prometheus would take for `prometheus.io/WHAT`.
fn scrape_annotation<'a>(pod: &'a Value, what: &str) -> Option<(&'a str, &'a str)> {
    view::at(pod, &["metadata", "annotations"])?
        .as_object()?
        .iter()
        .find(|(key, _)| is_spelling(key, what))
        .and_then(|(key, value)| Some((key.as_str(), value.as_str()?)))
}

/// Prometheus turns everything but letters, digits and `_` of a label name into `_`.
fn is_spelling(key: &str, what: &str) -> bool {
    let wanted = "prometheus_io_".bytes().chain(what.bytes());
    let sanitised = key
        .bytes()
        .map(|b| if b.is_ascii_alphanumeric() { b } else { b'_' });
    wanted.eq(sanitised)
}

impl Scrape {
    fn of(pod: &Value, status_port: u16) -> Result<Self, PrometheusError> {
        let own = |what: &str| {
            scrape_annotation(pod, what)
                .map(|(_, v)| v.to_owned())
                .unwrap_or_default()
        };
        let mut scrape = Self {
            wanted: own("scrape"),
            path: own("path"),
            port: own("port"),
            targets: Vec::new(),
        };
        if let Some((key, port)) = scrape_annotation(pod, "port")
            && !port.is_empty()
        {
            check_port(key, port, status_port)?;
        }
        let Some(list) = view::annotation(pod, annotation::SCRAPE_TARGETS) else {
            return Ok(scrape);
        };
        for target in list.split(',').map(str::trim).filter(|t| !t.is_empty()) {
            let (port, path) = target.split_once(':').unwrap_or((target, ""));
            check_port(annotation::SCRAPE_TARGETS, port, status_port)?;
            let path = if path.is_empty() { "/metrics" } else { path };
            scrape.targets.push(json!({"port": port, "path": path}));
        }
        if let Some(first) = scrape.targets.first() {
            scrape.port = view::scalar(&first["port"]);
            scrape.path = view::scalar(&first["path"]);
        }
        Ok(scrape)
    }

    /// The variable's value, in Istio's field order; `None` if the application has no scrape annotations.
    fn render(&self) -> Option<String> {
        if self.wanted.is_empty() && self.path.is_empty() && self.port.is_empty() && self.targets.is_empty() {
            return None;
        }
        let (scrape, path, port) = (json!(self.wanted), json!(self.path), json!(self.port));
        let targets: Vec<String> = self
            .targets
            .iter()
            .map(|t| format!("{{\"port\":{},\"path\":{}}}", t["port"], t["path"]))
            .collect();
        let more = if targets.is_empty() {
            String::new()
        } else {
            format!(",\"targets\":[{}]", targets.join(","))
        };
        Some(format!(
            "{{\"scrape\":{scrape},\"path\":{path},\"port\":{port}{more}}}"
        ))
    }
}

fn check_port(key: &str, text: &str, status_port: u16) -> Result<(), PrometheusError> {
    let port = text
        .parse::<u16>()
        .ok()
        .filter(|p| *p > 0)
        .ok_or_else(|| PrometheusError::NotAPort {
            annotation: key.to_owned(),
            value: text.to_owned(),
        })?;
    if port == status_port || RESERVED.contains(&port) {
        return Err(PrometheusError::Reserved {
            annotation: key.to_owned(),
            port,
        });
    }
    Ok(())
}

/// Sets a variable of a container: in its place when it is there, else at the end.
pub(crate) fn set_variable(container: &mut Value, name: &str, value: &str) {
    let env = view::list_mut(container, &["env"]);
    let mut entry = Map::new();
    entry.insert("name".to_owned(), json!(name));
    entry.insert("value".to_owned(), json!(value));
    match env.iter_mut().find(|v| view::name(v) == name) {
        Some(existing) => *existing = Value::Object(entry),
        None => env.push(Value::Object(entry)),
    }
}

/// istio: what Go's `ParseBool` takes.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// istio: metrics over mTLS have their own port if the proxy's configuration sets one.
pub(crate) fn set_secure_port(pod: &mut Value) {
    let port = view::container(pod, names::PROXY)
        .and_then(|proxy| view::find(view::list(proxy, &["env"]), "ENVOY_SECURE_MERGED_METRICS_PORT"))
        .and_then(|variable| variable.get("value")?.as_str())
        .filter(|port| !port.is_empty() && *port != "0")
        .map(str::to_owned);
    if let Some(port) = port
        && view::annotation(pod, annotation::SECURE_PORT).is_none()
    {
        view::set_annotation(pod, annotation::SECURE_PORT, port);
    }
}
