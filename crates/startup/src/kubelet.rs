//! The kubelet's side of one pod, as a step function.
//!
//! [`Kubelet::step`] takes the time and one [`Event`] and returns [`Action`]s; between events it does
//! nothing but wait, and [`Kubelet::next_wakeup`] says until when. The driver executes the actions and reports
//! their results: the simulator on a virtual clock, the engine on a real one.
//!
//! The rules (`docs/model.md` has the sources and the evidence):
//! * One worker per pod. It reads the state of the pod once at the beginning of a *pass* (`syncPod`), publishes it,
//!   decides everything from that state, then acts; it sees no effect of its actions before the next pass.
//! * A pass blocks on each thing it does: starting a container includes its postStart hook, killing one
//!   includes its preStop hook and its death. Deletion is only noticed between passes.
//! * Regular init containers run one after another; a native sidecar counts as started when its process
//!   exists and its startup probe, if any, has succeeded; the init gate is passed once per sandbox.
//! * A main container that cannot be started does not keep the next one from starting.
//! * Stop: all preStop hooks concurrently, then mains, then native sidecars from last to first, one shared grace
//!   period.
//!
//! It keeps no clock and does no IO, and it knows nothing about meshes.

use std::collections::VecDeque;

use remora_pod::spec::{Hook, PodView, ProbeKind, RestartPolicy, Slot};

mod backoff;
mod pass;
mod phase;
mod probes;
mod runtime;
mod status;
mod stop;
#[cfg(test)]
mod tests;
mod work;

pub use runtime::{Exit, StartError};
pub use status::{ContainerState, ContainerStatus, Phase, Status, WaitReason};

use backoff::Backoff;
use probes::Prober;
use runtime::Runtime;
use stop::Lane;
use work::Work;

/// Milliseconds since the driver's zero.
pub type Millis = u64;

/// The kubelet's own settings and speed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Interval at which the kubelet lists the containers of the runtime (PLEG relist).
    pub relist_period: Millis,
    /// Time of the first relist.
    pub relist_phase: Millis,
    /// Whether a pass that changed something relists immediately (kubelets from 1.36 on).
    pub relist_on_demand: bool,
    /// Time from being woken to the beginning of a pass.
    pub pass_delay: Millis,
    /// Factor in thousandths by which the rest of a back-off is stretched: 1000 to 1500.
    pub backoff_jitter: u64,
    /// Longest time between two passes.
    pub resync: Millis,
    /// Crash back-off before the second restart; it doubles from there.
    pub first_backoff: Millis,
    /// Longest crash back-off.
    pub max_backoff: Millis,
    /// Retry after a pass that failed for another reason than a back-off.
    pub error_retry: Millis,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            relist_period: 1000,
            relist_phase: 500,
            relist_on_demand: true,
            pass_delay: 0,
            backoff_jitter: 1250,
            resync: 60_000,
            first_backoff: 10_000,
            max_backoff: 300_000,
            error_retry: 10_000,
        }
    }
}

impl Config {
    /// The settings of a kubelet of this version (`1.34`, `v1.36.2`…), as far as they differ by version.
    pub fn for_version(version: &str) -> Self {
        let minor = version.trim_start_matches('v').split('.').nth(1);
        let minor = minor.and_then(|m| m.trim_end_matches('+').parse::<u32>().ok());
        // k8s: on-demand relisting came with 1.36.
        Self {
            relist_on_demand: minor.is_none_or(|m| m >= 36),
            ..Self::default()
        }
    }
}

/// An event that the driver reports to the kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The pod was assigned to this node.
    Assigned,
    /// Time has passed.
    Tick,
    /// The requested sandbox was created, network included.
    SandboxCreated,
    /// The requested sandbox could not be created.
    SandboxFailed,
    /// The sandbox was removed, as requested.
    SandboxStopped,
    /// The sandbox died by itself.
    SandboxLost,
    /// The container's process exists.
    Started(Slot),
    /// The container could not be started.
    StartFailed(Slot, StartError),
    /// The container's process ended.
    Exited(Slot, i32),
    /// A hook ended.
    HookDone(Slot, Hook, bool),
    /// One attempt of a probe ended.
    Probed(Slot, ProbeKind, Outcome),
    /// The pod was deleted through the API server, with this grace period if the request had one.
    Deleted(Option<u64>),
    /// The kubelet is back after a restart and remembers nothing.
    Restarted,
}

