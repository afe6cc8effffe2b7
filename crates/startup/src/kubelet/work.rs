//! Executes a pass, one blocking step after another, and the termination of the pod.

use std::collections::VecDeque;

use super::runtime::Sandbox;
use super::status::WaitReason;
use super::{Action, Exit, Hook, Kubelet, Millis, StartError};
use remora_pod::spec::{Kind, Slot};

/// One step of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// Stop everything and remove the dead sandbox.
    ClearSandbox,
    CreateSandbox,
    /// Stop one container, without turns, and wait for its death.
    Kill {
        slot: Slot,
        grace: u64,
    },
    /// Start one container; `seen` is its newest ended instance at the beginning of the pass.
    Start {
        slot: Slot,
        seen: Option<Exit>,
    },
}

/// What a pass is blocked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Creating,
    Clearing,
    RemovingSandbox,
    Killing,
    Starting(Slot),
    PostStart(Slot),
}

/// A pass under way.
#[derive(Debug, Clone, Default)]
pub(super) struct Pass {
    ops: VecDeque<Op>,
    doing: Option<Doing>,
    retry: Option<Millis>,
    acted: bool,
}

impl Pass {
    pub(super) fn new(ops: VecDeque<Op>) -> Self {
        Self {
            ops,
            ..Self::default()
        }
    }
}

/// The present work of the pod worker.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Idle,
    Pass(Pass),
    /// Stopping for good.
    Ending,
    /// All containers are gone, the sandbox is going.
    EndingSandbox,
    Finished,
}

impl Kubelet {
    /// Runs the worker until it has to wait.
    pub(super) fn run_work(&mut self, now: Millis) {
        loop {
            match &self.work {
                Work::Idle if self.is_due(now) => self.begin(now),
                Work::Idle | Work::Finished | Work::EndingSandbox => return,
                Work::Ending => {
                    if !self.lanes_closed() {
                        return;
                    }
                    self.end_sandbox();
                }
                Work::Pass(pass) => {
                    let doing = pass.doing;
                    if doing.is_some_and(|d| self.is_blocked(d)) {
                        return;
                    }
                    self.next_op(now);
                }
            }
        }
    }

    fn is_due(&self, now: Millis) -> bool {
        self.assigned_at.is_some() && self.worker_due().is_some_and(|at| at <= now)
    }

    fn begin(&mut self, now: Millis) {
        if self.relist_due().is_some_and(|at| at <= now) {
            self.runtime.relist();
        }
        self.wake_at = None;
        self.retry_at = None;
        match self.deleted {
            Some(grace) => {
                self.publish();
                self.begin_ending(now, grace);
            }
            None => self.begin_pass(now),
        }
    }

    pub(super) fn begin_ending(&mut self, now: Millis, grace: u64) {
        self.prober.stop_mains(&self.view);
        self.work = Work::Ending;
        let running = self.runtime.running();
        self.open_lanes(now, &running, grace, true);
    }

    fn end_sandbox(&mut self) {
        if self.runtime.sandbox == Sandbox::None {
            self.finish();
            return;
        }
        self.work = Work::EndingSandbox;
        self.out.push_back(Action::StopSandbox);
    }

    pub(super) fn finish(&mut self) {
        self.work = Work::Finished;
        self.prober.stop_all();
        self.publish_final();
        if self.deleted.is_some() && !self.object_gone {
            self.object_gone = true;
            self.out.push_back(Action::Removed);
        }
    }

    fn is_blocked(&mut self, doing: Doing) -> bool {
        match doing {
            Doing::Creating | Doing::RemovingSandbox | Doing::Starting(_) | Doing::PostStart(_) => true,
            Doing::Killing => !self.lanes_closed(),
            Doing::Clearing => {
                if self.lanes_closed() {
                    self.set_doing(Some(Doing::RemovingSandbox));
                    self.out.push_back(Action::StopSandbox);
                }
                true
            }
        }
    }

    fn pass(&mut self) -> Option<&mut Pass> {
        match &mut self.work {
            Work::Pass(pass) => Some(pass),
            _ => None,
        }
    }

    fn doing(&self) -> Option<Doing> {
        match &self.work {
            Work::Pass(pass) => pass.doing,
            _ => None,
        }
    }

    fn set_doing(&mut self, doing: Option<Doing>) {
        if let Some(pass) = self.pass() {
            pass.doing = doing;
        }
    }

    fn next_op(&mut self, now: Millis) {
        self.set_doing(None);
        let Some(op) = self.pass().and_then(|p| p.ops.pop_front()) else {
            self.end_pass(now);
            return;
        };
        if let Some(pass) = self.pass() {
            pass.acted = true;
        }
        match op {
            Op::ClearSandbox => {
                let running = self.runtime.running();
                self.set_doing(Some(Doing::Clearing));
                self.open_lanes(now, &running, self.view.grace_seconds, true);
            }
            Op::CreateSandbox => {
                self.set_doing(Some(Doing::Creating));
                self.out.push_back(Action::CreateSandbox);
            }
            Op::Kill { slot, grace } => {
                self.set_doing(Some(Doing::Killing));
                if self.runtime.is_running(slot) {
                    self.open_lanes(now, &[slot], grace, false);
                }
            }
            Op::Start { slot, seen } => self.begin_start(now, slot, seen),
        }
    }

