//! A process in the simulated pod.

use super::actor::ActorRef;
use super::behaviour::{Behaviour, Role};
use crate::kubelet::Millis;
use crate::network::NetState;

/// Index into the processes of a world.
pub(super) type Pid = usize;

#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about one process"
)]
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) who: ActorRef,
    pub(super) behaviour: Behaviour,
    pub(super) started: Millis,
    pub(super) alive: bool,
    /// Takes traffic, for a proxy.
    pub(super) ready: bool,
    pub(super) signalled: bool,
    pub(super) connected_once: bool,
    /// State the open connection was made in, and what carried it then.
    pub(super) connection: Option<(NetState, u64)>,
    /// Last sampled state of each target.
    pub(super) seen: Vec<Option<NetState>>,
}

impl Process {
    pub(super) fn new(who: ActorRef, behaviour: Behaviour, started: Millis) -> Self {
        let seen = vec![None; behaviour.targets.len()];
        Self {
            who,
            behaviour,
            started,
            alive: true,
            ready: false,
            signalled: false,
            connected_once: false,
            connection: None,
            seen,
        }
    }

    pub(super) fn dies_early(&self) -> bool {
        self.who.instance <= self.behaviour.early_deaths
    }

    /// Whether it never listens on anything.
    fn never_listens(&self) -> bool {
        self.dies_early() && self.behaviour.dies_deaf
    }

    pub(super) fn is_proxy(&self) -> bool {
        self.alive && !self.never_listens() && matches!(self.behaviour.role, Role::Proxy { .. })
    }

    pub(super) fn listens(&self, now: Millis, port: u16) -> bool {
        self.alive
            && !self.never_listens()
            && self.behaviour.listens.contains(&port)
            && now >= self.started.saturating_add(self.behaviour.listens_after)
    }

    /// Exit code at its own end.
    pub(super) fn own_code(&self) -> i32 {
        let missed = self.behaviour.must_connect && !self.connected_once;
        if missed { 1 } else { self.behaviour.exit_code }
    }
}
