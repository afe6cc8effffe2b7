//! The agent's own metrics, under Istio's names.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Counters of one agent.
#[derive(Debug, Default)]
pub(crate) struct AgentMetrics {
    pub(crate) scrapes: Counter,
    pub(crate) failed_application_scrapes: Counter,
    pub(crate) failed_proxy_scrapes: Counter,
    pub(crate) certificates: Counter,
    pub(crate) failed_certificates: Counter,
    pub(crate) discovery_failures: Counter,
    pub(crate) failed_snapshots: Counter,
    /// When the control plane last confirmed the configuration, in Unix seconds; 0 if that is not tracked, [`LIVE`] while
    /// the control plane is connected.
    confirmed: AtomicU64,
    /// Microseconds from the start to readiness; 0 before.
    startup: AtomicU64,
    /// Expiry of the certificate in Unix seconds; 0 without a certificate.
    expiry: AtomicU64,
}

const LIVE: u64 = u64::MAX;

/// A monotonic counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl AgentMetrics {
    pub(crate) fn ready_after(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let _ = self
            .startup
            .compare_exchange(0, micros, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn certified_until(&self, until: SystemTime) {
        self.certificates.count();
        self.expiry.store(seconds(until), Ordering::Relaxed);
    }

    /// The control plane confirms the configuration (`None`), or last confirmed it at that time.
    pub(crate) fn configuration_is(&self, last: Option<SystemTime>) {
        let value = last.map_or(LIVE, |time| seconds(time).max(1));
        self.confirmed.store(value, Ordering::Relaxed);
    }

    /// All metrics in the Prometheus text format.
    pub(crate) fn render(&self, now: SystemTime) -> String {
        let mut text = String::new();
        let mut last = String::new();
        let mut write = |name: &str, kind: &str, labels: &str, value: String| {
            // The type line comes once per metric name. Writing to a string cannot fail.
            if last != name {
                let _ = writeln!(text, "# TYPE istio_agent_{name} {kind}");
                name.clone_into(&mut last);
            }
            let _ = writeln!(text, "istio_agent_{name}{labels} {value}");
        };
        for (name, labels, counter) in [
            ("scrapes_total", "", &self.scrapes),
            (
                "scrape_failures_total",
                "{type=\"application\"}",
                &self.failed_application_scrapes,
            ),
            (
                "scrape_failures_total",
                "{type=\"envoy\"}",
                &self.failed_proxy_scrapes,
            ),
            (
                "num_outgoing_requests",
                "{request_type=\"csr\"}",
                &self.certificates,
            ),
            (
                "num_failed_outgoing_requests",
                "{request_type=\"csr\"}",
                &self.failed_certificates,
            ),
            ("istiod_connection_failures", "", &self.discovery_failures),
            ("config_snapshot_failures_total", "", &self.failed_snapshots),
        ] {
            write(name, "counter", labels, counter.get().to_string());
        }
        let startup = self.startup.load(Ordering::Relaxed);
        if startup > 0 {
            let value = Duration::from_micros(startup).as_secs_f64();
            write("startup_duration_seconds", "gauge", "", value.to_string());
        }
        let now = seconds(now);
        let confirmed = self.confirmed.load(Ordering::Relaxed);
        if confirmed > 0 {
            let age = now.saturating_sub(confirmed);
            write("config_age_seconds", "gauge", "", age.to_string());
        }
        let expiry = self.expiry.load(Ordering::Relaxed);
        if expiry > 0 {
            let left = i128::from(expiry) - i128::from(now);
            write(
                "cert_expiry_seconds",
                "gauge",
                "{resource_name=\"default\"}",
                left.to_string(),
            );
        }
        text
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