/// Result of one attempt of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Success,
    /// It failed.
    Failure,
    /// It could not be made; the attempt does not count.
    Error,
}

/// An action that the driver must execute.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make a sandbox with its network.
    CreateSandbox,
    /// Remove the sandbox.
    StopSandbox,
    /// Start this container, for the nth time.
    Start(Slot, u32),
    /// Run this hook.
    RunHook(Slot, Hook),
    /// Stop waiting for this hook; it is not killed.
    AbandonHook(Slot, Hook),
    /// Make one attempt of this probe.
    RunProbe(Slot, ProbeKind),
    /// Send the stop signal, and kill after this time.
    Stop(Slot, Millis),
    /// Publish this status.
    Publish(Box<Status>),
    /// Write an event such as `BackOff` or `FailedPostStartHook`.
    Record(Option<Slot>, &'static str),
    /// The API object is gone.
    Removed,
}

/// One pod on one kubelet.
#[derive(Debug, Clone)]
pub struct Kubelet {
    view: PodView,
    config: Config,
    runtime: Runtime,
    backoff: Backoff,
    prober: Prober,
    published: Status,
    work: Work,
    lanes: Vec<Lane>,
    wake_at: Option<Millis>,
    /// The last pass caused a change that the kubelet has not seen yet; it must not decide before it has.
    stale: bool,
    retry_at: Option<Millis>,
    assigned_at: Option<Millis>,
    deleted: Option<u64>,
    object_gone: bool,
    over_deadline: bool,
    out: VecDeque<Action>,
}

impl Kubelet {
    /// A kubelet that this pod is not assigned to yet.
    pub fn new(view: PodView, config: Config) -> Self {
        let runtime = Runtime::new(view.containers.len());
        let published = Status::pending(&view);
        Self {
            view,
            config,
            runtime,
            backoff: Backoff::default(),
            prober: Prober::default(),
            published,
            work: Work::Idle,
            lanes: Vec::new(),
            wake_at: None,
            stale: false,
            retry_at: None,
            assigned_at: None,
            deleted: None,
            object_gone: false,
            over_deadline: false,
            out: VecDeque::new(),
        }
    }

    /// The pod as this kubelet understands it.
    pub fn view(&self) -> &PodView {
        &self.view
    }

    /// The status last published.
    pub fn status(&self) -> &Status {
        &self.published
    }

    /// Whether there is nothing left to do for this pod.
    pub fn is_finished(&self) -> bool {
        matches!(self.work, Work::Finished)
    }

    /// When [`Event::Tick`] is due next, if nothing else happens before.
    pub fn next_wakeup(&self, now: Millis) -> Option<Millis> {
        let worker = self.worker_due().filter(|_| matches!(self.work, Work::Idle));
        let lanes = self.lanes.iter().filter_map(Lane::deadline);
        worker
            .into_iter()
            .chain(lanes)
            .chain(self.prober.next_tick())
            .min()
            .map(|at| at.max(now))
    }

    /// Handles one event and returns the actions to execute, in order.
    pub fn step(&mut self, now: Millis, event: Event) -> Vec<Action> {
        self.handle_event(now, event);
        self.run_lanes(now);
        self.run_work(now);
        self.run_probes(now);
        self.out.drain(..).collect()
    }

