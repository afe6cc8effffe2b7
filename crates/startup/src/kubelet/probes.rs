//! Probe workers.
//!
//! k8s: a worker ticks from the pass that first saw the pod, not from the start of its container, and it uses
//! the *published* status: a container still inside the pass that started it is not probed. A pass that finds a
//! started but unready container triggers its readiness worker immediately.

use std::collections::BTreeMap;

use super::status::{ContainerState, Status};
use super::{Action, Kubelet, Millis, Outcome};
use remora_pod::spec::{Kind, PodView, Probe, ProbeKind, Slot};

/// What the startup probe of a running sidecar says about its successors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    Wait,
    Kill,
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "four independent facts about one worker"
)]
#[derive(Debug, Clone)]
struct Worker {
    next_tick: Millis,
    /// A tick or a manual trigger that arrived while an attempt was running.
    pending: bool,
    in_flight: bool,
    /// Start count of the instance the counters below belong to.
    attempt: u32,
    result: Option<bool>,
    last: Option<bool>,
    streak: u64,
    /// No more attempts for this instance.
    on_hold: bool,
    stopped: bool,
}

/// All probe workers of the pod.
#[derive(Debug, Clone, Default)]
pub(super) struct Prober {
    workers: BTreeMap<(Slot, ProbeKind), Worker>,
}

impl Prober {
    pub(super) fn register(&mut self, now: Millis, view: &PodView) {
        if !self.workers.is_empty() {
            return;
        }
        for (slot, container) in view.containers.iter().enumerate() {
            for kind in ProbeKind::ALL {
                if container.kind != Kind::Init && container.probe(kind).is_some() {
                    self.workers.insert((slot, kind), Worker::new(now));
                }
            }
        }
    }

    pub(super) fn next_tick(&self) -> Option<Millis> {
        let due = |w: &Worker| if w.pending && !w.in_flight { 0 } else { w.next_tick };
        self.workers.values().filter(|w| !w.stopped).map(due).min()
    }

    pub(super) fn kick_unready(&mut self, published: &Status) {
        for ((slot, kind), worker) in &mut self.workers {
            let status = &published.containers[*slot];
            let wants = *kind == ProbeKind::Readiness && status.started && !status.ready;
            if wants && status.state == ContainerState::Running {
                worker.pending = true;
            }
        }
    }

    fn get(&self, slot: Slot, kind: ProbeKind) -> Option<&Worker> {
        self.workers.get(&(slot, kind))
    }

    pub(super) fn startup_verdict(&self, slot: Slot, attempt: u32) -> Verdict {
        let result = self
            .get(slot, ProbeKind::Startup)
            .filter(|w| w.attempt == attempt)
            .and_then(|w| w.result);
        match result {
            Some(true) => Verdict::Pass,
            Some(false) => Verdict::Kill,
            None => Verdict::Wait,
        }
    }

    pub(super) fn succeeded(&self, slot: Slot, kind: ProbeKind, attempt: u32) -> bool {
        self.get(slot, kind)
            .is_some_and(|w| w.attempt == attempt && w.result == Some(true))
    }

    /// Whether this probe has failed for the running instance.
    pub(super) fn failed(&self, slot: Slot, kind: ProbeKind) -> bool {
        self.get(slot, kind).is_some_and(|w| w.result == Some(false))
    }

    /// Discards the results of an instance that has ended.
    pub(super) fn container_gone(&mut self, slot: Slot) {
        for ((s, _), worker) in &mut self.workers {
            if *s == slot {
                worker.result = None;
                worker.on_hold = true;
            }
        }
    }

    /// k8s: when the pod ends, startup and liveness of mains stop; readiness and all of sidecars go on.
    pub(super) fn stop_mains(&mut self, view: &PodView) {
        for ((slot, kind), worker) in &mut self.workers {
            if view.containers[*slot].kind == Kind::Main && *kind != ProbeKind::Readiness {
                worker.stopped = true;
            }
        }
    }

    pub(super) fn stop_all(&mut self) {
        for worker in self.workers.values_mut() {
            worker.stopped = true;
        }
    }
}

