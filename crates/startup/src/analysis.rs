//! What can happen to a pod: who has network when, and who waits for whom.
//!
//! Where the simulation plays one course of events, the analysis gives bounds on all of them, from the order of
//! containers, the capture rules and the gates alone. It knows nothing about how long processes take; where
//! the outcome depends on that it says so (`Racing`).
//!
//! [`Analysis::spans`] tells for every process and every stage of the pod's life what a connection meets;
//! [`Analysis::probes`] how the kubelet's own connections fare; [`Analysis::cycles`] which waits never end;
//! [`Analysis::steps`] the steps of a life with their bounds.

use crate::kubelet::Millis;
use crate::mesh::{Mode, Setup};
use crate::needs::{self, Need};
use crate::network::Exempt;
use crate::sim::{Actor, Part};
use remora_pod::spec::{PodView, Slot};

mod dialled;
mod reach;
mod steps;
mod stop;
mod waits;
mod words;

pub use dialled::{Path, ProbeReport, Strict, Verdict};
pub use steps::{Step, Timed};
pub use waits::{Cycle, Edge, Node};

/// What a connection meets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// Not captured: plain network, no mesh identity.
    Direct,
    /// Captured, and nobody can be listening: refused.
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

/// Something times are counted from.
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
    /// Deletion was asked for.
    Deleted,
    /// The last main container has ended.
    MainsGone,
}

/// A time: so long after something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// After what.
    pub after: Anchor,
    /// At the earliest so many milliseconds.
    pub earliest: Millis,
    /// At the latest so many; `None`: open.
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

/// A reservation about a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caveat {
    /// Works, but in plaintext and without identity: peers that demand mTLS refuse.
    Plaintext,
    /// The hook that waits gives up after this many seconds, and the container starts without a proxy.
    HoldGivesUp(u64),
    /// A kubelet restart at the wrong moment loses the hook that waits.
    HookLostOnRestart,
    /// Connections opened before break at their next packet.
    ConnectionsBreak,
    /// Each connection waits until the API shows the pod's address, and fails after five seconds.
    AwaitsAddress,
}

/// What a process meets during a stretch of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// In which stage.
    pub stage: Stage,
    /// What a TCP connection meets.
    pub reach: Reach,
    /// What a name lookup meets.
    pub dns: Reach,
    /// From when.
    pub from: Bound,
    /// Until when.
    pub until: Bound,
    /// With what reservation.
    pub caveat: Option<Caveat>,
}

/// The network of one process over the pod's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorReport {
    /// Who.
    pub actor: Actor,
    /// Whether it needs the network.
    pub need: Need,
    /// What it meets, in order of time.
    pub spans: Vec<Span>,
}

impl ActorReport {
    /// What it meets in a stage, in order.
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
    /// The proxy keeps it running for ever.
    NeverEnds,
}

/// What can happen to a pod.
#[derive(Debug, Clone)]
pub struct Analysis {
    /// The pod, with containers thought in where a mode was assumed.
    pub view: PodView,
    /// Its mesh.
    pub setup: Setup,
    /// The network of every process.
    pub actors: Vec<ActorReport>,
    /// The kubelet's own connections.
    pub probes: Vec<ProbeReport>,
    /// Waits that never end.
    pub cycles: Vec<Cycle>,
    /// Whether it ends.
    pub completion: Completion,
    /// Whether the API shows the pod's address before main containers' hooks run.
    pub address_before_hooks: bool,
}

impl Analysis {
    /// Analyses a pod as it stands, or as this mode would leave it.
    pub fn new(mut view: PodView, mode: Option<Mode>) -> Self {
        let setup = Setup::assume(&mut view, mode);
        let needs: Vec<Need> = view.containers.iter().map(|c| needs::in_pod(&view, c)).collect();
        let actors = reach::actors(&view, &setup, &needs);
        let probes = dialled::reports(&view, &setup);
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
        dialled::find(&self.probes, slot, part)
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
