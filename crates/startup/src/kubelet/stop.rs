//! Stopping containers: one lane each, all in parallel.
//!
//! k8s: a lane first runs the preStop hook, at most for the whole grace period, and only then waits for its
//! turn. A native sidecar's hook therefore runs at the very beginning, concurrently with those of the mains. The
//! time of hook and wait, in whole seconds, is subtracted from the grace period; two seconds always remain for the
//! stop itself.

use super::{Action, Hook, Kubelet, Millis};
use remora_pod::spec::{Kind, Slot};

const MINIMUM_GRACE: Millis = 2000;

/// The stage of stopping a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    PreStop { since: Millis },
    Turn { since: Millis },
    Signalled,
    Done,
}

/// The termination of one container.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    slot: Slot,
    stage: Stage,
    left: Millis,
    /// Whether native sidecars wait for their turn; false when a single container is restarted.
    ordered: bool,
}

impl Lane {
    pub(super) fn deadline(&self) -> Option<Millis> {
        match self.stage {
            Stage::PreStop { since } | Stage::Turn { since } => Some(since.saturating_add(self.left)),
            Stage::Signalled | Stage::Done => None,
        }
    }
}

impl Kubelet {
    /// Begins to stop these containers.
    pub(super) fn open_lanes(&mut self, now: Millis, slots: &[Slot], grace_seconds: u64, ordered: bool) {
        let left = grace_seconds.saturating_mul(1000);
        for &slot in slots {
            let hook = self.view.containers[slot].pre_stop.is_some();
            let stage = if hook {
                Stage::PreStop { since: now }
            } else {
                Stage::Turn { since: now }
            };
            if hook {
                self.out.push_back(Action::RunHook(slot, Hook::PreStop));
            }
            self.record(Some(slot), "Killing");
            self.lanes.push(Lane {
                slot,
                stage,
                left,
                ordered,
            });
        }
        self.run_lanes(now);
    }

    /// Whether every lane has reached its end; forgets them if so.
    pub(super) fn lanes_closed(&mut self) -> bool {
        let closed = self.lanes.iter().all(|l| l.stage == Stage::Done);
        if closed {
            self.lanes.clear();
        }
        closed
    }

    pub(super) fn lane_hook_done(&mut self, now: Millis, slot: Slot, ok: bool) {
        let Some(lane) = self.lanes.iter_mut().find(|l| l.slot == slot) else {
            return;
        };
        if let Stage::PreStop { since } = lane.stage {
            lane.left = lane.left.saturating_sub(whole_seconds(now.saturating_sub(since)));
            lane.stage = Stage::Turn { since: now };
            if !ok {
                self.record(Some(slot), "FailedPreStopHook");
            }
        }
    }

    pub(super) fn lane_exited(&mut self, slot: Slot) {
        for lane in self.lanes.iter_mut().filter(|l| l.slot == slot) {
            lane.stage = Stage::Done;
        }
    }

    /// Moves lanes on until none can move.
    pub(super) fn run_lanes(&mut self, now: Millis) {
        for index in 0..self.lanes.len() {
            self.expire_hook(now, index);
        }
        for index in 0..self.lanes.len() {
            self.take_turn(now, index);
        }
    }

    fn expire_hook(&mut self, now: Millis, index: usize) {
        let lane = &mut self.lanes[index];
        if let Stage::PreStop { since } = lane.stage
            && now >= since.saturating_add(lane.left)
        {
            lane.left = 0;
            lane.stage = Stage::Turn { since: now };
            let slot = lane.slot;
            self.out.push_back(Action::AbandonHook(slot, Hook::PreStop));
            self.record(Some(slot), "FailedPreStopHook");
        }
    }

    fn take_turn(&mut self, now: Millis, index: usize) {
        let Lane {
            slot,
            stage: Stage::Turn { since },
            left,
            ordered,
        } = self.lanes[index]
        else {
            return;
        };
        let waited = now.saturating_sub(since);
        if ordered && !self.is_turn_of(slot) && waited < left {
            return;
        }
        let lane = &mut self.lanes[index];
        lane.left = left.saturating_sub(whole_seconds(waited)).max(MINIMUM_GRACE);
        lane.stage = Stage::Signalled;
        let grace = lane.left;
        self.out.push_back(Action::Stop(slot, grace));
    }

    /// Mains and regular init containers wait for nothing; a native sidecar for the mains and the next sidecar.
    fn is_turn_of(&self, slot: Slot) -> bool {
        if self.view.containers[slot].kind != Kind::Sidecar {
            return true;
        }
        let done = |other: Slot| {
            self.lanes
                .iter()
                .filter(|l| l.slot == other)
                .all(|l| l.stage == Stage::Done)
        };
        let next = self
            .view
            .init_slots()
            .find(|s| *s > slot && self.view.containers[*s].kind == Kind::Sidecar);
        self.view.main_slots().all(done) && next.is_none_or(done)
    }

    /// A later request can only shorten the time left.
    pub(super) fn shorten_lanes(&mut self, now: Millis, grace_seconds: u64) {
        let grace = grace_seconds.saturating_mul(1000);
        let mut again = Vec::new();
        for lane in &mut self.lanes {
            match lane.stage {
                Stage::PreStop { since } | Stage::Turn { since } => {
                    lane.left = lane.left.min(now.saturating_sub(since).saturating_add(grace));
                }
                Stage::Signalled if lane.left > grace.max(MINIMUM_GRACE) => {
                    lane.left = grace.max(MINIMUM_GRACE);
                    again.push(Action::Stop(lane.slot, lane.left));
                }
                Stage::Signalled | Stage::Done => {}
            }
        }
        self.out.extend(again);
    }
}

const fn whole_seconds(elapsed: Millis) -> Millis {
    elapsed / 1000 * 1000
}