impl Worker {
    fn new(now: Millis) -> Self {
        Self {
            next_tick: now,
            pending: false,
            in_flight: false,
            attempt: 0,
            result: None,
            last: None,
            streak: 0,
            on_hold: false,
            stopped: false,
        }
    }

    /// Consumes a due tick or trigger; true if the worker must probe now.
    fn tick(&mut self, now: Millis, period: Millis) -> bool {
        let ticked = self.next_tick <= now;
        if ticked {
            let behind = now - self.next_tick;
            let step = (behind / period + 1).saturating_mul(period);
            self.next_tick = self.next_tick.saturating_add(step);
        }
        if self.in_flight {
            self.pending |= ticked;
            return false;
        }
        if self.pending && !ticked {
            self.next_tick = now.saturating_add(period);
        }
        std::mem::take(&mut self.pending) || ticked
    }

    fn adopt(&mut self, attempt: u32, kind: ProbeKind) {
        self.attempt = attempt;
        self.result = match kind {
            ProbeKind::Startup => None,
            ProbeKind::Readiness => Some(false),
            ProbeKind::Liveness => Some(true),
        };
        self.last = None;
        self.streak = 0;
        self.on_hold = false;
    }

    /// Counts an attempt; returns a verdict that is new.
    fn count(&mut self, ok: bool, probe: &Probe) -> Option<bool> {
        self.streak = if self.last == Some(ok) { self.streak + 1 } else { 1 };
        self.last = Some(ok);
        let threshold = if ok {
            probe.success_threshold
        } else {
            probe.failure_threshold
        };
        if self.streak < threshold || self.result == Some(ok) {
            return None;
        }
        self.result = Some(ok);
        Some(ok)
    }
}

impl Kubelet {
    /// Lets every worker that is due act.
    pub(super) fn run_probes(&mut self, now: Millis) {
        let keys: Vec<_> = self.prober.workers.keys().copied().collect();
        for (slot, kind) in keys {
            self.run_probe(now, slot, kind);
        }
    }

    fn run_probe(&mut self, now: Millis, slot: Slot, kind: ProbeKind) {
        let Some(probe) = self.view.containers[slot].probe(kind) else {
            return;
        };
        let (period, initial_delay) = (probe.period.saturating_mul(1000), probe.initial_delay);
        let status = &self.published.containers[slot];
        let Some(worker) = self.prober.workers.get_mut(&(slot, kind)) else {
            return;
        };
        if worker.stopped || !worker.tick(now, period) || status.state != ContainerState::Running {
            return;
        }
        let (attempt, started, since) = (status.attempt, status.started, status.since);
        if worker.attempt != attempt {
            worker.adopt(attempt, kind);
            if kind != ProbeKind::Liveness {
                // k8s: the initial result of a new instance is itself a change that wakes the worker.
                self.wake(now);
            }
        }
        let Some(worker) = self.prober.workers.get_mut(&(slot, kind)) else {
            return;
        };
        let too_early = now.saturating_sub(since) / 1000 < initial_delay;
        if worker.on_hold || too_early || started == (kind == ProbeKind::Startup) {
            return;
        }
        worker.in_flight = true;
        self.out.push_back(Action::RunProbe(slot, kind));
    }

    pub(super) fn probed(&mut self, now: Millis, slot: Slot, kind: ProbeKind, outcome: Outcome) {
        let Some(probe) = self.view.containers.get(slot).and_then(|c| c.probe(kind)) else {
            return;
        };
        let Some(worker) = self.prober.workers.get_mut(&(slot, kind)) else {
            return;
        };
        worker.in_flight = false;
        let ok = outcome == Outcome::Success;
        if worker.on_hold || worker.stopped || outcome == Outcome::Error {
            return;
        }
        let new = worker.count(ok, probe);
        worker.on_hold = match kind {
            ProbeKind::Startup => new.is_some(),
            ProbeKind::Liveness => new == Some(false),
            ProbeKind::Readiness => false,
        };
        if !ok {
            self.record(Some(slot), "Unhealthy");
        }
        if let Some(verdict) = new {
            self.publish_verdict(slot, kind, verdict);
            if kind != ProbeKind::Liveness || !verdict {
                self.wake(now);
            }
        }
    }
}
