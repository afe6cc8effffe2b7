//! One page of metrics for the whole pod: the agent's, the proxy's and the application's.
//!
//! An application that cannot be scraped is counted and left out, so that the other metrics are still delivered.

use crate::fetch::Get;
use crate::http::{self as answers, Answer};
use crate::metrics::AgentMetrics;
use http::HeaderMap;
use remora_proxy::metrics::Metrics;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

// istio: size limit of an application's page.
const MAX_PAGE_BYTES: usize = 10 << 20;
/// Prometheus sends its scrape timeout; the agent uses slightly less.
const TIMEOUT_HEADER: &str = "x-prometheus-scrape-timeout-seconds";
const DEFAULT_SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text";
const END: &str = "# EOF";
// istio: ports of the sidecar, where no application is.
const SIDECAR_PORTS: [u16; 9] = [15000, 15001, 15004, 15006, 15008, 15020, 15021, 15053, 15090];

/// Metrics endpoint of an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    port: u16,
    path: String,
}

/// Why `ISTIO_PROMETHEUS_ANNOTATIONS` is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetsError {
    /// Not JSON.
    #[error("ISTIO_PROMETHEUS_ANNOTATIONS is not a JSON object")]
    Json,
    /// The port belongs to the sidecar, or is invalid.
    #[error("the metrics port {0} is not a port of an application")]
    Port(String),
}

/// Reads `ISTIO_PROMETHEUS_ANNOTATIONS`: `{scrape, path, port, targets: [{port, path}]}`.
pub fn targets(text: &str) -> Result<Vec<Target>, TargetsError> {
    let value: Value = serde_json::from_str(text).map_err(|_| TargetsError::Json)?;
    if !value.is_object() {
        return Err(TargetsError::Json);
    }
    let scalar = |value: &Value| match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    };
    if value.get("scrape").and_then(scalar).as_deref() != Some("true") {
        return Ok(Vec::new());
    }
    let target = |value: &Value| {
        let port = value
            .get("port")
            .and_then(scalar)
            .unwrap_or_else(|| "80".to_owned());
        let number = port
            .parse()
            .ok()
            .filter(|port| *port != 0 && !SIDECAR_PORTS.contains(port));
        let path = value.get("path").and_then(scalar);
        Ok(Target {
            port: number.ok_or(TargetsError::Port(port))?,
            path: path.map_or_else(
                || "/metrics".to_owned(),
                |path| format!("/{}", path.trim_start_matches('/')),
            ),
        })
    };
    match value.get("targets").and_then(Value::as_array) {
        Some(list) if !list.is_empty() => list.iter().map(target).collect(),
        _ => Ok(vec![target(&value)?]),
    }
}

/// Source of the proxy's metrics.
#[derive(Debug)]
pub(crate) enum ProxyMetrics {
    /// The built-in proxy, in this process.
    BuiltIn(Arc<Metrics>),
    /// Envoy, on this port.
    Envoy(u16),
    /// None, or they are scraped from another port.
    None,
}

/// All sources of the merged page.
#[derive(Debug)]
pub(crate) struct Scraper {
    pub(crate) agent: Arc<AgentMetrics>,
    pub(crate) proxy: ProxyMetrics,
    pub(crate) targets: Vec<Target>,
}

/// The page of one application.
struct Page {
    text: String,
    kind: String,
}

impl Scraper {
    /// The proxy's metrics alone.
    pub(crate) fn proxy_page(&self) -> Answer {
        match &self.proxy {
            ProxyMetrics::BuiltIn(metrics) => answers::answer(200, TEXT, metrics.render()),
            // Envoy serves that port itself.
            ProxyMetrics::Envoy(_) | ProxyMetrics::None => answers::text(404, "ask Envoy\n"),
        }
    }

