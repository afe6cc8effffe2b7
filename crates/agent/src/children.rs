//! Children and orphans: the duties of a container's first process.
//!
//! Every process that ends below us is reaped, ours or not, so that none stays behind as a zombie. Whoever started a
//! child through [`Children`] learns how it ended; the kernel's list is read in this one place only.

use remora_net::process;
use std::collections::HashMap;
use std::io;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

type Fate = watch::Sender<Option<ExitStatus>>;

/// Starts children and takes in orphans.
#[derive(Debug, Clone, Default)]
pub struct Children {
    ours: Arc<Mutex<HashMap<u32, Fate>>>,
}

/// A child that was started here.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    fate: watch::Receiver<Option<ExitStatus>>,
}

impl Children {
    /// Reaps from now on, for as long as the runtime lives.
    pub fn adopt() -> io::Result<Self> {
        process::become_subreaper()?;
        let mut ended = signal(SignalKind::child())?;
        let children = Self::default();
        let reaping = children.clone();
        tokio::spawn(async move {
            loop {
                // One signal may stand for many; some may have ended before we listened.
                reaping.reap();
                if ended.recv().await.is_none() {
                    return;
                }
            }
        });
        Ok(children)
    }

    fn reap(&self) {
        // Held all the while, so that a child which ends while it is being started is not missed.
        let mut ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        while let Ok(Some(ended)) = process::reap() {
            if let Some(fate) = ours.remove(&ended.pid) {
                fate.send_replace(Some(ended.status));
            }
        }
    }

    /// Starts a child.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = command.spawn()?.id();
        let (fate, seen) = watch::channel(None);
        ours.insert(pid, fate);
        Ok(Child { pid, fate: seen })
    }
}

impl Child {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for its end. May be asked again and dropped at any moment.
    pub async fn ended(&mut self) -> ExitStatus {
        match self.fate.wait_for(Option::is_some).await.map(|status| *status) {
            Ok(Some(status)) => status,
            // Its record lives until it ends; without one nobody can know.
            _ => std::future::pending().await,
        }
    }

    /// Sends a signal, unless it has ended: its number may be somebody else's by then.
    pub fn signal(&self, number: i32) -> io::Result<()> {
        if self.fate.borrow().is_some() {
            return Ok(());
        }
        process::signal(self.pid, number)
    }
}
