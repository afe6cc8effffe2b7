//! The result of a simulation.

use super::Scenario;
use super::actor::{ActorRef, Part};
use super::behaviour::Behaviour;
use crate::kubelet::{ContainerState, Millis, Phase, Status};
use crate::network::NetState;
use remora_pod::spec::Slot;

/// A change in the published status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Phase of the pod.
    Phase(Phase),
    /// `podIP` appeared or changed.
    PodIp,
    /// Condition `Initialized`.
    Initialized(bool),
    /// Condition `Ready`.
    Ready(bool),
    /// A container's readiness.
    ContainerReady(Slot, bool),
    /// A container's `started`.
    ContainerStarted(Slot, bool),
    /// A container's state.
    ContainerState(Slot, ContainerState),
    /// A container's restart count.
    Restarts(Slot, u32),
}

/// An event of a simulation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The pod object appeared.
    Created,
    /// The sandbox and its network exist.
    SandboxReady,
    /// The sandbox died by itself.
    SandboxLost,
    /// The sandbox was removed.
    SandboxRemoved,
    /// The rules are in place; by a process of the pod, or with the sandbox.
    Captured(Option<ActorRef>),
    /// The node's proxy listens in the pod.
    NodeProxyReady,
    /// A process exists.
    Started(ActorRef),
    /// A process ended, by itself or killed.
    Exited(ActorRef, i32, bool),
    /// A process got the stop signal.
    Signalled(ActorRef),
    /// The proxy's agent answers.
    AgentUp(ActorRef),
    /// The proxy takes traffic.
    ProxyReady(ActorRef),
    /// The proxy received a request to quit.
    ProxyQuit(ActorRef),
    /// The network state of a process towards its nth target changed.
    Network(ActorRef, usize, NetState),
    /// A persistent connection was established.
    ConnectionOpened(ActorRef),
    /// A persistent connection was lost.
    ConnectionBroken(ActorRef),
    /// The API shows something new.
    Published(Change),
    /// An event was written.
    Recorded(Option<Slot>, &'static str),
    /// A client of the API server deleted the pod.
    DeleteRequested,
    /// The kubelet restarted.
    KubeletRestarted,
    /// The API object is gone.
    Removed,
}

/// An event and its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The time of the event.
    pub at: Millis,
    /// The event.
    pub what: What,
}

/// The network of one process towards one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// The process.
    pub who: ActorRef,
    /// Name of the target, when it has several.
    pub target: Option<String>,
    /// The network states and the times when they began.
    pub states: Vec<(Millis, NetState)>,
}

/// The outcome of a simulation.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Everything, in order of time.
    pub entries: Vec<Entry>,
    /// Network states by process.
    pub network: Vec<Lane>,
    /// The status last seen in the API.
    pub status: Status,
    /// Whether the API object is gone.
    pub gone: bool,
    /// The time when the simulation ended.
    pub end: Millis,
}

/// Names events the way recordings do.
#[derive(Debug)]
pub(super) struct Namer<'a> {
    scenario: &'a Scenario,
}

