//! What can happen to a pod: when each process has network, and which containers wait for each other.
//!
//! Where the simulation runs one course of events, the analysis gives bounds on all of them, from the order of
//! containers, the capture rules and the gates alone. It does not know how long processes take; where the result
//! depends on that, it is `Racing`.
//!
//! [`Analysis::spans`] gives the network state of every process in every stage of the pod's life;
//! [`Analysis::probes`] the results of the kubelet's own connections; [`Analysis::cycles`] the waits that never end;
//! [`Analysis::steps`] the steps of the pod's life with their bounds.

use crate::kubelet::Millis;
use crate::mesh::{Mode, Setup};
use crate::needs::{self, Need};
use crate::network::Exempt;
use crate::sim::{Actor, Part};
use remora_pod::spec::{PodView, Slot};

mod describe;
mod probe_paths;
mod reach;
mod steps;
mod stop;
mod waits;

pub use probe_paths::{Path, ProbeReport, Strict, Verdict};
pub use steps::{Step, Timed};
pub use waits::{Cycle, Edge, Node};

/// The network state of a process, for all possible courses of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// Not captured: plain network, no mesh identity.
    Direct,
    /// Captured, and the proxy cannot be listening: refused.
    Broken,
    /// Captured, and the proxy is certain to listen.
    Proxied,
    /// Captured pod, exempt flow.
    Excluded(Exempt),
    /// Refused until the proxy listens, then proxied; how long that takes is open.
    Racing,
}

impl Reach {
    /// One word for it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Broken => "broken",
            Self::Proxied => "proxied",
            Self::Excluded(_) => "excluded",
            Self::Racing => "racing",
        }
    }
}

/// A stage of the pod's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Init containers run.
    Init,
    /// The first moments of the main containers.
    Start,
    /// Everything has started.
    Run,
    /// The proxy has died and is not back.
    ProxyDown,
    /// The pod is being stopped.
    Stop,
}

/// An event that times are relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The sandbox exists.
    Sandbox,
    /// The rules are in place.
    Captured,
    /// This container's process exists.
    Started(Slot),
    /// This container has ended.
    Ended(Slot),
    /// This container's postStart hook has ended.
    HookEnded(Slot),
    /// This container's startup probe has succeeded.
    ProbeSucceeded(Slot),
    /// The proxy takes traffic.
    ProxyUp,
    /// The proxy is gone.
    ProxyGone,
    /// The pod was deleted (`deletionTimestamp` is set).
    Deleted,
    /// The last main container has ended.
    MainsGone,
}

/// A time relative to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// The event.
    pub after: Anchor,
    /// The earliest time after the event, in milliseconds.
    pub earliest: Millis,
    /// The latest time after the event, in milliseconds; `None` if there is no limit.
    pub latest: Option<Millis>,
}

impl Bound {
    /// Exactly then.
    pub const fn at(after: Anchor) -> Self {
        Self {
            after,
            earliest: 0,
            latest: Some(0),
        }
    }

    /// Between the two.
    pub const fn between(after: Anchor, earliest: Millis, latest: Millis) -> Self {
        Self {
            after,
            earliest,
            latest: Some(latest),
        }
    }
}

/// A restriction of a network state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caveat {
    /// Works, but in plaintext and without identity: peers that demand mTLS refuse.
    Plaintext,
    /// The hook that waits for the proxy times out after this many seconds, and the container starts without a proxy.
    HoldGivesUp(u64),
    /// A kubelet restart at the wrong moment loses the hook that waits.
    HookLostOnRestart,
    /// Connections opened before break at their next packet.
    ConnectionsBreak,
    /// Each connection waits until the API shows the pod's address, and fails after five seconds.
    AwaitsAddress,
}

/// The network state of a process during a period of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The stage.
    pub stage: Stage,
    /// The state of a TCP connection.
    pub reach: Reach,
    /// The state of a DNS lookup.
    pub dns: Reach,
    /// From when.
    pub from: Bound,
    /// Until when.
    pub until: Bound,
    /// The restriction, if there is one.
    pub caveat: Option<Caveat>,
}

/// The network of one process over the pod's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorReport {
    /// The process.
    pub actor: Actor,
    /// Whether it needs the network.
    pub need: Need,
    /// Its network states, in order of time.
    pub spans: Vec<Span>,
}

impl ActorReport {
    /// Its network states in a stage, in order.
    pub fn during(&self, stage: Stage) -> Vec<&Reach> {
        self.spans
            .iter()
            .filter(|s| s.stage == stage)
            .map(|s| &s.reach)
            .collect()
    }
}

/// Whether the pod ends when its work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// It is not meant to end.
    Service,
    /// It ends after its main containers.
    Ends,
    /// The proxy keeps the pod running indefinitely.
    NeverEnds,
}

/// What can happen to a pod.
#[derive(Debug, Clone)]
pub struct Analysis {
    /// The pod, with the containers that an assumed mode adds.
    pub view: PodView,
    /// The pod's mesh.
    pub setup: Setup,
    /// The network of every process.
    pub actors: Vec<ActorReport>,
    /// The kubelet's own connections.
    pub probes: Vec<ProbeReport>,
    /// Waits that never end.
    pub cycles: Vec<Cycle>,
    /// Whether the pod ends.
    pub completion: Completion,
    /// Whether the API shows the pod's address before main containers' hooks run.
    pub address_before_hooks: bool,
}

impl Analysis {
    /// Analyses a pod as it is, or as an injector would leave it with this mode.
    pub fn new(mut view: PodView, mode: Option<Mode>) -> Self {
        let setup = Setup::assume(&mut view, mode);
        let needs: Vec<Need> = view.containers.iter().map(|c| needs::in_pod(&view, c)).collect();
        let actors = reach::actors(&view, &setup, &needs);
        let probes = probe_paths::reports(&view, &setup);
        let address_before_hooks = reach::address_before_hooks(&view);
        let completion = stop::completion(&view, &setup);
        let cycles = waits::cycles(&view, &setup, &actors, &probes, address_before_hooks);
        Self {
            view,
            setup,
            actors,
            probes,
            cycles,
            completion,
            address_before_hooks,
        }
    }

    /// The report about one process.
    pub fn actor(&self, actor: Actor) -> Option<&ActorReport> {
        find_actor(&self.actors, actor)
    }

    /// The report about one probe or hook.
    pub fn probe(&self, slot: Slot, part: Part) -> Option<&ProbeReport> {
        probe_paths::find(&self.probes, slot, part)
    }

    /// The spans of one process.
    pub fn spans(&self, actor: Actor) -> &[Span] {
        self.actor(actor).map_or(&[], |a| a.spans.as_slice())
    }

    /// The cycles a container's waits for the mesh close.
    pub fn cycles_of(&self, slot: Slot) -> impl Iterator<Item = &Cycle> {
        self.cycles.iter().filter(move |c| c.culprit() == Some(slot))
    }
}

/// Reports are in order of container and part.
fn find_actor(actors: &[ActorReport], actor: Actor) -> Option<&ActorReport> {
    let index = actors.binary_search_by_key(&actor, |a| a.actor).ok()?;
    actors.get(index)
}
