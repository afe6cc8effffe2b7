//! What is counted about names.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper ends of the classes of waiting times, in milliseconds.
const CLASSES: [u64; 9] = [1, 2, 5, 10, 25, 100, 500, 1000, 5000];

/// Counters of a DNS proxy.
#[derive(Debug, Default)]
pub struct Counters {
    answered: AtomicU64,
    forwarded: AtomicU64,
    malformed: AtomicU64,
    busy: AtomicU64,
    circular: AtomicU64,
    failures: AtomicU64,
    waits: [AtomicU64; CLASSES.len() + 1],
    waited_micros: AtomicU64,
}

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Answered,
    Forwarded,
    Malformed,
    Busy,
    Circular,
}

impl Counters {
    pub(super) fn count(&self, event: Event) {
        let counter = match event {
            Event::Answered => &self.answered,
            Event::Forwarded => &self.forwarded,
            Event::Malformed => &self.malformed,
            Event::Busy => &self.busy,
            Event::Circular => &self.circular,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn asked(&self, answered: bool, waited: Duration) {
        let millis = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        let class = CLASSES
            .iter()
            .position(|end| millis < *end)
            .unwrap_or(CLASSES.len());
        if let Some(class) = self.waits.get(class) {
            class.fetch_add(1, Ordering::Relaxed);
        }
        let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.waited_micros.fetch_add(micros, Ordering::Relaxed);
        self.failures.fetch_add(u64::from(!answered), Ordering::Relaxed);
    }

    /// Questions that were sent and came back to us.
    pub fn circular(&self) -> u64 {
        self.circular.load(Ordering::Relaxed)
    }

    /// Writes them as Prometheus reads them.
    // istio: the names of those that begin so.
    pub fn render(&self, text: &mut String) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let refused = [
            ("malformed", read(&self.malformed)),
            ("busy", read(&self.busy)),
            ("circular", read(&self.circular)),
        ];
        let (answered, forwarded) = (read(&self.answered), read(&self.forwarded));
        let requests = answered + forwarded + refused.iter().map(|(_, count)| count).sum::<u64>();
        let plain = [
            (
                "istio_dns_requests_total",
                "Questions from applications.",
                requests,
            ),
            (
                "istio_dns_upstream_requests_total",
                "Questions passed on to name servers.",
                forwarded,
            ),
            (
                "istio_dns_upstream_failures_total",
                "Questions no name server answered.",
                read(&self.failures),
            ),
            (
                "remora_dns_answered_total",
                "Questions answered from the mesh.",
                answered,
            ),
        ];
        for (name, help, value) in plain {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}"
            );
        }
        let _ = writeln!(
            text,
            "# HELP remora_dns_refused_total Questions that were refused.\n# TYPE remora_dns_refused_total counter"
        );
        for (reason, count) in refused {
            let _ = writeln!(text, "remora_dns_refused_total{{reason=\"{reason}\"}} {count}");
        }
        self.render_waits(text);
    }

    fn render_waits(&self, text: &mut String) {
        let name = "istio_dns_upstream_request_duration_seconds";
        let _ = writeln!(
            text,
            "# HELP {name} How long name servers took.\n# TYPE {name} histogram"
        );
        let mut total = 0;
        let ends = CLASSES.iter().map(|millis| {
            let seconds = Duration::from_millis(*millis).as_secs_f64();
            seconds.to_string()
        });
        for (class, end) in self.waits.iter().zip(ends.chain(["+Inf".to_owned()])) {
            total += class.load(Ordering::Relaxed);
            let _ = writeln!(text, "{name}_bucket{{le=\"{end}\"}} {total}");
        }
        let waited = Duration::from_micros(self.waited_micros.load(Ordering::Relaxed));
        let _ = writeln!(text, "{name}_sum {}\n{name}_count {total}", waited.as_secs_f64());
    }
}
