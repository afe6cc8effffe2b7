//! What all pods of a run share.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use remora_net::Namespace;
use remora_startup::kubelet::{Millis, Status};
use remora_startup::network::NetState;
use remora_startup::sim::What;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::cgroup::Hierarchy;
use crate::logs::Logs;
use crate::manifest::Owner;
use crate::network::Node;
use crate::objects::Objects;
use crate::provision::Provision;
use crate::services::Service;
use crate::users::Users;

/// A pod of the run, by its place in the list of all.
pub type PodId = usize;

/// Where a line of output comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Why something outside refused a pod.
pub type Refusal = Box<dyn std::error::Error + Send + Sync>;

/// What a network plugin of the node would do: called with a pod and its network namespace, before the pod's first
/// container.
#[derive(Clone)]
pub struct Plugin(Arc<Work>);

type Work = dyn Fn(&Value, &Namespace) -> Result<(), Refusal> + Send + Sync;

impl Plugin {
    /// A plugin that does this.
    pub fn new(work: impl Fn(&Value, &Namespace) -> Result<(), Refusal> + Send + Sync + 'static) -> Self {
        Self(Arc::new(work))
    }

    pub(crate) fn add(&self, pod: &Value, network: &Namespace) -> Result<(), Refusal> {
        (self.0)(pod, network)
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Plugin")
    }
}

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Notice {
    /// In the life of a pod, at a time.
    Happened(PodId, Millis, What),
    /// A pod has a new status.
    Status(PodId, Box<Status>),
    /// What connections of a pod meet, from this time on.
    Network(PodId, Millis, NetState),
    /// A container wrote a line.
    Line {
        /// Of which pod.
        pod: PodId,
        /// Which container.
        container: Arc<str>,
        /// Where to.
        stream: Stream,
        /// What.
        text: String,
    },
    /// Something a person should know about a pod's container, or about the whole.
    Trouble(Option<PodId>, String),
    /// There is a new pod.
    Added(PodId, Arc<Value>, Owner),
    /// A pod is gone.
    Gone(PodId),
    /// Everything was stopped, as asked.
    Over,
}

/// What keeps containers apart from this machine, unless their pod says otherwise.
#[derive(Debug, Clone)]
pub struct Isolation {
    /// Processes and threads of a pod (k8s: `podPidsLimit`). `None`: any number.
    pub pids: Option<u64>,
    /// The directory that `localhostProfile` is relative to.
    pub seccomp_root: PathBuf,
    /// Pods that do not say (k8s: `hostUsers`) have users of their own where that is possible. For root only.
    pub own_users: bool,
}

impl Isolation {
    /// Processes and threads of a pod by default.
    pub const POD_PIDS: u64 = 4096;

    /// The defaults, with this directory for seccomp profiles.
    pub fn new(seccomp_root: PathBuf) -> Self {
        Self {
            pids: Some(Self::POD_PIDS),
            seccomp_root,
            own_users: true,
        }
    }
}

/// What all pods of a run share.
#[derive(Debug)]
pub struct World {
    /// The node.
    pub node: Node,
    /// What pods may refer to.
    pub objects: Objects,
    /// All Services.
    pub services: Vec<Service>,
    /// Istio's policies.
    pub policies: Vec<Value>,
    /// Where images come from.
    pub provision: Provision,
    /// The run's directory.
    pub directory: PathBuf,
    /// When the run began.
    pub began: Instant,
    /// Who wants to know.
    pub notices: mpsc::Sender<Notice>,
    /// This machine's own `resolv.conf`.
    pub resolver: String,
    /// The name of the node.
    pub node_name: String,
    /// Processors, in thousandths.
    pub cpu_millis: i128,
    /// Memory in bytes.
    pub memory: i128,
    /// Where limits are enforced, if they can be.
    pub cgroups: Option<Arc<Hierarchy>>,
    /// What keeps containers apart from this machine.
    pub isolation: Isolation,
    /// What containers wrote.
    pub logs: Logs,
    /// What is done to a pod's network before its first container.
    pub plugin: Option<Plugin>,
    /// Nobody else sees what this process mounts.
    pub private_mounts: bool,
    /// The program that runs containers instead of the own runner.
    pub runtime: Option<PathBuf>,
    /// Ids for pods with users of their own.
    pub users: Users,
    /// Where pods are.
    pub(crate) addresses: Mutex<BTreeMap<PodId, Ipv4Addr>>,
}

impl World {
    /// Milliseconds since the run began.
    pub fn now(&self) -> Millis {
        Millis::try_from(self.began.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    /// Tells whoever wants to know. Waits while they are behind, so that nothing is lost and nothing piles up.
    pub async fn tell(&self, notice: Notice) {
        // Nobody listens any more: the run is over.
        let _ = self.notices.send(notice).await;
    }

    /// Where a pod is.
    pub(crate) fn address_of(&self, pod: PodId) -> Option<Ipv4Addr> {
        let known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&pod).copied()
    }

    /// Remembers where a pod is.
    pub(crate) fn placed(&self, pod: PodId, address: Ipv4Addr) {
        let mut known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(pod, address);
    }
}
