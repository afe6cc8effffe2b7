//! Where this process spends its CPU time: a sampling profile of the innermost functions.
//!
//! A signal comes in equal parts of the CPU time used, and its handler notes where it came. Nothing costs anything
//! while nobody asks. Callers of a function are not known: the program keeps no frame pointers.

use crate::sys::profile as sys;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A hundred samples for each second of CPU time.
const EVERY: Duration = Duration::from_millis(10);

/// There is one timer.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// A profile that is being taken; over when it is dropped.
#[derive(Debug)]
pub struct Sampling(());

impl Sampling {
    /// Starts; `WouldBlock` while another is being taken.
    pub fn start() -> io::Result<Self> {
        if TAKEN.swap(true, Ordering::Acquire) {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "another one is being taken",
            ));
        }
        // Given back also when the start fails.
        let sampling = Self(());
        sys::start(EVERY)?;
        Ok(sampling)
    }

    /// Ends; gives how often the process was at which address.
    pub fn finish(self) -> io::Result<BTreeMap<usize, usize>> {
        let mut counts = BTreeMap::new();
        for place in sys::finish()? {
            *counts.entry(place).or_default() += 1;
        }
        Ok(counts)
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        // A timer that cannot be set was not set.
        let _ = sys::finish();
        TAKEN.store(false, Ordering::Release);
    }
}

/// The profile in the format that `pprof` reads: words of the machine, then where the kernel has mapped which file.
pub fn encode(counts: &BTreeMap<usize, usize>, maps: &str) -> Vec<u8> {
    let period = usize::try_from(EVERY.as_micros()).unwrap_or_default();
    let head = [0, 3, 0, period, 0];
    let samples = counts.iter().flat_map(|(place, count)| [*count, 1, *place]);
    let words = head.into_iter().chain(samples).chain([0, 1, 0]);
    let mut bytes: Vec<u8> = words.flat_map(usize::to_ne_bytes).collect();
    bytes.extend_from_slice(maps.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::{Sampling, encode};
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    #[inline(never)]
    fn work(until: Instant) -> u64 {
        let mut number = 1_u64;
        while Instant::now() < until {
            for _ in 0..10_000 {
                number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            }
        }
        number
    }

    #[test]
    fn work_is_seen_and_only_one_asks() {
        let sampling = Sampling::start().unwrap();
        assert!(Sampling::start().is_err(), "two at once");
        // The machine may have no time for us: what counts is CPU time.
        let end = Instant::now() + Duration::from_secs(20);
        let before = crate::memory::cpu_time();
        while crate::memory::cpu_time() < before + Duration::from_millis(300) && Instant::now() < end {
            work(Instant::now() + Duration::from_millis(20));
        }
        let counts = sampling.finish().unwrap();
        let all: usize = counts.values().sum();
        assert!(all >= 10, "{counts:?}");
        assert!(Sampling::start().unwrap().finish().is_ok(), "and again");
    }

    #[test]
    fn the_format_is_words_and_maps() {
        let counts = BTreeMap::from([(0x1000, 2), (0x2000, 1)]);
        let bytes = encode(&counts, "maps\n");
        let words: Vec<usize> = [0, 3, 0, 10_000, 0, 2, 1, 0x1000, 1, 1, 0x2000, 0, 1, 0].into();
        let expected: Vec<u8> = words.into_iter().flat_map(usize::to_ne_bytes).collect();
        assert_eq!(bytes, [&expected[..], b"maps\n"].concat());
    }
}
