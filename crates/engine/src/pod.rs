//! One pod, from its document to its end.
//!
//! The kubelet of [`remora_startup::kubelet`] decides everything: each action it asks for is carried out here for real,
//! and what came of it is told back as an event. There is no second opinion in this module about order, probes,
//! restarts or graces. That is why what `remora check` predicts is what happens.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use remora_net::Namespace;
use remora_pod::spec::{Hook, PodView, Slot};
use remora_pod::{object, view};
use remora_startup::kubelet::{Action, Config, Event, Kubelet, Status};
use remora_startup::network::NetState;
use remora_startup::sim::{Actor, ActorRef, Change, What, changes};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::cgroup::Hierarchy;
use crate::container::{Container, StartError, Stdio};
use crate::environment::Facts;
use crate::network::{NODE_ADDRESS, NetworkError};
use crate::sandbox::Sandbox;
use crate::volumes::{Volume, VolumeError};
use crate::world::{Notice, PodId, World};

mod act;
mod home;
mod output;
mod probe;
mod start;
mod users;
mod watch;

pub use probe::Attempt;

/// What somebody outside wants of a pod.
#[derive(Debug)]
pub enum Order {
    /// Delete it, with this grace period if one is given.
    Delete(Option<u64>),
    /// Its sandbox is to be taken for dead.
    LoseSandbox,
    /// Its kubelet forgets everything, as when it restarts.
    RestartKubelet,
    /// Run a command in a container; the answer is the running process.
    Exec {
        /// Which container.
        container: String,
        /// What.
        args: Vec<String>,
        /// Variables besides the container's own.
        env: Vec<(String, String)>,
        /// Where input comes from and output goes.
        stdio: Stdio,
        /// Where the process is handed over.
        reply: oneshot::Sender<Result<Container, String>>,
    },
}

/// A pod's namespaces, network and volumes.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) network: Namespace,
    pub(crate) address: Ipv4Addr,
    pub(crate) facts: Facts,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) directory: PathBuf,
    /// Where limits of its containers are enforced, if they can be.
    pub(crate) cgroups: Option<Arc<Hierarchy>>,
}

