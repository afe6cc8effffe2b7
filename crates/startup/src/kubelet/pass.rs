//! Decides what a pass does, from one snapshot of the pod.

use std::collections::VecDeque;

use super::probes::Verdict;
use super::runtime::{Instance, Sandbox};
use super::work::{Op, Pass, Work};
use super::{Kubelet, Millis};
use remora_pod::spec::{Kind, ProbeKind, RestartPolicy, Slot};

/// What the init containers allow.
#[derive(Debug, Default)]
struct InitPlan {
    kills: Vec<(Slot, u64)>,
    starts: Vec<Slot>,
    /// Main containers may start in this pass.
    initialised: bool,
    /// An init container failed for good.
    failed: bool,
}

impl Kubelet {
    pub(super) fn begin_pass(&mut self, now: Millis) {
        self.publish();
        self.prober.register(now, &self.view);
        self.prober.kick_unready(&self.published);
        self.over_deadline |= self.deadline_passed(now);
        if self.over_deadline || self.phase_now(false).is_terminal() {
            self.begin_ending(now, self.view.grace_seconds);
            return;
        }
        match self.plan() {
            Some(ops) => self.work = Work::Pass(Pass::new(ops)),
            None => self.begin_ending(now, self.view.grace_seconds),
        }
    }

    /// The steps of this pass; `None` when the pod is to be stopped for good.
    fn plan(&self) -> Option<VecDeque<Op>> {
        if self.runtime.sandbox != Sandbox::Ready {
            return self.plan_sandbox();
        }
        let init = self.plan_init();
        if init.failed {
            return None;
        }
        let mut kills = init.kills;
        let mut starts = init.starts;
        if init.initialised && !self.plan_mains(&mut kills, &mut starts) {
            return None;
        }
        let kills = kills.into_iter().map(|(slot, grace)| Op::Kill { slot, grace });
        Some(kills.chain(starts.into_iter().map(|s| self.start(s))).collect())
    }

    fn start(&self, slot: Slot) -> Op {
        Op::Start {
            slot,
            seen: self.runtime.seen[slot].last_exit,
        }
    }

    /// A new sandbox: init containers run again from the first, in the new network.
    fn plan_sandbox(&self) -> Option<VecDeque<Op>> {
        let lost = self.runtime.sandbox == Sandbox::Lost;
        let ran = self.runtime.seen.iter().any(|c| c.attempt > 0);
        if lost && ran && self.view.restart_policy == RestartPolicy::Never {
            return None;
        }
        let wanted: Vec<Slot> = self.view.main_slots().filter(|s| !self.is_done(*s)).collect();
        if wanted.is_empty() && ran {
            return None;
        }
        let mut ops = VecDeque::new();
        if lost {
            ops.push_back(Op::ClearSandbox);
        }
        ops.push_back(Op::CreateSandbox);
        if self.view.init_slots().is_empty() {
            ops.extend(wanted.into_iter().map(|s| self.start(s)));
        } else {
            // k8s: the ended init containers are removed with the sandbox, so no back-off looks at them.
            ops.push_back(Op::Start { slot: 0, seen: None });
        }
        Some(ops)
    }

    fn is_done(&self, slot: Slot) -> bool {
        let exit = self.runtime.seen[slot].last_exit;
        self.policy(slot) == RestartPolicy::OnFailure && exit.is_some_and(|e| e.code == 0)
    }

    /// Whether a main container of this sandbox exists in any state.
    pub(super) fn is_initialised(&self) -> bool {
        self.view
            .main_slots()
            .any(|s| self.runtime.seen[s].instance != Instance::None)
    }

