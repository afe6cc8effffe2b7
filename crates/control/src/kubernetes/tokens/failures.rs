//! How many wrong tokens a source may have reviewed.
//!
//! A token can look right and be wrong; only the API server knows. A source that shows such tokens again and again has
//! to wait, and does not make the API server work meanwhile. No clock here: times come in.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Wrong tokens of a source in a row, and how soon one more is allowed.
const BURST: u32 = 20;
const REFILL: Duration = Duration::from_secs(1);
/// Sources that are remembered. They are forgotten when they would be allowed everything again.
const MAX_SOURCES: usize = 10_000;

/// Failures of each source. A source without an entry has none.
#[derive(Debug, Default)]
pub(super) struct Failures(HashMap<IpAddr, Count>);

#[derive(Debug, Clone, Copy)]
struct Count {
    failures: u32,
    since: Instant,
}

impl Count {
    /// What is left of them after some time.
    fn at(self, now: Instant) -> u32 {
        let passed = now.saturating_duration_since(self.since).as_secs() / REFILL.as_secs();
        self.failures
            .saturating_sub(u32::try_from(passed).unwrap_or(u32::MAX))
    }
}

impl Failures {
    /// Whether a token of this source may be reviewed.
    pub(super) fn allow(&self, source: IpAddr, now: Instant) -> bool {
        self.0.get(&source).is_none_or(|count| count.at(now) < BURST)
    }

    /// A token of this source was wrong.
    pub(super) fn failed(&mut self, source: IpAddr, now: Instant) {
        if self.0.len() >= MAX_SOURCES {
            self.0.retain(|_, count| count.at(now) > 0);
        }
        if self.0.len() >= MAX_SOURCES && !self.0.contains_key(&source) {
            return;
        }
        let failures = self.0.get(&source).map_or(0, |count| count.at(now));
        let count = Count {
            failures: failures.saturating_add(1),
            since: now,
        };
        self.0.insert(source, count);
    }
}

#[cfg(test)]
mod tests {
    use super::{BURST, Failures, MAX_SOURCES, REFILL};
    use std::net::IpAddr;
    use std::time::Instant;

    #[test]
    fn a_source_with_many_wrong_tokens_waits_and_others_do_not() {
        let [one, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let (mut failures, now) = (Failures::default(), Instant::now());
        for _ in 0..BURST {
            assert!(failures.allow(one, now));
            failures.failed(one, now);
        }
        assert!(!failures.allow(one, now) && failures.allow(other, now));
        let later = now + REFILL;
        assert!(failures.allow(one, later));
        failures.failed(one, later);
        assert!(!failures.allow(one, later));
        assert!(failures.allow(one, later + REFILL * BURST));
    }

    #[test]
    fn many_sources_are_bounded_and_those_that_waited_make_room() {
        let address = |number: usize| IpAddr::from(u32::try_from(number).unwrap().to_be_bytes());
        let (mut failures, now) = (Failures::default(), Instant::now());
        for _ in 0..BURST {
            failures.failed(address(0), now);
        }
        for number in 1..=MAX_SOURCES {
            failures.failed(address(number), now);
        }
        assert_eq!(failures.0.len(), MAX_SOURCES);
        assert!(!failures.allow(address(0), now), "no other source displaces it");
        // A source that is remembered is counted although there is no room for others.
        for _ in 1..BURST {
            failures.failed(address(1), now);
        }
        assert!(!failures.allow(address(1), now));
        let later = now + REFILL;
        failures.failed(address(MAX_SOURCES + 1), later);
        assert_eq!(failures.0.len(), 3, "sources without failures left are forgotten");
    }
}
