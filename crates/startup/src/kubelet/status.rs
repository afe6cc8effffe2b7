//! What the API shows of the pod.
//!
//! k8s: a status is computed at the beginning of a pass, so nothing a pass does shows before the next one:
//! not the address of a new sandbox, not a container that is still inside its postStart hook.
//! Probe results are the exception; they are written immediately.

use super::runtime::{Instance, Sandbox};
use super::{Action, Exit, Kubelet, Millis, StartError};
use remora_pod::spec::{Kind, PodView, ProbeKind, Slot};

/// Phase of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not everything has started.
    Pending,
    /// At least one container runs or will.
    Running,
    /// All mains ended well, for good.
    Succeeded,
    /// All mains ended, not all well.
    Failed,
}

impl Phase {
    /// Whether the pod stays in this phase.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// As the API writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// Why a container waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// Its turn has not come, in a pod without init containers.
    ContainerCreating,
    /// Its turn has not come, in a pod with init containers.
    PodInitializing,
    /// It crashed and will be tried again later.
    CrashLoopBackOff,
    /// Its image cannot be pulled.
    ErrImagePull,
    /// Its configuration refers to something that does not exist.
    CreateContainerConfigError,
    /// The runtime refused it.
    RunContainerError,
    /// Its postStart hook failed and it was killed.
    PostStartHookError,
}

impl WaitReason {
    /// As `kubectl` shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ContainerCreating => "ContainerCreating",
            Self::PodInitializing => "PodInitializing",
            Self::CrashLoopBackOff => "CrashLoopBackOff",
            Self::ErrImagePull => "ErrImagePull",
            Self::CreateContainerConfigError => "CreateContainerConfigError",
            Self::RunContainerError => "RunContainerError",
            Self::PostStartHookError => "PostStartHookError",
        }
    }
}

impl From<StartError> for WaitReason {
    fn from(error: StartError) -> Self {
        match error {
            StartError::ImagePull => Self::ErrImagePull,
            StartError::Config => Self::CreateContainerConfigError,
            StartError::Runtime => Self::RunContainerError,
        }
    }
}

/// State of a container in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerState {
    /// Not there (yet, or again).
    Waiting(WaitReason),
    /// Its process exists.
    Running,
    /// Its process ended with this code.
    Terminated(i32),
}

/// A container in the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerStatus {
    /// Its state.
    pub state: ContainerState,
    /// How its last ended instance ended, while it waits.
    pub last: Option<Exit>,
    /// Whether it counts as ready.
    pub ready: bool,
    /// Whether it counts as started.
    pub started: bool,
    /// Number of starts so far; 0 before the first.
    pub attempt: u32,
    /// When the running instance started.
    pub since: Millis,
}

impl ContainerStatus {
    /// `restartCount`.
    pub fn restarts(&self) -> u32 {
        self.attempt.saturating_sub(1)
    }
}

/// The published status of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Phase.
    pub phase: Phase,
    /// Number of the sandbox whose address is published; 0 while `podIP` is empty.
    pub pod_ip: u32,
    /// Condition `Initialized`.
    pub initialized: bool,
    /// Condition `ContainersReady`, which is `Ready` for pods without readiness gates.
    pub ready: bool,
    /// Whether the pod was deleted (`deletionTimestamp` is set).
    pub deleting: bool,
    /// By slot.
    pub containers: Vec<ContainerStatus>,
}

impl Status {
    pub(super) fn pending(view: &PodView) -> Self {
        let state = ContainerState::Waiting(first_reason(view));
        let one = ContainerStatus {
            state,
            last: None,
            ready: false,
            started: false,
            attempt: 0,
            since: 0,
        };
        Self {
            phase: Phase::Pending,
            pod_ip: 0,
            initialized: false,
            ready: false,
            deleting: false,
            containers: vec![one; view.containers.len()],
        }
    }

    /// What `kubectl get pod` writes in its STATUS column.
    pub fn kubectl(&self, view: &PodView) -> String {
        if self.deleting && !self.phase.is_terminal() {
            return "Terminating".to_owned();
        }
        if let Some(text) = self.kubectl_init(view) {
            return text;
        }
        let mains = view.main_slots().filter_map(|s| self.containers.get(s));
        let waiting = mains.clone().find_map(|c| match c.state {
            ContainerState::Waiting(reason) => Some(reason.as_str()),
            ContainerState::Terminated(code) if code != 0 => Some("Error"),
            _ => None,
        });
        let completed = mains.clone().any(|c| c.state == ContainerState::Terminated(0));
        let running = mains.clone().any(|c| c.state == ContainerState::Running);
        match (waiting, completed, running) {
            (Some(reason), ..) => reason.to_owned(),
            (None, true, false) => "Completed".to_owned(),
            (None, true, true) if !self.ready => "NotReady".to_owned(),
            _ => self.phase.as_str().to_owned(),
        }
    }

