//! How many pods were injected, skipped, refused: every question in exactly one of them.
//!
//! istio: its success counter also counts what was skipped and what failed. Here the counters are disjoint and add up.

use super::mutate::Outcome;
use remora_inject::Skip;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper ends of the histogram's buckets.
const BUCKETS: [(Duration, &str); 8] = [
    (Duration::from_micros(250), "0.00025"),
    (Duration::from_micros(500), "0.0005"),
    (Duration::from_millis(1), "0.001"),
    (Duration::from_micros(2500), "0.0025"),
    (Duration::from_millis(5), "0.005"),
    (Duration::from_millis(25), "0.025"),
    (Duration::from_millis(100), "0.1"),
    (Duration::from_secs(1), "1"),
];

const SKIPS: [(Skip, &str); 4] = [
    (Skip::HostNetwork, "host_network"),
    (Skip::SystemNamespace, "system_namespace"),
    (Skip::Disabled, "disabled"),
    (Skip::NotAsked, "not_asked"),
];

/// Counters of the webhooks. Shared by all connections.
#[derive(Debug, Default)]
pub struct Counts {
    injected: AtomicU64,
    skipped: [AtomicU64; SKIPS.len()],
    failed: AtomicU64,
    unreadable: AtomicU64,
    judged: AtomicU64,
    refused: AtomicU64,
    buckets: [AtomicU64; BUCKETS.len()],
    slower: AtomicU64,
    nanos: AtomicU64,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counts {
    pub(super) fn mutated(&self, outcome: Outcome, took: Duration) {
        match outcome {
            Outcome::Injected => add(&self.injected),
            Outcome::Failed => add(&self.failed),
            Outcome::Skipped(skip) => {
                let reason = SKIPS.iter().position(|(known, _)| *known == skip);
                add(&self.skipped[reason.unwrap_or(0)]);
            }
        }
        let bucket = BUCKETS.iter().position(|(end, _)| took <= *end);
        add(bucket.map_or(&self.slower, |index| &self.buckets[index]));
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(super) fn judged(&self, refused: bool) {
        add(if refused { &self.refused } else { &self.judged });
    }

    pub(super) fn unreadable(&self) {
        add(&self.unreadable);
    }

    /// In Prometheus' words.
    pub fn render(&self) -> String {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut text = String::new();
        let mut line = |words: std::fmt::Arguments<'_>| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{words}");
        };
        line(format_args!("# TYPE remora_injection_total counter"));
        line(format_args!(
            "remora_injection_total{{result=\"injected\",reason=\"\"}} {}",
            get(&self.injected)
        ));
        for ((_, reason), counter) in SKIPS.iter().zip(&self.skipped) {
            let count = get(counter);
            line(format_args!(
                "remora_injection_total{{result=\"skipped\",reason=\"{reason}\"}} {count}"
            ));
        }
        for (reason, counter) in [("pod", &self.failed), ("review", &self.unreadable)] {
            let count = get(counter);
            line(format_args!(
                "remora_injection_total{{result=\"failed\",reason=\"{reason}\"}} {count}"
            ));
        }
        line(format_args!("# TYPE remora_check_total counter"));
        for (result, counter) in [("allowed", &self.judged), ("refused", &self.refused)] {
            line(format_args!(
                "remora_check_total{{result=\"{result}\"}} {}",
                get(counter)
            ));
        }
        line(format_args!("# TYPE remora_injection_seconds histogram"));
        let mut below = 0;
        for ((_, end), counter) in BUCKETS.iter().zip(&self.buckets) {
            below += get(counter);
            line(format_args!(
                "remora_injection_seconds_bucket{{le=\"{end}\"}} {below}"
            ));
        }
        below += get(&self.slower);
        line(format_args!(
            "remora_injection_seconds_bucket{{le=\"+Inf\"}} {below}"
        ));
        let sum = Duration::from_nanos(get(&self.nanos)).as_secs_f64();
        line(format_args!("remora_injection_seconds_sum {sum}"));
        line(format_args!("remora_injection_seconds_count {below}"));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;
    use crate::webhook::mutate::Outcome;
    use remora_inject::Skip;
    use std::time::Duration;

    #[test]
    fn every_question_is_counted_once() {
        let counts = Counts::default();
        counts.mutated(Outcome::Injected, Duration::from_micros(300));
        counts.mutated(Outcome::Skipped(Skip::Disabled), Duration::from_micros(10));
        counts.mutated(Outcome::Failed, Duration::from_secs(3));
        counts.unreadable();
        let text = counts.render();
        let total: u64 = text
            .lines()
            .filter(|line| line.starts_with("remora_injection_total{"))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum();
        assert_eq!(total, 4, "{text}");
        assert!(
            text.contains("remora_injection_seconds_bucket{le=\"0.0005\"} 2\n"),
            "{text}"
        );
        assert!(
            text.contains("remora_injection_seconds_bucket{le=\"+Inf\"} 3\n"),
            "{text}"
        );
    }
}
