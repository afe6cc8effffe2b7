//! Simulates a pod under stated assumptions.
//!
//! A [`Scenario`] states how every process of the pod behaves, when the network is captured and which interventions
//! come from outside. [`simulate`] drives the kubelet of [`crate::kubelet`] through it on a virtual clock and
//! returns a [`Trace`]: every event with its time, the network state of every process over time, and the last
//! published status. The same scenario always gives the same trace.
//!
//! A simulation shows one course of events; [`crate::analysis`] gives the bounds of all of them.

use crate::kubelet::{Config, Millis};
use crate::network::Capture;
use remora_pod::spec::{PodView, Slot};

mod actor;
mod assume;
mod behaviour;
mod dial;
mod lifecycle;
mod process;
mod simulation;
mod trace;
mod usual;

pub use actor::{Actor, ActorRef, Part};
pub use assume::AssumeError;
pub use behaviour::{Behaviour, Role, Target};
pub use trace::{Change, Entry, Lane, Trace, What, changes};

use simulation::Simulation;

/// Latencies of the container runtime and the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latency {
    /// Making a sandbox and its network.
    pub sandbox: Millis,
    /// Removing a sandbox.
    pub sandbox_stop: Millis,
    /// Creating and starting a container whose image is there.
    pub start: Millis,
    /// Starting a command inside a container.
    pub exec: Millis,
    /// From the start of a container to the single request of an HTTP hook.
    pub dial: Millis,
    /// From the restart of the kubelet to its first pass.
    pub kubelet_restart: Millis,
    /// Every event is delayed by a random time up to this much, as on a busy machine…
    pub lateness: Millis,
    /// …from this seed.
    pub seed: u64,
}

impl Default for Latency {
    // Medians of recorded runs.
    fn default() -> Self {
        Self {
            sandbox: 500,
            sandbox_stop: 120,
            start: 130,
            exec: 50,
            dial: 40,
            kubelet_restart: 1700,
            lateness: 0,
            seed: 0,
        }
    }
}

/// An intervention from outside the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Delete it, with this grace period if one is given.
    Delete(Option<u64>),
    /// Kill its sandbox.
    LoseSandbox,
    /// Restart the kubelet.
    RestartKubelet,
    /// Ask the proxy to quit, as Job wrappers do.
    QuitProxy,
    /// End the simulation.
    End,
}

/// An intervention at a time after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intervention {
    /// The event, by [`Trace::id`]: `app.start`, `pod.phase=Running`.
    pub on: String,
    /// The delay after the event.
    pub after: Millis,
    /// What is done.
    pub act: Act,
}

/// Everything a simulation assumes.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The pod.
    pub view: PodView,
    /// The kubelet.
    pub kubelet: Config,
    /// The latencies.
    pub latency: Latency,
    /// How each process behaves; processes that are not listed keep running and do nothing.
    pub actors: Vec<(Actor, Behaviour)>,
    /// Capture that is in place before the first container, as a CNI plugin makes it.
    pub at_sandbox: Option<Capture>,
    /// What is done from outside.
    pub interventions: Vec<Intervention>,
    /// The latest end of the simulation.
    pub horizon: Millis,
}

impl Scenario {
    /// A pod whose processes all just run, without a mesh.
    pub fn new(view: PodView) -> Self {
        Self {
            view,
            kubelet: Config {
                pass_delay: 40,
                ..Config::default()
            },
            latency: Latency::default(),
            actors: Vec::new(),
            at_sandbox: None,
            interventions: Vec::new(),
            horizon: 300_000,
        }
    }

    /// Sets how one process behaves.
    #[must_use]
    pub fn with(mut self, slot: Slot, part: Part, behaviour: Behaviour) -> Self {
        self.actors.retain(|(a, _)| *a != Actor { slot, part });
        self.actors.push((Actor { slot, part }, behaviour));
        self
    }

    pub(crate) fn behaviour(&self, actor: Actor) -> Behaviour {
        let found = self
            .actors
            .iter()
            .find(|(a, _)| *a == actor)
            .map(|(_, b)| b.clone());
        found.unwrap_or_else(|| Behaviour::default_of(actor.part))
    }
}

/// Runs a scenario to its end.
pub fn simulate(scenario: &Scenario) -> Trace {
    Simulation::new(scenario).run()
}
