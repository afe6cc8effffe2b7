//! A simulation, arranged for drawing: one lane per container, marks for the pod.
//!
//! It has no colours, widths or texts beyond names; the renderer decides those.

use crate::kubelet::{ContainerState, ContainerStatus, Millis, WaitReason};
use crate::network::NetState;
use crate::sim::{ActorRef, Change, Part, Scenario, Trace, What};
use remora_pod::spec::{Hook, Kind, Slot};

/// What a container is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// It does not exist, for this reason.
    Waiting(WaitReason),
    /// Its process runs.
    Running,
    /// Its process has got the stop signal and still runs.
    Draining,
    /// It has ended with this code and will not come back.
    Ended(i32),
}

/// A section of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// From when.
    pub from: Millis,
    /// Until when.
    pub to: Millis,
    /// What the container is doing.
    pub doing: Doing,
    /// Its network state, while it runs.
    pub network: Option<NetState>,
}

/// Something that happens at one moment, or lasts, within a lane or for the whole pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// When it begins.
    pub from: Millis,
    /// When it ends; the same for a moment.
    pub to: Millis,
    /// What it is.
    pub what: Sign,
}

/// Kinds of marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The sandbox and its network exist.
    Sandbox,
    /// The sandbox died.
    SandboxLost,
    /// Traffic is captured from here on.
    Captured,
    /// The proxy takes traffic.
    ProxyReady,
    /// The API shows the pod's address.
    Address,
    /// The pod is ready.
    Ready,
    /// The pod was deleted (`deletionTimestamp` is set).
    Deleted,
    /// The API object is gone.
    Gone,
    /// The container counts as started.
    Started,
    /// The container counts as ready.
    ContainerReady,
    /// A hook runs.
    Hook(Hook),
    /// A hook failed, or was killed.
    HookFailed(Hook),
    /// A lasting connection broke.
    ConnectionBroken,
    /// A probe failed.
    Unhealthy,
}

/// One container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// The container.
    pub slot: Slot,
    /// Its name.
    pub name: String,
    /// Init container, native sidecar or main container.
    pub kind: Kind,
    /// What it does over time, without gaps.
    pub segments: Vec<Segment>,
    /// The marks of this container.
    pub marks: Vec<Mark>,
    /// How often it was restarted.
    pub restarts: u32,
}

/// A simulation, arranged for drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// Until when.
    pub end: Millis,
    /// One per container, in the order of the pod.
    pub lanes: Vec<Lane>,
    /// What happens to the pod.
    pub marks: Vec<Mark>,
    /// What `kubectl get pod` shows in the end.
    pub status: String,
}

impl Timeline {
    /// Arranges the trace of a scenario.
    pub fn of(scenario: &Scenario, trace: &Trace) -> Self {
        let end = trace.entries.last().map_or(trace.end, |e| e.at.max(1));
        let lanes = (0..scenario.view.containers.len())
            .map(|slot| lane(scenario, trace, slot, end))
            .collect();
        let marks = trace
            .entries
            .iter()
            .filter_map(|e| Some(moment(e.at, pod_sign(&e.what)?)))
            .collect();
        Self {
            end,
            lanes,
            marks,
            status: trace.status.kubectl(&scenario.view),
        }
    }
}

fn moment(at: Millis, what: Sign) -> Mark {
    Mark {
        from: at,
        to: at,
        what,
    }
}

fn pod_sign(what: &What) -> Option<Sign> {
    Some(match what {
        What::SandboxReady => Sign::Sandbox,
        What::SandboxLost => Sign::SandboxLost,
        What::Captured(_) => Sign::Captured,
        What::ProxyReady(_) | What::NodeProxyReady => Sign::ProxyReady,
        What::Published(Change::PodIp) => Sign::Address,
        What::Published(Change::Ready(true)) => Sign::Ready,
        What::DeleteRequested => Sign::Deleted,
        What::Removed => Sign::Gone,
        _ => return None,
    })
}