/// A pod's namespaces could not be made.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Its network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Its volumes.
    #[error(transparent)]
    Volumes(#[from] VolumeError),
    /// Its namespaces.
    #[error(transparent)]
    Sandbox(#[from] StartError),
    /// Users of its own.
    #[error("hostUsers: false asks for a user namespace, which the pod cannot have: {0}")]
    Users(crate::users::Reason),
    /// Its network.
    #[error("enter the network of the pod")]
    Enter(#[source] std::io::Error),
    /// Traffic capture.
    #[error("capture the traffic of the pod")]
    Capture(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// What else is done to its network.
    #[error("set up the network of the pod")]
    Plugin(#[source] crate::world::Refusal),
    /// Whoever was to make or remove them.
    #[error("the task that sets up or removes the pod died")]
    Died(#[from] tokio::task::JoinError),
    /// A file of it.
    #[error("write {}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// What tasks report back.
pub(crate) enum Mail {
    Event(Event),
    Home(Result<Home, HomeError>),
    Started(Slot, Result<start::Running, start::Failure>),
    Happened(What),
    Network(NetState),
}

/// A pod that runs.
pub struct Pod {
    id: PodId,
    world: Arc<World>,
    document: Arc<Value>,
    kubelet: Kubelet,
    mail: mpsc::UnboundedSender<Mail>,
    inbox: mpsc::UnboundedReceiver<Mail>,
    home: Option<Arc<Home>>,
    containers: Vec<Option<Arc<Container>>>,
    /// The signal that asks each container to end.
    stop_signals: Vec<i32>,
    starts: BTreeMap<Actor, u32>,
    seen: Status,
    gone: bool,
    /// Nobody gives orders any more.
    abandoned: bool,
    watcher: Option<watch::Watch>,
    /// Keeps the tokens in volumes young.
    renewal: JoinSet<()>,
}

impl Pod {
    /// A pod that has not begun.
    pub fn new(id: PodId, world: Arc<World>, document: Value, config: Config) -> Self {
        let view = PodView::read(&document);
        let kubelet = Kubelet::new(view, config);
        let (mail, inbox) = mpsc::unbounded_channel();
        Self {
            id,
            containers: kubelet.view().containers.iter().map(|_| None).collect(),
            stop_signals: vec![libc::SIGTERM; kubelet.view().containers.len()],
            seen: kubelet.status().clone(),
            world,
            document: Arc::new(document),
            kubelet,
            mail,
            inbox,
            home: None,
            starts: BTreeMap::new(),
            gone: false,
            abandoned: false,
            watcher: None,
            renewal: JoinSet::new(),
        }
    }

    /// Lives until the pod is gone.
    pub async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        self.happened(What::Created).await;
        self.happened(What::Published(Change::Phase(self.seen.phase)))
            .await;
        self.step(Event::Assigned).await;
        // An object removed by force is gone before its containers are.
        while !(self.gone && (self.kubelet.is_finished() || self.abandoned)) {
            let wakeup = self.wakeup();
            tokio::select! {
                Some(mail) = self.inbox.recv() => self.receive(mail).await,
                order = orders.recv() => if let Some(order) = order {
                    self.obey(order).await;
                } else {
                    // Whoever gave orders is gone: so is the reason to live.
                    self.gone = true;
                    self.abandoned = true;
                },
                () = wakeup => self.step(Event::Tick).await,
            }
        }
        self.world.tell(Notice::Gone(self.id)).await;
    }

    /// Ready when the kubelet wants to be asked again.
    fn wakeup(&self) -> impl Future<Output = ()> + use<> {
        let now = self.world.now();
        let at = self
            .kubelet
            .next_wakeup(now)
            .filter(|_| !self.kubelet.is_finished());
        async move {
            match at {
                Some(at) => tokio::time::sleep(Duration::from_millis(at.saturating_sub(now))).await,
                None => std::future::pending().await,
            }
        }
    }

    async fn step(&mut self, event: Event) {
        let actions = self.kubelet.step(self.world.now(), event);
        for action in actions {
            self.carry_out(action).await;
        }
    }

    async fn carry_out(&mut self, action: Action) {
        match action {
            Action::CreateSandbox => self.make_home(),
            Action::StopSandbox => self.leave_home(),
            Action::Start(slot, attempt) => self.start(slot, attempt),
            Action::RunHook(slot, hook) => self.run_hook(slot, hook),
            Action::RunProbe(slot, kind) => self.run_probe(slot, kind),
            Action::Stop(slot, grace) => self.stop(slot, grace).await,
            Action::Publish(status) => self.publish(*status).await,
            Action::Record(slot, reason) => self.happened(What::Recorded(slot, reason)).await,
            Action::Removed => {
                self.gone = true;
                self.happened(What::Removed).await;
            }
            // k8s: the hook's process is left to itself.
            Action::AbandonHook(..) => {}
        }
    }

    async fn receive(&mut self, mail: Mail) {
        match mail {
            Mail::Event(event) => self.step(event).await,
            Mail::Happened(what) => self.happened(what).await,
            Mail::Network(state) => {
                let now = self.world.now();
                self.world.tell(Notice::Network(self.id, now, state)).await;
            }
            Mail::Home(made) => self.moved_in(made).await,
            Mail::Started(slot, started) => self.started(slot, started).await,
        }
    }

    async fn obey(&mut self, order: Order) {
        match order {
            Order::Delete(grace) => {
                self.happened(What::DeleteRequested).await;
                self.step(Event::Deleted(grace)).await;
            }
            Order::LoseSandbox => {
                self.happened(What::SandboxLost).await;
                self.step(Event::SandboxLost).await;
            }
            Order::RestartKubelet => {
                self.happened(What::KubeletRestarted).await;
                self.step(Event::Restarted).await;
            }
            Order::Exec {
                container,
                args,
                env,
                stdio,
                reply,
            } => self.exec(&container, args, env, stdio, reply),
        }
    }

    async fn publish(&mut self, status: Status) {
        for change in changes(&self.seen, &status) {
            self.happened(What::Published(change)).await;
        }
        self.seen = status.clone();
        self.world.tell(Notice::Status(self.id, Box::new(status))).await;
    }

    async fn happened(&self, what: What) {
        let now = self.world.now();
        self.world.tell(Notice::Happened(self.id, now, what)).await;
    }

    async fn trouble(&self, text: String) {
        self.world.tell(Notice::Trouble(Some(self.id), text)).await;
    }

    /// The nth start of an actor.
    fn next_start(&mut self, actor: Actor) -> ActorRef {
        let instance = self.starts.entry(actor).or_insert(0);
        *instance += 1;
        ActorRef {
            actor,
            instance: *instance,
        }
    }

    fn raw(&self, slot: Slot) -> &Value {
        let path = &self.kubelet.view().containers[slot].path;
        self.document.pointer(path).unwrap_or(&Value::Null)
    }

    fn tell_back(&self, mail: Mail) {
        // The pod is gone only when nobody reads this any more.
        let _ = self.mail.send(mail);
    }
}

/// An error with its causes, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// `namespace/name` of a pod.
pub fn pod_name(pod: &Value) -> String {
    format!("{}/{}", object::namespace(pod), object::name(pod))
}

/// Facts that hold for a pod with this address.
pub(crate) fn facts(world: &World, address: Ipv4Addr, uid: String) -> Facts {
    Facts {
        pod_ip: address.into(),
        host_ip: NODE_ADDRESS.into(),
        node: world.node_name.clone(),
        uid,
        cpu_millis: world.cpu_millis,
        memory: world.memory,
        now: std::time::SystemTime::now(),
    }
}

/// The hook of a container, as its document has it.
fn raw_hook(container: &Value, hook: Hook) -> Option<&Value> {
    view::at(container, &["lifecycle", hook.field()])
}
