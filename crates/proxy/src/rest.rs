//! Memory that is given back while there is nothing to do.
//!
//! The start of a proxy runs much code that is never needed again, and a rush of connections leaves buffers behind.
//! Both would stay in memory for the life of the pod.

use crate::spare;
use remora_net::memory;
use std::time::Duration;

/// The first look, when the start is over.
const FIRST: Duration = Duration::from_millis(500);
/// Between the others.
const EVERY: Duration = Duration::from_secs(10);
/// A process that uses less than this part of a CPU has nothing to do.
const QUIET: u32 = 100;
/// With less CPU than this since the last time little can have been brought in.
const WORTH: Duration = Duration::from_millis(5);

/// CPU times, of the whole process.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    /// At the last look.
    last: Duration,
    /// When memory was given back, if ever.
    given: Option<Duration>,
}

impl Seen {
    /// Whether it is time to give back; `passed` since the last look.
    fn look(&mut self, now: Duration, passed: Duration) -> bool {
        let used = now.saturating_sub(self.last);
        self.last = now;
        let quiet = used <= passed / QUIET;
        // The start is always worth it.
        let worth = self.given.is_none_or(|given| now.saturating_sub(given) >= WORTH);
        if quiet && worth {
            self.given = Some(now);
        }
        quiet && worth
    }
}

/// Gives memory back whenever the process has had work and has none any more. One for each process; never done.
pub async fn give_back_when_idle() {
    let mut seen = Seen {
        last: memory::cpu_time(),
        given: None,
    };
    let mut pause = FIRST;
    loop {
        tokio::time::sleep(pause).await;
        if seen.look(memory::cpu_time(), pause) {
            spare::clear();
            memory::release_unused();
            // What that brought in again is not work.
            seen.given = Some(memory::cpu_time());
        }
        pause = EVERY;
    }
}

#[cfg(test)]
mod tests {
    use super::Seen;
    use std::time::Duration;

    const PASSED: Duration = Duration::from_secs(10);

    #[test]
    fn memory_is_given_back_once_after_work() {
        let ms = Duration::from_millis;
        assert!(
            Seen::default().look(ms(1), PASSED),
            "the start, however short it was"
        );
        let mut seen = Seen::default();
        assert!(!seen.look(ms(300), PASSED), "busy");
        assert!(seen.look(ms(301), PASSED), "quiet after work");
        assert!(!seen.look(ms(302), PASSED), "nothing since");
        assert!(!seen.look(ms(304), PASSED), "little since");
        assert!(
            seen.look(ms(306), PASSED),
            "little every time is something after all"
        );
        assert!(!seen.look(ms(5000), PASSED), "busy again");
        assert!(!seen.look(ms(9000), PASSED), "still busy");
        assert!(seen.look(ms(9001), PASSED));
    }
}
