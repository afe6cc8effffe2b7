//! The processes of a pod: the main process of a container, its hooks, its exec probes.

use remora_pod::spec::{Hook, ProbeKind, Slot};

/// Which process of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The entrypoint.
    Main,
    /// A lifecycle hook.
    Hook(Hook),
    /// One attempt of an exec probe.
    Probe(ProbeKind),
}

impl Part {
    /// The name of the part, `None` for the entrypoint.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Main => None,
            Self::Hook(hook) => Some(hook.field()),
            Self::Probe(kind) => Some(kind.field()),
        }
    }
}

/// A process role in the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actor {
    /// Its container.
    pub slot: Slot,
    /// Its part.
    pub part: Part,
}

impl Actor {
    /// The entrypoint of a container.
    pub const fn main(slot: Slot) -> Self {
        Self {
            slot,
            part: Part::Main,
        }
    }
}

/// One instance of an actor: the nth start, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActorRef {
    /// The process.
    pub actor: Actor,
    /// The number of the start.
    pub instance: u32,
}
