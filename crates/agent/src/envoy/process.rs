//! The Envoy process: start, wait, terminate, kill.

use super::launch::{Launch, arguments};
use crate::children::{Child, Children};
use remora_net::process;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Exit code of a process, as a shell reports it: its code, or 128 plus the signal.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 255,
    };
    u8::try_from(code).unwrap_or(255)
}

/// Signals that are forwarded to Envoy. Without a handler they would terminate the agent.
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

    /// Number of the next signal.
    pub(super) async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.hangup.recv() => SignalKind::hangup().as_raw_value(),
            _ = self.reopen.recv() => SignalKind::user_defined1().as_raw_value(),
        }
    }
}

/// A running Envoy. Killed on drop, and by the kernel when the agent dies.
#[derive(Debug)]
pub(super) struct Envoy {
    child: Child,
}

impl Envoy {
    /// Starts it. Standard output and error are the agent's.
    pub(super) fn start(children: &Children, launch: &Launch, config: &Path) -> io::Result<Self> {
        let mut command = command(launch, config)?;
        // A separate process group: signals of a terminal go to the agent only, which decides about Envoy.
        command.process_group(0);
        process::kill_with_parent(&mut command);
        let child = children.spawn(&mut command)?;
        Ok(Self { child })
    }

    /// Waits for Envoy to exit. Cancel safety: may be dropped and called again.
    pub(super) async fn ended(&mut self) -> ExitStatus {
        self.child.ended().await
    }

    /// Forwards a signal.
    pub(super) fn signal(&self, number: i32) -> io::Result<()> {
        self.child.signal(number)
    }

    /// Sends SIGTERM and, after `patience`, SIGKILL.
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
        // Still running only after another error, which is reported; a failed kill adds nothing.
        let _ = self.child.signal(process::KILL);
    }
}

/// Whether Envoy accepts the configuration.
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
