//! Child processes and orphans: the duties of PID 1 in a container.
//!
//! The agent reaps every descendant that exits, also orphans, so that none remains as a zombie. The caller that started
//! a child through [`Children`] receives its exit status. Only this module calls `wait`, so no status is lost.

use remora_net::process;
use std::collections::HashMap;
use std::io;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

type ExitSender = watch::Sender<Option<ExitStatus>>;

/// Starts child processes and reaps orphans.
#[derive(Debug, Clone, Default)]
pub struct Children {
    children: Arc<Mutex<HashMap<u32, ExitSender>>>,
}

/// A child process started by [`Children`].
#[derive(Debug)]
pub struct Child {
    pid: u32,
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl Children {
    /// Becomes the subreaper and reaps until the runtime ends.
    pub fn adopt() -> io::Result<Self> {
        process::become_subreaper()?;
        let mut ended = signal(SignalKind::child())?;
        let children = Self::default();
        let reaping = children.clone();
        tokio::spawn(async move {
            loop {
                // SIGCHLD signals coalesce, and a child may have exited before the handler was installed.
                reaping.reap();
                if ended.recv().await.is_none() {
                    return;
                }
            }
        });
        Ok(children)
    }

    fn reap(&self) {
        // The lock is held while reaping, so that a child that exits during `spawn` is registered first.
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        while let Ok(Some(ended)) = process::reap() {
            if let Some(exit) = children.remove(&ended.pid) {
                exit.send_replace(Some(ended.status));
            }
        }
    }

    /// Starts a child process.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = command.spawn()?.id();
        let (exit, seen) = watch::channel(None);
        children.insert(pid, exit);
        Ok(Child { pid, exit: seen })
    }
}

impl Child {
    /// Process id of the child.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for the child to exit. Cancel safety: may be dropped and called again.
    pub async fn ended(&mut self) -> ExitStatus {
        match self.exit.wait_for(Option::is_some).await.map(|status| *status) {
            Ok(Some(status)) => status,
            // The sender lives until the child is reaped; without it the status can never arrive.
            _ => std::future::pending().await,
        }
    }

    /// Sends a signal, unless the child was reaped: its pid may belong to another process by then.
    pub fn signal(&self, number: i32) -> io::Result<()> {
        if self.exit.borrow().is_some() {
            return Ok(());
        }
        process::signal(self.pid, number)
    }
}
