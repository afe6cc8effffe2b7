//! Metrics as text.

use super::{Metrics, Proxy, Series};
use crate::access::Reason;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

type Counter = fn(&Series) -> &AtomicU64;

// istio: the names and what they mean; `failed` is ztunnel's.
const KINDS: [(&str, &str, Counter); 5] = [
    ("istio_tcp_connections_opened_total", "Connections opened.", |s| {
        &s.opened
    }),
    ("istio_tcp_connections_closed_total", "Connections closed.", |s| {
        &s.closed
    }),
    (
        "istio_tcp_connections_failed_total",
        "Connections that failed.",
        |s| &s.failed,
    ),
    ("istio_tcp_received_bytes_total", "Bytes from the client.", |s| {
        &s.received
    }),
    ("istio_tcp_sent_bytes_total", "Bytes to the client.", |s| &s.sent),
];

impl Metrics {
    /// Everything in the text format.
    pub fn render(&self) -> String {
        let open = self.connections().list();
        for connection in &open {
            connection.count_bytes();
        }
        let mut text = String::new();
        self.render_series(&mut text);
        gauge(
            &mut text,
            "remora_connections_open",
            "Connections that are open.",
            open.len(),
        );
        self.render_failures(&mut text);
        if let Some(proxy) = self.proxy.get() {
            proxy.render(&mut text);
        }
        if let Some(log) = self.log.get() {
            let name = "remora_access_log_dropped_total";
            let help = "Lines of the access log that were dropped, because they were read too slowly.";
            head(&mut text, name, help, "counter");
            line(&mut text, name, "", log.dropped());
        }
        if let Some(dns) = self.dns.get() {
            dns.counters().render(&mut text);
        }
        text
    }

    fn render_series(&self, text: &mut String) {
        let list: Vec<Arc<Series>> = self.table.list();
        for (name, help, value) in KINDS {
            head(text, name, help, "counter");
            for series in &list {
                line(text, name, &series.labels, value(series).load(Ordering::Relaxed));
            }
        }
    }

    fn render_failures(&self, text: &mut String) {
        let name = "remora_connection_failures_total";
        head(text, name, "Connections that failed, by reason.", "counter");
        for (direction, list) in ["outbound", "inbound"].iter().zip(&self.failures) {
            for (reason, count) in Reason::ALL.iter().zip(list) {
                let labels = format!("direction=\"{direction}\",reason=\"{}\"", reason.code());
                line(text, name, &labels, count.load(Ordering::Relaxed));
            }
        }
    }
}

impl Proxy {
    fn render(&self, text: &mut String) {
        gauge(
            text,
            "remora_tunnels_open",
            "Tunnels to other proxies.",
            self.pool.len(),
        );
        let until = seconds(self.identity.credentials().chain().not_after());
        let name = "remora_certificate_expiry_timestamp_seconds";
        gauge(text, name, "When the certificate in force expires.", until);
        let name = "remora_certificate_generation";
        gauge(
            text,
            name,
            "Certificates that were installed.",
            self.identity.generation_number(),
        );
        let name = "remora_discovery_updates_total";
        head(text, name, "Messages of discovery that were taken.", "counter");
        line(text, name, "", *self.mesh.changes().borrow());
        if let Some(time) = self.mesh.changed_at() {
            let name = "remora_discovery_update_timestamp_seconds";
            gauge(text, name, "When discovery last said something.", seconds(time));
        }
    }
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn gauge(text: &mut String, name: &str, help: &str, value: impl std::fmt::Display) {
    head(text, name, help, "gauge");
    line(text, name, "", value);
}

fn head(text: &mut String, name: &str, help: &str, kind: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = if labels.is_empty() {
        writeln!(text, "{name} {value}")
    } else {
        writeln!(text, "{name}{{{labels}}} {value}")
    };
}