/// Builds one lane by walking the trace once.
fn lane(scenario: &Scenario, trace: &Trace, slot: Slot, end: Millis) -> Lane {
    let container = &scenario.view.containers[slot];
    let mut builder = Builder::new(scenario, slot);
    for entry in &trace.entries {
        builder.take(entry.at, &entry.what);
    }
    builder.close(end);
    Lane {
        slot,
        name: container.name.clone(),
        kind: container.kind,
        segments: builder.segments,
        marks: builder.marks,
        restarts: trace
            .status
            .containers
            .get(slot)
            .map_or(0, ContainerStatus::restarts),
    }
}

struct Builder {
    slot: Slot,
    from: Millis,
    doing: Doing,
    network: Option<NetState>,
    segments: Vec<Segment>,
    marks: Vec<Mark>,
}

impl Builder {
    fn new(scenario: &Scenario, slot: Slot) -> Self {
        let no_init = scenario.view.init_slots().is_empty();
        let reason = if no_init {
            WaitReason::ContainerCreating
        } else {
            WaitReason::PodInitializing
        };
        let doing = Doing::Waiting(reason);
        Self {
            slot,
            from: 0,
            doing,
            network: None,
            segments: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// Ends the current section.
    fn close(&mut self, at: Millis) {
        if at > self.from {
            let (from, doing, network) = (self.from, self.doing, self.network.clone());
            self.segments.push(Segment {
                from,
                to: at,
                doing,
                network,
            });
            self.from = at;
        }
    }

    fn switch(&mut self, at: Millis, doing: Doing, network: Option<NetState>) {
        if doing != self.doing || network != self.network {
            self.close(at);
            self.doing = doing;
            self.network = network;
        }
    }

    fn is_mine(&self, who: ActorRef) -> bool {
        who.actor.slot == self.slot && who.actor.part == Part::Main
    }

    fn take(&mut self, at: Millis, what: &What) {
        match what {
            What::Started(who) if self.is_mine(*who) => self.switch(at, Doing::Running, None),
            What::Signalled(who) if self.is_mine(*who) => {
                self.switch(at, Doing::Draining, self.network.clone());
            }
            What::Exited(who, code, _) if self.is_mine(*who) => self.switch(at, Doing::Ended(*code), None),
            What::Network(who, 0, state) if self.is_mine(*who) => {
                self.switch(at, self.doing, Some(state.clone()));
            }
            What::Published(Change::ContainerState(slot, ContainerState::Waiting(reason)))
                if *slot == self.slot =>
            {
                if matches!(self.doing, Doing::Ended(_)) {
                    self.switch(at, Doing::Waiting(*reason), None);
                }
            }
            _ => self.mark(at, what),
        }
    }

    fn mark(&mut self, at: Millis, what: &What) {
        match what {
            What::Started(who) if who.actor.slot == self.slot => {
                if let Part::Hook(hook) = who.actor.part {
                    self.marks.push(moment(at, Sign::Hook(hook)));
                }
            }
            What::Exited(who, code, _) if who.actor.slot == self.slot => {
                if let Part::Hook(hook) = who.actor.part {
                    self.end_hook(at, hook, *code == 0);
                }
            }
            What::Published(Change::ContainerStarted(slot, true)) if *slot == self.slot => {
                self.marks.push(moment(at, Sign::Started));
            }
            What::Published(Change::ContainerReady(slot, true)) if *slot == self.slot => {
                self.marks.push(moment(at, Sign::ContainerReady));
            }
            What::ConnectionBroken(who) if self.is_mine(*who) => {
                self.marks.push(moment(at, Sign::ConnectionBroken));
            }
            What::Recorded(Some(slot), "Unhealthy") if *slot == self.slot => {
                self.marks.push(moment(at, Sign::Unhealthy));
            }
            What::Recorded(Some(slot), "FailedPostStartHook") if *slot == self.slot => {
                self.marks.push(moment(at, Sign::HookFailed(Hook::PostStart)));
            }
            _ => {}
        }
    }

    /// A hook lasts from its beginning to its end.
    fn end_hook(&mut self, at: Millis, hook: Hook, ok: bool) {
        if let Some(open) = self.marks.iter_mut().rev().find(|m| m.what == Sign::Hook(hook)) {
            open.to = at;
        }
        if !ok && hook == Hook::PreStop {
            self.marks.push(moment(at, Sign::HookFailed(hook)));
        }
    }
}
