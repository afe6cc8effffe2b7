//! What can be seen of the application from the sidecar: the sockets it listens on, since the network namespace is
//! shared, and its processes where the pod shares those too.

use crate::log::Log;
use crate::stop::{Asked, StopSwitch};
use std::io::{BufRead as _, BufReader};
use std::time::Duration;

/// Whether anybody but the sidecar, known by its ports, listens in this network namespace.
pub(crate) fn listens(ours: &[u16]) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|path| {
        let Ok(table) = std::fs::File::open(path) else {
            return false;
        };
        let lines = BufReader::new(table).lines().map_while(Result::ok).skip(1);
        // The kernel lists those that listen first: a pod with many connections is not read to the end.
        lines
            .map_while(|line| listening_port(&line))
            .any(|port| !ours.contains(&port))
    })
}

/// The port of a line of the kernel's table, if its socket listens.
fn listening_port(line: &str) -> Option<u16> {
    const LISTEN: &str = "0A";
    let mut fields = line.split_whitespace().skip(1);
    let (local, _, state) = (fields.next()?, fields.next()?, fields.next()?);
    if state != LISTEN {
        return None;
    }
    u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()
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
    use super::{is_running, listening_port, listens};

    #[test]
    fn processes_are_known_by_their_names() {
        let own = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert!(is_running(own.trim()));
        assert!(!is_running("no such process"));
    }

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let listening =
            "   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 1 1";
        assert_eq!(listening_port(listening), Some(8080));
        assert_eq!(listening_port(&listening.replace(" 0A ", " 01 ")), None);
        assert_eq!(listening_port("  sl  local_address"), None);
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
