//! A process that has only just been executed does not know its signals yet.
//!
//! The kernel drops a signal that the first process of a pid namespace has no handler for. A kubelet needs some tens of
//! milliseconds from a container's start to the first signal it could send, in which programs get ready for it; this
//! engine needs none. So a stop waits for a young process, as a kubelet does without meaning to.

use super::Container;
use std::time::Duration;

/// From this age on a process gets its signals at once, whether it minds them or not.
const GROWN: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_millis(1);

impl Container {
    /// Waits until the first process handles, blocks or ignores `signal`, has ended, or is no longer young.
    pub(crate) async fn until_minded(&self, signal: i32) {
        while self.started.elapsed() < GROWN {
            match std::fs::read_to_string(format!("/proc/{}/status", self.pid())) {
                Ok(status) if !minds(&status, signal) => tokio::time::sleep(PAUSE).await,
                Ok(_) | Err(_) => return,
            }
        }
    }
}

/// Whether a process with this `/proc/PID/status` would notice the signal.
fn minds(status: &str, signal: i32) -> bool {
    let Some(bit) = signal
        .checked_sub(1)
        .and_then(|n| 1_u64.checked_shl(n.cast_unsigned()))
    else {
        return true;
    };
    let masks = ["SigBlk:", "SigIgn:", "SigCgt:"];
    status.lines().any(|line| {
        let mask = masks.iter().find_map(|name| line.strip_prefix(name));
        mask.is_some_and(|m| u64::from_str_radix(m.trim(), 16).is_ok_and(|m| m & bit != 0))
    })
}

#[cfg(test)]
mod tests {
    use super::minds;

    #[test]
    fn a_process_minds_what_it_handles_blocks_or_ignores() {
        let status =
            "Name:\tapp\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000004000\n";
        let minded = (1..=31).filter(|n| minds(status, *n)).collect::<Vec<_>>();
        assert_eq!(minded, [libc::SIGINT, libc::SIGPIPE, libc::SIGTERM]);
        assert!(!minds("Name:\tapp\n", libc::SIGTERM));
        assert!(minds(status, 0), "not a signal: nothing to wait for");
    }
}