    fn handle_event(&mut self, now: Millis, event: Event) {
        match event {
            Event::Assigned => {
                self.assigned_at = Some(now);
                self.wake(now);
            }
            Event::Tick => {}
            Event::SandboxCreated => self.sandbox_created(),
            Event::SandboxFailed => self.sandbox_failed(now),
            Event::SandboxStopped => self.sandbox_stopped(),
            Event::SandboxLost => self.runtime.sandbox_lost(now),
            Event::Started(slot) => self.container_started(now, slot),
            Event::StartFailed(slot, error) => self.start_failed(now, slot, error),
            Event::Exited(slot, code) => self.container_exited(now, slot, code),
            Event::HookDone(slot, hook, ok) => self.hook_done(now, slot, hook, ok),
            Event::Probed(slot, kind, outcome) => self.probed(now, slot, kind, outcome),
            Event::Deleted(grace) => self.delete(now, grace),
            Event::Restarted => self.restart(now),
        }
    }

    fn delete(&mut self, now: Millis, grace: Option<u64>) {
        let asked = grace.unwrap_or(self.view.grace_seconds);
        if (grace == Some(0) || self.is_finished()) && !self.object_gone {
            self.object_gone = true;
            self.out.push_back(Action::Removed);
        }
        let effective = asked.max(1).min(self.deleted.unwrap_or(u64::MAX));
        self.deleted = Some(effective);
        self.wake(now);
        self.shorten_lanes(now, effective);
    }

    /// k8s: hooks in flight, probe results and back-offs live in the kubelet's memory only.
    fn restart(&mut self, now: Millis) {
        self.work = if matches!(self.work, Work::Finished) {
            Work::Finished
        } else {
            Work::Idle
        };
        self.lanes.clear();
        self.backoff = Backoff::default();
        self.prober = Prober::default();
        self.runtime.relist();
        self.stale = false;
        self.retry_at = None;
        self.wake_at = None;
        self.wake(now);
    }

    fn wake(&mut self, now: Millis) {
        let at = now.saturating_add(self.config.pass_delay);
        self.wake_at = Some(self.wake_at.map_or(at, |w| w.min(at)));
    }

    /// When the worker starts its next pass.
    fn worker_due(&self) -> Option<Millis> {
        let relist = self.relist_due();
        if self.stale && relist.is_some() {
            return relist;
        }
        [self.wake_at, self.retry_at, self.deadline(), relist]
            .into_iter()
            .flatten()
            .min()
    }

    fn relist_due(&self) -> Option<Millis> {
        if !self.runtime.changed_since_pass() {
            return None;
        }
        let Config {
            relist_period,
            relist_phase,
            ..
        } = self.config;
        let since = self.runtime.changed_at().max(relist_phase) - relist_phase;
        let period = relist_period.max(1);
        let due = relist_phase.saturating_add(since.div_ceil(period).saturating_mul(period));
        Some(due.saturating_add(self.config.pass_delay))
    }

    fn deadline(&self) -> Option<Millis> {
        let seconds = self.view.active_deadline_seconds?;
        Some(self.assigned_at?.saturating_add(seconds.saturating_mul(1000)))
    }

    fn deadline_passed(&self, now: Millis) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }

    /// The restart policy of a container: its own, else the pod's.
    fn policy(&self, slot: Slot) -> RestartPolicy {
        self.view.containers[slot]
            .own_restart
            .unwrap_or(self.view.restart_policy)
    }

    /// Whether policy lets an ended container start again; never once the pod is being deleted.
    fn may_restart(&self, slot: Slot, code: i32) -> bool {
        use remora_pod::spec::Kind;
        if self.deleted.is_some() {
            return false;
        }
        let container = &self.view.containers[slot];
        if container.kind == Kind::Sidecar || container.restart_rules.iter().any(|r| r.applies(code)) {
            return true;
        }
        match (container.kind, self.policy(slot)) {
            (_, RestartPolicy::Never) => false,
            (Kind::Main, RestartPolicy::Always) => true,
            (_, RestartPolicy::Always | RestartPolicy::OnFailure) => code != 0,
        }
    }

    fn record(&mut self, slot: Option<Slot>, reason: &'static str) {
        self.out.push_back(Action::Record(slot, reason));
    }
}
