//! The phase of the pod, by counting its containers.
//!
//! k8s: an unfinished init container makes it Pending, a failed one under `Never` Failed; a native sidecar counts
//! as running but its end counts for nothing; a main container that never ran makes it Pending even while others
//! run. Phases are not monotonic: a lost sandbox makes a Running pod Pending again.

use super::status::{ContainerState, Phase};
use super::{Exit, Kubelet};
use remora_pod::spec::{Kind, ProbeKind, Slot};

/// Containers counted for the phase.
#[derive(Default)]
struct Census {
    pending_init: bool,
    pending_sidecar: bool,
    failed_init: bool,
    waiting: u32,
    running: u32,
    stopped: u32,
    succeeded: u32,
    restartable: u32,
}

impl Kubelet {
    /// The phase by the rules for counting containers; `ending`: nothing will be started any more.
    pub(super) fn phase_now(&self, ending: bool) -> Phase {
        let census = self.census();
        if census.failed_init {
            return Phase::Failed;
        }
        let uninitialised = census.pending_sidecar && !self.is_initialised();
        if census.pending_init || uninitialised || census.waiting > 0 {
            return Phase::Pending;
        }
        if census.running > 0 {
            return Phase::Running;
        }
        match census.stopped {
            0 => Phase::Pending,
            _ if !ending && census.restartable > 0 => Phase::Running,
            stopped if census.succeeded == stopped => Phase::Succeeded,
            _ => Phase::Failed,
        }
    }

    fn census(&self) -> Census {
        let mut census = Census::default();
        for slot in 0..self.view.containers.len() {
            let state = self.api_state(slot);
            let last = self.runtime.seen[slot].last_exit;
            match self.view.containers[slot].kind {
                Kind::Init => self.count_init(&mut census, slot, state, last),
                Kind::Sidecar => self.count_sidecar(&mut census, slot, state, last),
                Kind::Main => self.count_main(&mut census, slot, state, last),
            }
        }
        census
    }

    fn count_init(&self, census: &mut Census, slot: Slot, state: ContainerState, last: Option<Exit>) {
        match state {
            ContainerState::Running => census.pending_init = true,
            ContainerState::Terminated(0) => {}
            // k8s: an init container that the kubelet stopped does not make a deleted pod Failed.
            ContainerState::Terminated(code) => {
                census.failed_init |= self.deleted.is_none() && !self.may_restart(slot, code);
            }
            ContainerState::Waiting(_) => census.pending_init |= last.is_none(),
        }
    }

    fn count_sidecar(&self, census: &mut Census, slot: Slot, state: ContainerState, last: Option<Exit>) {
        match state {
            ContainerState::Running => {
                census.running += 1;
                let attempt = self.runtime.seen[slot].attempt;
                let gated = self.view.containers[slot].startup.is_some();
                census.pending_sidecar |= gated && !self.prober.succeeded(slot, ProbeKind::Startup, attempt);
            }
            ContainerState::Waiting(_) if last.is_none() => {
                census.pending_sidecar = true;
                census.waiting += 1;
            }
            ContainerState::Waiting(_) | ContainerState::Terminated(_) => {}
        }
    }

    fn count_main(&self, census: &mut Census, slot: Slot, state: ContainerState, last: Option<Exit>) {
        let code = match (state, last) {
            (ContainerState::Running, _) => {
                census.running += 1;
                return;
            }
            (ContainerState::Waiting(_), None) => {
                census.waiting += 1;
                return;
            }
            (ContainerState::Terminated(code), _) => code,
            (ContainerState::Waiting(_), Some(exit)) => exit.code,
        };
        census.stopped += 1;
        census.succeeded += u32::from(code == 0);
        census.restartable += u32::from(self.may_restart(slot, code));
    }
}
