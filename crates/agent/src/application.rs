//! What can be seen of the application from the sidecar: the sockets it listens on, since the network namespace is
//! shared, and its processes where the pod shares those too.

use crate::log::Log;
use crate::stop::{Asked, StopSwitch};
use remora_net::listeners::Listeners;
use std::time::Duration;

/// Whether anybody but the sidecar, known by its ports, listens in this network namespace.
pub(crate) fn listens(ours: &[u16]) -> bool {
    let seen = Listeners::open().and_then(|mut listeners| listeners.ports());
    // Who cannot be seen is not waited for.
    seen.is_ok_and(|ports| ports.iter().any(|port| !ours.contains(port)))
}

/// How often processes are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Asks for the end when a process of this name, once seen, is gone: a Job's sidecar must not outlive its work. Needs a
/// pod that shares its process namespace.
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
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether a process of this name is there and has not ended.
fn is_running(name: &str) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return false;
    };
    // The kernel keeps 15 characters.
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
