//! The process of an Envoy: started, waited for, asked to end, ended.

use super::launch::{Launch, arguments};
use crate::children::{Child, Children};
use remora_net::process;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How a process ended, as a shell counts: its code, or 128 and the signal.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 255,
    };
    u8::try_from(code).unwrap_or(255)
}

/// Signals that Envoy knows and the agent has no use for: it would die of them.
// envoy: SIGUSR1 opens log files again, SIGHUP is noted.
#[derive(Debug)]
pub(super) struct Passed {
    hangup: Signal,
    reopen: Signal,
}

impl Passed {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            reopen: signal(SignalKind::user_defined1())?,
        })
    }

    /// The next one, by its number.
    pub(super) async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.hangup.recv() => SignalKind::hangup().as_raw_value(),
            _ = self.reopen.recv() => SignalKind::user_defined1().as_raw_value(),
        }
    }
}

/// A running Envoy. Ends with the value, and with the agent, however that ends.
#[derive(Debug)]
pub(super) struct Envoy {
    child: Child,
}

impl Envoy {
    /// Starts it. Standard output and error are the agent's.
    pub(super) fn start(children: &Children, launch: &Launch, config: &Path) -> io::Result<Self> {
        let mut command = command(launch, config)?;
        // A group of its own: what a terminal sends to ours is for the agent to decide about.
        command.process_group(0);
        process::kill_with_parent(&mut command);
        let child = children.spawn(&mut command)?;
        Ok(Self { child })
    }

    /// Waits for its end. Cancel safety: may be dropped and asked again.
    pub(super) async fn ended(&mut self) -> ExitStatus {
        self.child.ended().await
    }

    /// Passes a signal on.
    pub(super) fn signal(&self, number: i32) -> io::Result<()> {
        self.child.signal(number)
    }

    /// Asks it to end and, after `patience`, ends it.
    pub(super) async fn stop(&mut self, patience: Duration) -> io::Result<ExitStatus> {
        self.child.signal(process::TERMINATE)?;
        if let Ok(status) = tokio::time::timeout(patience, self.child.ended()).await {
            return Ok(status);
        }
        self.child.signal(process::KILL)?;
        Ok(self.child.ended().await)
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // Only left running when something failed; nobody is there to be told that this failed, too.
        let _ = self.child.signal(process::KILL);
    }
}

/// Whether Envoy would take the configuration; what it said if not.
pub(super) async fn validate(children: &Children, launch: &Launch, config: &Path) -> io::Result<bool> {
    let mut command = command(launch, config)?;
    command.args(["--mode", "validate"]);
    process::kill_with_parent(&mut command);
    let mut child = children.spawn(&mut command)?;
    Ok(child.ended().await.success())
}

fn command(launch: &Launch, config: &Path) -> io::Result<Command> {
    let overlay = match &launch.override_file {
        Some(path) => Some(std::fs::read_to_string(path)?),
        None => None,
    };
    let mut command = Command::new(&launch.binary);
    command
        .args(arguments(launch, config, overlay.as_deref()))
        .stdin(Stdio::null());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::exit_code;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    #[test]
    fn codes_are_those_of_a_shell() {
        for (raw, expected) in [
            (0, 0),
            (1 << 8, 1),
            (255 << 8, 255),
            (9, 137),
            (11, 139),
            (139, 139),
        ] {
            assert_eq!(exit_code(ExitStatus::from_raw(raw)), expected, "{raw}");
        }
    }
}
