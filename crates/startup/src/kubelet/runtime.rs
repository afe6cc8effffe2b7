//! The container runtime's state of the pod: the sandbox and the newest instance of each container.

use super::Millis;
use remora_pod::spec::Slot;

/// How an instance of a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 137 after a kill.
    pub code: i32,
    /// When.
    pub at: Millis,
}

/// Why a container could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartError {
    /// The image cannot be pulled.
    ImagePull,
    /// Its configuration refers to something that does not exist.
    Config,
    /// The runtime refused.
    Runtime,
}

/// State of the newest instance in the current sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instance {
    None,
    Running { since: Millis },
    Exited(Exit),
}

/// One container in the runtime.
#[derive(Debug, Clone)]
pub(super) struct ContainerRecord {
    pub(super) instance: Instance,
    /// Newest ended instance, of any sandbox.
    pub(super) last_exit: Option<Exit>,
    /// Number of starts so far.
    pub(super) attempt: u32,
    /// Why the last attempt to start it failed.
    pub(super) error: Option<super::WaitReason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sandbox {
    None,
    Ready,
    /// Dead, but its containers may still run.
    Lost,
}

/// The actual state, and the state in the kubelet's cache.
///
/// k8s: the kubelet decides from a cache that is refreshed by a relist, once a second or right after a pass that
/// changed something. A container that ends a moment later still counts as running until then.
#[derive(Debug, Clone)]
pub(super) struct Runtime {
    pub(super) cells: Vec<ContainerRecord>,
    pub(super) seen: Vec<ContainerRecord>,
    pub(super) sandbox: Sandbox,
    /// Sandboxes made so far.
    pub(super) sandboxes: u32,
    version: u64,
    seen_version: u64,
    changed_at: Millis,
}

impl Runtime {
    pub(super) fn new(containers: usize) -> Self {
        let cell = ContainerRecord {
            instance: Instance::None,
            last_exit: None,
            attempt: 0,
            error: None,
        };
        Self {
            seen: vec![cell.clone(); containers],
            cells: vec![cell; containers],
            sandbox: Sandbox::None,
            sandboxes: 0,
            version: 0,
            seen_version: 0,
            changed_at: 0,
        }
    }

    pub(super) fn changed_since_pass(&self) -> bool {
        self.version != self.seen_version
    }

    pub(super) fn changed_at(&self) -> Millis {
        self.changed_at
    }

    /// Refreshes the cache (relist).
    pub(super) fn relist(&mut self) {
        self.seen_version = self.version;
        self.seen.clone_from(&self.cells);
    }

    fn change(&mut self, now: Millis) {
        self.version += 1;
        self.changed_at = now;
    }

    pub(super) fn started(&mut self, now: Millis, slot: Slot) {
        let cell = &mut self.cells[slot];
        cell.instance = Instance::Running { since: now };
        cell.error = None;
        self.change(now);
    }

    /// Returns whether it was running.
    pub(super) fn exited(&mut self, now: Millis, slot: Slot, code: i32) -> bool {
        let cell = &mut self.cells[slot];
        if !matches!(cell.instance, Instance::Running { .. }) {
            return false;
        }
        let exit = Exit { code, at: now };
        cell.instance = Instance::Exited(exit);
        cell.last_exit = Some(exit);
        self.change(now);
        true
    }

    pub(super) fn is_running(&self, slot: Slot) -> bool {
        matches!(self.cells[slot].instance, Instance::Running { .. })
    }

    pub(super) fn running(&self) -> Vec<Slot> {
        (0..self.cells.len()).filter(|s| self.is_running(*s)).collect()
    }

    pub(super) fn sandbox_lost(&mut self, now: Millis) {
        if self.sandbox == Sandbox::Ready {
            self.sandbox = Sandbox::Lost;
            self.change(now);
        }
    }

    pub(super) fn sandbox_made(&mut self) {
        self.sandbox = Sandbox::Ready;
        self.sandboxes += 1;
        for cell in &mut self.cells {
            cell.instance = Instance::None;
        }
        self.relist();
    }

    pub(super) fn sandbox_removed(&mut self) {
        self.sandbox = Sandbox::None;
    }
}
