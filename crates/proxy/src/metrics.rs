//! Istio's TCP metrics, as Prometheus reads them.
//!
//! Labels are bounded: a series exists per pair of identities and service that was really seen, and beyond
//! [`MOST_SERIES`] everything new is counted under one series with the label value `other`.

use crate::access::{Direction, Record};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

/// Series kept apart.
pub const MOST_SERIES: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    reporter: &'static str,
    source: String,
    destination: String,
    service: String,
    security: &'static str,
}

#[derive(Debug, Clone, Copy, Default)]
struct Values {
    connections: u64,
    failed: u64,
    received: u64,
    sent: u64,
}

type Value = fn(&Values) -> u64;

/// Counts connections that are over.
#[derive(Debug, Default)]
pub struct Metrics {
    series: Mutex<BTreeMap<Labels, Values>>,
}

impl Metrics {
    /// Counts a connection.
    pub fn count(&self, record: &Record) {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let mut labels = labels(record);
        if series.len() >= MOST_SERIES && !series.contains_key(&labels) {
            let other = || "other".to_owned();
            (labels.source, labels.destination, labels.service) = (other(), other(), other());
        }
        let values = series.entry(labels).or_default();
        values.connections += 1;
        values.failed += u64::from(record.error.is_some());
        // istio: received is what the client sent, on both sides.
        values.received += record.forward;
        values.sent += record.backward;
    }

    /// All series in the text format.
    pub fn render(&self) -> String {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        let kinds: [(&str, Value); 4] = [
            ("istio_tcp_connections_closed_total", |v| v.connections),
            ("istio_tcp_connections_failed_total", |v| v.failed),
            ("istio_tcp_received_bytes_total", |v| v.received),
            ("istio_tcp_sent_bytes_total", |v| v.sent),
        ];
        for (name, value) in kinds {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# TYPE {name} counter");
            for (labels, values) in series.iter() {
                let _ = writeln!(text, "{name}{{{}}} {}", shown(labels), value(values));
            }
        }
        text
    }
}

fn labels(record: &Record) -> Labels {
    let name =
        |id: &Option<remora_mtls::SpiffeId>| id.as_ref().map_or("unknown".to_owned(), ToString::to_string);
    let mutual = record.source_id.is_some() && record.destination_id.is_some();
    Labels {
        reporter: match record.direction {
            Direction::Outbound => "source",
            Direction::Inbound => "destination",
        },
        source: name(&record.source_id),
        destination: name(&record.destination_id),
        service: record.service.clone().unwrap_or_else(|| "unknown".to_owned()),
        security: if mutual { "mutual_tls" } else { "unknown" },
    }
}

/// Values come from certificates and discovery, where quotes and line ends are refused; escaped all the same.
fn shown(labels: &Labels) -> String {
    let pairs = [
        ("reporter", labels.reporter),
        ("source_principal", &labels.source),
        ("destination_principal", &labels.destination),
        ("destination_service", &labels.service),
        ("request_protocol", "tcp"),
        ("connection_security_policy", labels.security),
    ];
    let escaped = |text: &str| {
        text.replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
    };
    pairs
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::{MOST_SERIES, Metrics};
    use crate::access::{Direction, Record};
    use std::time::Duration;

    fn record(service: &str) -> Record {
        Record {
            direction: Direction::Outbound,
            source: "10.0.0.1:1000".parse().unwrap(),
            source_id: Some("spiffe://td/ns/shop/sa/web".parse().unwrap()),
            destination: "10.0.0.2:80".parse().unwrap(),
            destination_id: Some("spiffe://td/ns/shop/sa/cart".parse().unwrap()),
            service: Some(service.to_owned()),
            forward: 10,
            backward: 200,
            duration: Duration::from_millis(3),
            error: None,
        }
    }

    #[test]
    fn connections_and_bytes_are_counted_as_istio_counts() {
        let metrics = Metrics::default();
        metrics.count(&record("cart"));
        let failed = Record {
            error: Some("no".to_owned()),
            ..record("cart")
        };
        metrics.count(&failed);
        let text = metrics.render();
        let labels = "{reporter=\"source\",source_principal=\"spiffe://td/ns/shop/sa/web\",\
                      destination_principal=\"spiffe://td/ns/shop/sa/cart\",destination_service=\"cart\",\
                      request_protocol=\"tcp\",connection_security_policy=\"mutual_tls\"}";
        for (name, value) in [
            ("connections_closed", 2),
            ("connections_failed", 1),
            ("received_bytes", 20),
            ("sent_bytes", 400),
        ] {
            let line = format!("istio_tcp_{name}_total{labels} {value}\n");
            assert!(text.contains(&line), "{line}\nnot in\n{text}");
        }
    }

    #[test]
    fn series_are_bounded_and_labels_cannot_break_lines() {
        let metrics = Metrics::default();
        for number in 0..MOST_SERIES + 500 {
            metrics.count(&record(&format!("service-{number}")));
        }
        let text = metrics.render();
        let lines = text.lines().filter(|l| l.starts_with("istio_tcp_sent")).count();
        assert_eq!(lines, MOST_SERIES + 1);
        let other = text.lines().find(|l| {
            l.starts_with("istio_tcp_connections_closed_total") && l.contains("destination_service=\"other\"")
        });
        assert!(other.unwrap().ends_with(" 500"));
        let metrics = Metrics::default();
        metrics.count(&record("a\"b\nc"));
        assert!(metrics.render().contains(r#"destination_service="a\"b\nc""#));
    }

    #[test]
    fn a_line_of_the_access_log_is_one_line_and_says_who_and_how_much() {
        let line = record("cart").to_string();
        assert_eq!(
            line,
            "src.addr=10.0.0.1:1000 src.identity=\"spiffe://td/ns/shop/sa/web\" dst.addr=10.0.0.2:80 \
             dst.service=\"cart\" dst.identity=\"spiffe://td/ns/shop/sa/cart\" direction=outbound bytes_sent=10 \
             bytes_recv=200 duration=\"3ms\""
        );
        let hostile = Record {
            error: Some("a\nsrc.addr=1.2.3.4:5".to_owned()),
            direction: Direction::Inbound,
            ..record("cart")
        };
        let line = hostile.to_string();
        assert!(!line.contains('\n') && line.contains("bytes_sent=200"), "{line}");
    }
}
