//! Crash back-off: none before the first restart, then 10 s doubling up to the limit.
//!
//! k8s: the decision uses the newest *ended* instance in the snapshot of the pass. After a kill by a probe that
//! snapshot still shows the killed instance as running, so the instance before it counts: a container that its
//! probe kills repeatedly is restarted immediately twice before the first wait.

use std::collections::BTreeMap;

use super::{Exit, Millis};
use remora_pod::spec::Slot;

const BACKOFF_RESET_AFTER: Millis = 600_000;

#[derive(Debug, Clone, Copy)]
struct Entry {
    delay: Millis,
    updated: Millis,
}

/// Back-off entries by container.
#[derive(Debug, Clone, Default)]
pub(super) struct Backoff {
    entries: BTreeMap<Slot, Entry>,
}

impl Backoff {
    /// Admits a start, or returns when it may be tried again.
    pub(super) fn admit(
        &mut self,
        now: Millis,
        slot: Slot,
        seen_exit: Option<Exit>,
        (base, limit): (Millis, Millis),
    ) -> Result<(), Millis> {
        let Some(exit) = seen_exit else { return Ok(()) };
        let entry = self.entries.get(&slot).copied();
        let recent = entry.filter(|e| exit.at.saturating_sub(e.updated) <= BACKOFF_RESET_AFTER);
        if let Some(entry) = recent
            && now.saturating_sub(exit.at) < entry.delay
        {
            return Err(exit.at + entry.delay);
        }
        let delay = recent.map_or(base, |e| e.delay.saturating_mul(2)).min(limit);
        self.entries.insert(slot, Entry { delay, updated: now });
        Ok(())
    }
}
