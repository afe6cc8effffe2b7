//! The end of a proxy: first no new work, then, at the deadline, none at all.

use tokio::sync::watch;

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Not at all.
    Running,
    /// No new work; peers are told; open connections go on.
    Draining,
    /// Open connections are cut.
    Cut,
}

/// Tells everybody.
#[derive(Debug)]
pub struct Drain(watch::Sender<Phase>);

impl Default for Drain {
    fn default() -> Self {
        Self(watch::channel(Phase::Running).0)
    }
}

impl Drain {
    /// Goes to a later phase; never back.
    pub fn advance(&self, phase: Phase) {
        self.0.send_if_modified(|current| {
            let later = phase > *current;
            if later {
                *current = phase;
            }
            later
        });
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        *self.0.borrow()
    }

    /// Ready when the phase, or a later one, is reached.
    pub async fn reached(&self, phase: Phase) {
        let mut phases = self.0.subscribe();
        // The sender lives as long as we do.
        let _ = phases.wait_for(|current| *current >= phase).await;
    }
}