    /// The whole page.
    pub(crate) async fn page(&self, headers: &HeaderMap) -> Answer {
        self.agent.scrapes.count();
        let mut fetching = tokio::task::JoinSet::new();
        for (number, target) in self.targets.iter().cloned().enumerate() {
            let headers = headers.clone();
            fetching.spawn(async move { (number, fetch(target, headers).await) });
        }
        let mut pages = Vec::new();
        while let Some(done) = fetching.join_next().await {
            match done {
                Ok((number, Some(page))) => pages.push((number, page)),
                _ => self.agent.failed_application_scrapes.count(),
            }
        }
        pages.sort_by_key(|(number, _)| *number);
        let pages: Vec<Page> = pages.into_iter().map(|(_, page)| page).collect();
        let own = self.agent.render(SystemTime::now()) + &self.of_proxy().await;
        let (kind, text) = merge(&own, &pages);
        let mut answer = answers::answer(200, TEXT, text);
        if let Ok(kind) = kind.parse() {
            answer.headers_mut().insert(http::header::CONTENT_TYPE, kind);
        }
        answer
    }
}

impl Scraper {
    /// The proxy's part of the page.
    async fn of_proxy(&self) -> String {
        let port = match &self.proxy {
            ProxyMetrics::BuiltIn(metrics) => return metrics.render(),
            ProxyMetrics::Envoy(port) => *port,
            ProxyMetrics::None => return String::new(),
        };
        let target = Target {
            port,
            path: "/stats/prometheus".to_owned(),
        };
        // Without the scraper's `Accept` header: Envoy always returns the text format.
        let page = fetch(target, HeaderMap::new()).await;
        if page.is_none() {
            self.agent.failed_proxy_scrapes.count();
        }
        page.map(|page| page.text).unwrap_or_default()
    }
}

async fn fetch(target: Target, incoming: HeaderMap) -> Option<Page> {
    let said = incoming.get(TIMEOUT_HEADER).and_then(|value| value.to_str().ok());
    let timeout = said
        .and_then(|text| text.parse().ok())
        .and_then(|seconds: f64| Duration::try_from_secs_f64(seconds).ok())
        .unwrap_or(DEFAULT_SCRAPE_TIMEOUT)
        .min(Duration::from_mins(1));
    let mut headers = HeaderMap::new();
    for name in [
        http::header::ACCEPT.as_str(),
        TIMEOUT_HEADER,
        http::header::USER_AGENT.as_str(),
    ] {
        if let (Some(value), Ok(name)) = (incoming.get(name), http::HeaderName::try_from(name)) {
            headers.insert(name, value.clone());
        }
    }
    let to = SocketAddr::new(IpAddr::from(Ipv4Addr::LOCALHOST), target.port);
    let get = Get {
        to,
        tls: false,
        host: format!("localhost:{}", target.port),
        path: target.path,
        headers,
        most: MAX_PAGE_BYTES,
    };
    let got = tokio::time::timeout(timeout.mul_f64(0.9), get.send())
        .await
        .ok()?
        .ok()?;
    if got.cut || !got.status.is_success() {
        return None;
    }
    let kind = got.headers.get(http::header::CONTENT_TYPE);
    Some(Page {
        kind: kind
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or(TEXT)
            .to_owned(),
        text: String::from_utf8(got.body.into()).ok()?,
    })
}

/// The merged page and its content type: that of the applications if they agree. `OpenMetrics` requires exactly one end
/// marker, at the end.
fn merge(own: &str, pages: &[Page]) -> (String, String) {
    let open = !pages.is_empty() && pages.iter().all(|page| page.kind.starts_with(OPEN_METRICS));
    let kind = match pages {
        [first, rest @ ..] if rest.iter().all(|page| page.kind == first.kind) => first.kind.clone(),
        [first, ..] if open => first.kind.clone(),
        _ => TEXT.to_owned(),
    };
    let mut text = if open { open_metrics(own) } else { own.to_owned() };
    for page in pages {
        for line in page.text.lines().filter(|line| line.trim_end() != END) {
            text.push_str(line);
            text.push('\n');
        }
    }
    if open {
        text.push_str(END);
        text.push('\n');
    }
    (kind, text)
}