    fn kubectl_init(&self, view: &PodView) -> Option<String> {
        let slots = view.init_slots();
        let total = slots.len();
        for slot in slots {
            let status = self.containers.get(slot)?;
            let sidecar = view.containers[slot].kind == Kind::Sidecar;
            match status.state {
                ContainerState::Terminated(0) => {}
                ContainerState::Running if sidecar && status.started => {}
                ContainerState::Terminated(137) => return Some("Init:Signal:9".to_owned()),
                ContainerState::Terminated(_) => return Some("Init:Error".to_owned()),
                ContainerState::Waiting(WaitReason::PodInitializing) | ContainerState::Running => {
                    return Some(format!("Init:{slot}/{total}"));
                }
                ContainerState::Waiting(reason) => return Some(format!("Init:{}", reason.as_str())),
            }
        }
        None
    }
}

fn first_reason(view: &PodView) -> WaitReason {
    if view.init_slots().is_empty() {
        WaitReason::ContainerCreating
    } else {
        WaitReason::PodInitializing
    }
}

impl Kubelet {
    pub(super) fn publish(&mut self) {
        let computed = self.phase_now(false);
        // k8s: a terminal phase is kept back until nothing runs any more.
        let phase = if computed.is_terminal() {
            self.published.phase
        } else {
            computed
        };
        let status = self.compute(phase);
        self.push_status(status);
    }

    pub(super) fn publish_final(&mut self) {
        self.runtime.relist();
        let phase = self.phase_now(true);
        let phase = if self.over_deadline || !phase.is_terminal() {
            Phase::Failed
        } else {
            phase
        };
        let status = self.compute(phase);
        self.push_status(status);
    }

    pub(super) fn publish_verdict(&mut self, slot: Slot, kind: ProbeKind, verdict: bool) {
        let mut status = self.published.clone();
        let Some(container) = status.containers.get_mut(slot) else {
            return;
        };
        match kind {
            ProbeKind::Readiness => container.ready = verdict && container.started,
            ProbeKind::Startup if verdict => {
                container.started = true;
                container.ready = self.view.containers[slot].readiness.is_none();
            }
            _ => return,
        }
        status.ready = self.all_ready(&status);
        self.push_status(status);
    }

    fn push_status(&mut self, status: Status) {
        self.published = status;
        if !self.object_gone {
            self.out
                .push_back(Action::Publish(Box::new(self.published.clone())));
        }
    }

    fn compute(&self, phase: Phase) -> Status {
        let containers: Vec<_> = (0..self.view.containers.len())
            .map(|s| self.container_status(s))
            .collect();
        let pod_ip = match self.runtime.sandbox {
            Sandbox::Ready => self.runtime.sandboxes,
            Sandbox::None | Sandbox::Lost => self.published.pod_ip,
        };
        let deleting = self.deleted.is_some();
        let mut status = Status {
            phase,
            pod_ip,
            initialized: false,
            ready: false,
            deleting,
            containers,
        };
        status.initialized = self.is_initialised() || self.init_done(&status);
        status.ready = self.all_ready(&status);
        status
    }

    fn init_done(&self, status: &Status) -> bool {
        self.view.init_slots().all(|s| {
            let c = &status.containers[s];
            if self.view.containers[s].kind == Kind::Sidecar {
                c.started
            } else {
                c.ready
            }
        })
    }

    fn all_ready(&self, status: &Status) -> bool {
        let counted = self
            .view
            .containers
            .iter()
            .zip(&status.containers)
            .filter(|(c, _)| c.kind != Kind::Init);
        self.is_initialised() && counted.map(|(_, s)| s).all(|s| s.ready)
    }

    fn container_status(&self, slot: Slot) -> ContainerStatus {
        let cell = &self.runtime.seen[slot];
        let container = &self.view.containers[slot];
        let state = self.api_state(slot);
        let running = state == ContainerState::Running;
        let probe_ok = |kind| {
            container.kind == Kind::Init
                || container.probe(kind).is_none()
                || self.prober.succeeded(slot, kind, cell.attempt)
        };
        // k8s: after a kubelet restart a container that was started stays so.
        let before = self
            .published
            .containers
            .get(slot)
            .is_some_and(|p| p.started && p.attempt == cell.attempt);
        let started = running && (probe_ok(ProbeKind::Startup) || before);
        let ready = match container.kind {
            Kind::Init => state == ContainerState::Terminated(0),
            _ => started && probe_ok(ProbeKind::Readiness),
        };
        let since = if let Instance::Running { since } = cell.instance {
            since
        } else {
            0
        };
        ContainerStatus {
            state,
            last: cell.last_exit,
            ready,
            started,
            attempt: cell.attempt,
            since,
        }
    }

    pub(super) fn api_state(&self, slot: Slot) -> ContainerState {
        let cell = &self.runtime.seen[slot];
        let main = self.view.containers[slot].kind == Kind::Main;
        let error = self.runtime.cells[slot].error;
        match (cell.instance, error) {
            (Instance::Running { .. }, _) => ContainerState::Running,
            (Instance::Exited(exit), Some(reason)) if self.may_restart(slot, exit.code) => {
                ContainerState::Waiting(reason)
            }
            (Instance::Exited(exit), _) => ContainerState::Terminated(exit.code),
            (Instance::None, Some(reason)) => ContainerState::Waiting(reason),
            (Instance::None, None) => match cell.last_exit {
                Some(exit) if main => ContainerState::Terminated(exit.code),
                _ => ContainerState::Waiting(first_reason(&self.view)),
            },
        }
    }
}