impl<'a> Namer<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Self {
        Self { scenario }
    }

    pub(super) fn who(&self, who: ActorRef) -> String {
        let container = self.container(who.actor.slot);
        let label = self
            .scenario
            .actors
            .iter()
            .find(|(a, _)| *a == who.actor)
            .and_then(|(_, b)| b.label.clone());
        let part = match who.actor.part {
            Part::Main => None,
            part => label.or_else(|| part.name().map(str::to_owned)),
        };
        let part = part.map(|p| format!("/{p}")).unwrap_or_default();
        format!("{container}{part}{}", instance(who.instance))
    }

    fn container(&self, slot: Slot) -> &str {
        self.scenario
            .view
            .containers
            .get(slot)
            .map_or("", |c| c.name.as_str())
    }

    pub(super) fn id(&self, what: &What) -> String {
        match what {
            What::Created => "pod.create".to_owned(),
            What::SandboxReady => "cni.cni-add-done".to_owned(),
            What::SandboxLost => "pod.killsandbox".to_owned(),
            What::SandboxRemoved => "cni.cni-del".to_owned(),
            What::Captured(None) => "cni/plugin.captured".to_owned(),
            What::Captured(Some(who)) => format!("{}.captured", self.who(*who)),
            What::NodeProxyReady => "ztunnel/ztunnel.proxy-ready".to_owned(),
            What::Started(who) => format!("{}.start", self.who(*who)),
            What::Exited(who, _, true) if who.actor.part == Part::Main => self.container_exit(*who),
            What::Exited(who, _, true) => format!("{}.killed", self.who(*who)),
            What::Exited(who, _, false) => format!("{}.exit", self.who(*who)),
            What::Signalled(who) => format!("{}.sigterm", self.who(*who)),
            What::AgentUp(who) => format!("{}.agent-up", self.who(*who)),
            What::ProxyReady(who) => format!("{}.proxy-ready", self.who(*who)),
            What::ProxyQuit(who) => format!("{}.quitquitquit", self.who(*who)),
            What::Network(who, target, state) => {
                format!("{}.net={target} {}", self.who(*who), state.as_str())
            }
            What::ConnectionOpened(who) => format!("{}.conn-open", self.who(*who)),
            What::ConnectionBroken(who) => format!("{}.conn-broken", self.who(*who)),
            What::Published(change) => self.change(change),
            What::Recorded(slot, reason) => format!("ev.{reason}:{}", slot.map_or("", |s| self.container(s))),
            What::DeleteRequested => "pod.delete-request".to_owned(),
            What::KubeletRestarted => "pod.kubelet-restart".to_owned(),
            What::Removed => "pod.gone".to_owned(),
        }
    }

    /// The runtime's event for the end of a container, which it also emits after a kill.
    pub(super) fn container_exit(&self, who: ActorRef) -> String {
        format!(
            "ctr:{}{}.exit",
            self.container(who.actor.slot),
            instance(who.instance)
        )
    }

    fn change(&self, change: &Change) -> String {
        let bool = |b: &bool| if *b { "True" } else { "False" };
        match change {
            Change::Phase(phase) => format!("pod.phase={}", phase.as_str()),
            Change::PodIp => "pod.ip".to_owned(),
            Change::Initialized(b) => format!("pod.cond:Initialized={}", bool(b)),
            Change::Ready(b) => format!("pod.cond:Ready={}", bool(b)),
            Change::ContainerReady(s, b) => format!("pod.c:{}:ready={}", self.container(*s), bool(b)),
            Change::ContainerStarted(s, b) => format!("pod.c:{}:started={}", self.container(*s), bool(b)),
            Change::ContainerState(s, state) => {
                format!("pod.c:{}:state={}", self.container(*s), state_text(*state))
            }
            Change::Restarts(s, n) => format!("pod.c:{}:restarts={n}", self.container(*s)),
        }
    }
}

fn state_text(state: ContainerState) -> String {
    match state {
        ContainerState::Waiting(reason) => format!("waiting:{}", reason.as_str()),
        ContainerState::Running => "running".to_owned(),
        ContainerState::Terminated(0) => "terminated:Completed:0".to_owned(),
        ContainerState::Terminated(code) => format!("terminated:Error:{code}"),
    }
}

fn instance(n: u32) -> String {
    if n > 1 { format!("#{n}") } else { String::new() }
}

impl Trace {
    /// The name of an event: `app#2.start`, `istio-proxy.proxy-ready`, `pod.phase=Running`.
    pub fn id(&self, scenario: &Scenario, entry: &Entry) -> String {
        Namer::new(scenario).id(&entry.what)
    }

    /// The name of a process: `app`, `app/preStop`, `app/postStart#2`.
    pub fn name(&self, scenario: &Scenario, who: ActorRef) -> String {
        Namer::new(scenario).who(who)
    }

    /// All event names with their times. The end of a main process appears twice: as the process's own event unless it
    /// was killed, and as the runtime's event.
    pub fn named(&self, scenario: &Scenario) -> Vec<(Millis, String)> {
        let namer = Namer::new(scenario);
        let mut out = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            out.push((entry.at, namer.id(&entry.what)));
            if let What::Exited(who, _, false) = entry.what
                && who.actor.part == Part::Main
            {
                out.push((entry.at, namer.container_exit(who)));
            }
        }
        out
    }
}

/// The differences between two published statuses.
pub fn changes(before: &Status, after: &Status) -> Vec<Change> {
    let mut out = Vec::new();
    for (slot, (b, a)) in before.containers.iter().zip(&after.containers).enumerate() {
        if a.state != b.state {
            out.push(Change::ContainerState(slot, a.state));
        }
        if a.started != b.started {
            out.push(Change::ContainerStarted(slot, a.started));
        }
        if a.ready != b.ready {
            out.push(Change::ContainerReady(slot, a.ready));
        }
        if a.restarts() != b.restarts() {
            out.push(Change::Restarts(slot, a.restarts()));
        }
    }
    if after.pod_ip != before.pod_ip {
        out.push(Change::PodIp);
    }
    if after.initialized != before.initialized {
        out.push(Change::Initialized(after.initialized));
    }
    if after.ready != before.ready {
        out.push(Change::Ready(after.ready));
    }
    if after.phase != before.phase {
        out.push(Change::Phase(after.phase));
    }
    out
}

/// The network lanes of a process that has just started.
pub(super) fn lanes_of(who: ActorRef, behaviour: &Behaviour) -> Vec<Lane> {
    let several = behaviour.targets.len() > 1;
    let name = |t: &super::Target| several.then(|| t.name.clone());
    behaviour
        .targets
        .iter()
        .map(|t| Lane {
            who,
            target: name(t),
            states: Vec::new(),
        })
        .collect()
}