    /// Walks the init containers from last to first; all containers before one that has run are complete.
    fn plan_init(&self) -> InitPlan {
        let initialised = self.is_initialised();
        let mut plan = InitPlan {
            initialised,
            ..InitPlan::default()
        };
        let mut later_has_run = initialised;
        let mut any = false;
        for slot in self.view.init_slots().rev() {
            let sidecar = self.view.containers[slot].kind == Kind::Sidecar;
            let instance = self.runtime.seen[slot].instance;
            if instance == Instance::None {
                // A native sidecar has to run even if later containers have started already.
                if later_has_run && sidecar {
                    plan.starts.push(slot);
                }
                continue;
            }
            any = true;
            // A regular init container has succeeded if a later container has run; it does not run again.
            if later_has_run && !sidecar {
                continue;
            }
            self.plan_one_init(&mut plan, slot, later_has_run);
            later_has_run = true;
        }
        if !any && !initialised {
            match self.view.init_slots().next() {
                Some(first) => plan.starts = vec![first],
                None => plan.initialised = true,
            }
        }
        plan.starts.sort_unstable();
        plan.starts.dedup();
        plan
    }

    fn plan_one_init(&self, plan: &mut InitPlan, slot: Slot, later_has_run: bool) {
        let sidecar = self.view.containers[slot].kind == Kind::Sidecar;
        let next = Some(slot + 1).filter(|n| self.view.init_slots().contains(n));
        let mut proceed = || match next {
            None => plan.initialised = true,
            Some(next) if !later_has_run => plan.starts.push(next),
            Some(_) => {}
        };
        match self.runtime.seen[slot].instance {
            Instance::Running { .. } if sidecar => {
                let verdict = self.gate(slot);
                if verdict == Verdict::Pass {
                    proceed();
                }
                if verdict == Verdict::Kill || self.prober.failed(slot, ProbeKind::Liveness) {
                    plan.kills.push((slot, self.kill_grace(slot)));
                    plan.starts.push(slot);
                }
            }
            Instance::None | Instance::Running { .. } => {}
            Instance::Exited(_) if sidecar => plan.starts.push(slot),
            Instance::Exited(exit) if exit.code == 0 => proceed(),
            Instance::Exited(exit) => {
                if self.may_restart(slot, exit.code) {
                    plan.starts.push(slot);
                } else {
                    plan.failed = true;
                }
            }
        }
    }

    /// Whether a running sidecar lets its successors start.
    fn gate(&self, slot: Slot) -> Verdict {
        if self.view.containers[slot].startup.is_none() {
            return Verdict::Pass;
        }
        self.prober.startup_verdict(slot, self.runtime.seen[slot].attempt)
    }

    /// Grace of a kill caused by a probe: the probe's own, else the pod's.
    fn kill_grace(&self, slot: Slot) -> u64 {
        let container = &self.view.containers[slot];
        let failed = [ProbeKind::Startup, ProbeKind::Liveness].into_iter();
        let own = failed
            .filter(|k| self.prober.failed(slot, *k))
            .find_map(|k| container.probe(k)?.grace_seconds);
        own.unwrap_or(self.view.grace_seconds)
    }

    /// Adds the mains; false when none runs and none is to be started.
    fn plan_mains(&self, kills: &mut Vec<(Slot, u64)>, starts: &mut Vec<Slot>) -> bool {
        let mut alive = false;
        for slot in self.view.main_slots() {
            match self.runtime.seen[slot].instance {
                Instance::None if !self.is_done(slot) => {
                    starts.push(slot);
                    alive = true;
                }
                Instance::None => {}
                Instance::Exited(exit) => {
                    if self.may_restart(slot, exit.code) {
                        starts.push(slot);
                        alive = true;
                    }
                }
                Instance::Running { .. } => {
                    let failed = [ProbeKind::Startup, ProbeKind::Liveness];
                    if failed.iter().any(|k| self.prober.failed(slot, *k)) {
                        kills.push((slot, self.kill_grace(slot)));
                        if self.policy(slot) != RestartPolicy::Never {
                            starts.push(slot);
                        }
                    }
                    alive = true;
                }
            }
        }
        alive
    }
}