/// The agent's own metrics as `OpenMetrics`, where the type line of a counter omits the suffix `_total`.
fn open_metrics(own: &str) -> String {
    own.lines()
        .map(|line| {
            let counter = line
                .strip_prefix("# TYPE ")
                .and_then(|rest| rest.strip_suffix(" counter"));
            match counter {
                Some(name) => match name.strip_suffix("_total") {
                    Some(family) => format!("# TYPE {family} counter\n"),
                    // `OpenMetrics` requires the suffix for a counter.
                    None => format!("# TYPE {name} unknown\n"),
                },
                None => format!("{line}\n"),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{MAX_PAGE_BYTES, Page, ProxyMetrics, Scraper, Target, TargetsError, merge, targets};
    use http::HeaderMap;
    use http_body_util::BodyExt as _;
    use std::sync::Arc;
    use std::time::SystemTime;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    fn target(port: u16, path: &str) -> Target {
        Target {
            port,
            path: path.to_owned(),
        }
    }

    #[test]
    fn where_applications_have_their_metrics() {
        assert_eq!(
            targets(r#"{"scrape":"true","path":"","port":"9090"}"#),
            Ok(vec![target(9090, "/metrics")])
        );
        assert_eq!(
            targets(r#"{"scrape":"true","path":"m?x=1"}"#),
            Ok(vec![target(80, "/m?x=1")])
        );
        assert_eq!(
            targets(r#"{"scrape":"true","targets":[{"port":"1","path":"/a"},{"port":2}]}"#),
            Ok(vec![target(1, "/a"), target(2, "/metrics")])
        );
        assert_eq!(targets(r#"{"scrape":"false","port":"9090"}"#), Ok(vec![]));
        assert_eq!(
            targets(r#"{"scrape":"true","port":"15020"}"#),
            Err(TargetsError::Port("15020".to_owned())),
            "a scrape of ourselves would never end"
        );
        assert_eq!(targets("x"), Err(TargetsError::Json));
    }

    #[test]
    fn pages_are_joined_with_one_end() {
        let page = |kind: &str, text: &str| Page {
            text: text.to_owned(),
            kind: kind.to_owned(),
        };
        let own = "# TYPE a_total counter\na_total 1\n# TYPE b counter\nb 2\n";
        let open = "application/openmetrics-text; version=1.0.0";
        assert_eq!(
            merge(own, &[]),
            (
                "text/plain; version=0.0.4; charset=utf-8".to_owned(),
                own.to_owned()
            )
        );
        let (kind, text) = merge(own, &[page(open, "x 1\n# EOF\n"), page(open, "y 2\n# EOF")]);
        assert_eq!(kind, open);
        assert_eq!(
            text,
            "# TYPE a counter\na_total 1\n# TYPE b unknown\nb 2\nx 1\ny 2\n# EOF\n"
        );
        let (kind, text) = merge(own, &[page(open, "x 1\n# EOF\n"), page("text/plain", "y 2")]);
        assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
        assert_eq!(text, format!("{own}x 1\ny 2\n"));
    }

    /// Bytes of a line.
    const LINE_BYTES: usize = 64;

    /// An application whose page has `bytes` bytes.
    async fn application(bytes: usize) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await.unwrap();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            let line = format!(
                "{:0<width$}\n",
                "many_metrics_of_an_application 1",
                width = LINE_BYTES - 1
            );
            for _ in 0..bytes / LINE_BYTES {
                // The client may close the connection at its limit.
                if stream.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        port
    }

    #[tokio::test]
    async fn a_page_that_is_too_long_is_left_out_and_counted() {
        assert_eq!(MAX_PAGE_BYTES % LINE_BYTES, 0);
        for (bytes, failures) in [(MAX_PAGE_BYTES, 0), (MAX_PAGE_BYTES + LINE_BYTES, 1)] {
            let scraper = Scraper {
                agent: Arc::default(),
                proxy: ProxyMetrics::BuiltIn(Arc::default()),
                targets: vec![target(application(bytes).await, "/metrics")],
            };
            let answer = scraper.page(&HeaderMap::new()).await;
            assert_eq!(answer.status(), 200);
            let page = answer.into_body().collect().await.unwrap().to_bytes();
            let text = std::str::from_utf8(&page).unwrap();
            assert_eq!(
                text.contains("many_metrics_of_an_application"),
                failures == 0,
                "{bytes}"
            );
            let (_, after) = text.split_once("scrapes_total 1\n").unwrap();
            assert!(!after.is_empty());
            let again = scraper.agent.render(SystemTime::now());
            let counted = format!("scrape_failures_total{{type=\"application\"}} {failures}\n");
            assert!(again.contains(&counted), "{again}");
        }
    }
}
