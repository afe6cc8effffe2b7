//! The application as the sidecar sees it: its listening sockets, because the network namespace is shared, and its
//! processes where the pod shares the process namespace.

use crate::log::Log;
use crate::stop::{Asked, StopSwitch};
use remora_net::listeners::Listeners;
use std::time::Duration;

/// Whether a process other than the sidecar, whose ports are `ours`, listens in this network namespace.
pub(crate) fn listens(ours: &[u16]) -> bool {
    let seen = Listeners::open().and_then(|mut listeners| listeners.ports());
    // If the sockets cannot be read, the sidecar does not wait for the application.
    seen.is_ok_and(|ports| ports.iter().any(|port| !ours.contains(port)))
}

/// Interval between two scans of the processes.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Stops the sidecar when a process of this name has been seen and is gone: the sidecar of a Job must not outlive the
/// Job. Needs a pod with a shared process namespace.
pub(crate) async fn quit_with(name: String, switch: StopSwitch, log: Log) {
    let mut seen = false;
    loop {
        let running = is_running(&name);
        if seen && !running {
            return switch.ask(Asked::Quit);
        }
        if running && !seen {
            log.note(format_args!("watches the process {name}, and ends with it"));
        }
        seen |= running;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Whether a process of this name is running.
fn is_running(name: &str) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return false;
    };
    // The kernel truncates process names to 15 characters.
    let known = name.get(..15).unwrap_or(name);
    entries.filter_map(Result::ok).any(|entry| {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            return false;
        };
        let command = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(") "));
        command.is_some_and(|(command, rest)| command == known && !rest.starts_with(['Z', 'X']))
    })
}

#[cfg(test)]
mod tests {
    use super::{is_running, listens};

    #[test]
    fn processes_are_known_by_their_names() {
        let own = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert!(is_running(own.trim()));
        assert!(!is_running("no such process"));
    }

    #[test]
    fn a_listener_is_seen_until_it_is_ours() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(listens(&[]));
        let everything: Vec<u16> = (0..=u16::MAX).collect();
        assert!(!listens(&everything));
        drop(listener);
    }
}
