//! Where this process spends its CPU time: a sampling profile of the innermost functions.
//!
//! A timer signal arrives at equal intervals of CPU time, and its handler records the interrupted address. There is no
//! cost while no profile is being taken. Callers of a function are not recorded: the program keeps no frame pointers.

use crate::sys::profile as sys;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// CPU time between two samples: a hundred samples for each second.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// Whether a profile is being taken. A process has one profiling timer.
static IN_PROGRESS: AtomicBool = AtomicBool::new(false);

/// A profile that is being taken; dropping it stops the timer.
#[derive(Debug)]
pub struct Sampling(());

impl Sampling {
    /// Starts sampling; `WouldBlock` while another profile is being taken.
    pub fn start() -> io::Result<Self> {
        if IN_PROGRESS.swap(true, Ordering::Acquire) {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "another one is being taken",
            ));
        }
        // Made before the timer starts, so that dropping it clears the flag also when the start fails.
        let sampling = Self(());
        sys::start(SAMPLE_INTERVAL)?;
        Ok(sampling)
    }

    /// Stops sampling; returns the number of samples per address.
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
        // Stopping fails only if the timer could not be set, and then it does not run.
        let _ = sys::finish();
        IN_PROGRESS.store(false, Ordering::Release);
    }
}

/// The profile in the legacy format that `pprof` reads: machine words, then the process's memory map.
pub fn encode(counts: &BTreeMap<usize, usize>, maps: &str) -> Vec<u8> {
    let period = usize::try_from(SAMPLE_INTERVAL.as_micros()).unwrap_or_default();
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
    fn work_is_sampled_and_a_second_profile_is_refused() {
        let sampling = Sampling::start().unwrap();
        assert!(Sampling::start().is_err(), "two at once");
        // A busy machine may give the test little time: the loop counts CPU time.
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