    fn begin_start(&mut self, now: Millis, slot: Slot, seen: Option<Exit>) {
        let limits = (self.config.first_backoff, self.config.max_backoff);
        if let Err(at) = self.backoff.admit(now, slot, seen, limits) {
            let rest = at
                .saturating_sub(now)
                .saturating_mul(self.config.backoff_jitter.max(1000))
                / 1000;
            self.runtime.cells[slot].error = Some(WaitReason::CrashLoopBackOff);
            self.record(Some(slot), "BackOff");
            self.start_not_possible(slot, now.saturating_add(rest.min(self.config.resync)));
            return;
        }
        self.runtime.cells[slot].attempt += 1;
        let attempt = self.runtime.cells[slot].attempt;
        self.set_doing(Some(Doing::Starting(slot)));
        self.out.push_back(Action::Start(slot, attempt));
    }

    /// k8s: the pass goes on with the next container, except after a regular init container.
    fn start_not_possible(&mut self, slot: Slot, retry: Millis) {
        let stops_pass = self.view.containers[slot].kind == Kind::Init;
        let Some(pass) = self.pass() else { return };
        pass.retry = Some(pass.retry.map_or(retry, |r| r.min(retry)));
        pass.doing = None;
        if stops_pass {
            pass.ops.clear();
        }
    }

    fn end_pass(&mut self, now: Millis) {
        let Work::Pass(pass) = std::mem::replace(&mut self.work, Work::Idle) else {
            return;
        };
        self.retry_at = pass.retry;
        let noticed = pass.acted && self.config.relist_on_demand && self.runtime.changed_since_pass();
        self.stale = pass.acted && !self.config.relist_on_demand && self.runtime.changed_since_pass();
        if noticed {
            self.runtime.relist();
        }
        if noticed || self.wake_at.is_some() || self.deleted.is_some() {
            self.wake_at = Some(now.saturating_add(self.config.pass_delay));
        }
    }

    pub(super) fn sandbox_created(&mut self) {
        if self.doing() == Some(Doing::Creating) {
            self.runtime.sandbox_made();
            self.set_doing(None);
        }
    }

    pub(super) fn sandbox_failed(&mut self, now: Millis) {
        if self.doing() != Some(Doing::Creating) {
            return;
        }
        self.record(None, "FailedCreatePodSandBox");
        let retry = now.saturating_add(self.config.error_retry);
        if let Some(pass) = self.pass() {
            pass.retry = Some(retry);
            pass.doing = None;
            pass.ops.clear();
        }
    }

    pub(super) fn sandbox_stopped(&mut self) {
        self.runtime.sandbox_removed();
        if matches!(self.work, Work::EndingSandbox) {
            self.finish();
        } else if self.doing() == Some(Doing::RemovingSandbox) {
            self.set_doing(None);
        }
    }

    pub(super) fn container_started(&mut self, now: Millis, slot: Slot) {
        if slot >= self.runtime.cells.len() {
            return;
        }
        self.runtime.started(now, slot);
        if self.doing() != Some(Doing::Starting(slot)) {
            return;
        }
        self.record(Some(slot), "Started");
        if self.view.containers[slot].post_start.is_some() {
            self.set_doing(Some(Doing::PostStart(slot)));
            self.out.push_back(Action::RunHook(slot, Hook::PostStart));
        } else {
            self.set_doing(None);
        }
    }

    pub(super) fn start_failed(&mut self, now: Millis, slot: Slot, error: StartError) {
        if self.doing() != Some(Doing::Starting(slot)) {
            return;
        }
        let cell = &mut self.runtime.cells[slot];
        cell.attempt = cell.attempt.saturating_sub(1);
        cell.error = Some(WaitReason::from(error));
        self.record(Some(slot), "Failed");
        self.start_not_possible(slot, now.saturating_add(self.config.error_retry));
    }

    pub(super) fn container_exited(&mut self, now: Millis, slot: Slot, code: i32) {
        if slot >= self.runtime.cells.len() || !self.runtime.exited(now, slot, code) {
            return;
        }
        self.lane_exited(slot);
        self.prober.container_gone(slot);
    }

    pub(super) fn hook_done(&mut self, now: Millis, slot: Slot, hook: Hook, ok: bool) {
        match hook {
            Hook::PreStop => self.lane_hook_done(now, slot, ok),
            Hook::PostStart if self.doing() == Some(Doing::PostStart(slot)) => {
                if ok {
                    self.set_doing(None);
                } else {
                    self.post_start_failed(now, slot);
                }
            }
            Hook::PostStart => {}
        }
    }

    /// k8s: a container whose hook failed is killed with the pod's grace, still inside the pass.
    fn post_start_failed(&mut self, now: Millis, slot: Slot) {
        self.record(Some(slot), "FailedPostStartHook");
        self.runtime.cells[slot].error = Some(WaitReason::PostStartHookError);
        let stops_pass = self.view.containers[slot].kind == Kind::Init;
        if let Some(pass) = self.pass() {
            pass.doing = Some(Doing::Killing);
            if stops_pass {
                pass.ops.clear();
            }
        }
        if self.runtime.is_running(slot) {
            self.open_lanes(now, &[slot], self.view.grace_seconds, false);
        }
    }
}
