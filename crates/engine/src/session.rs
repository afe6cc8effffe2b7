//! A run: a node, its pods, Services, DNS and control plane, from the first to the last moment.
//!
//! [`Session::start`] makes everything and returns at once; a task of its own plays the controllers of a cluster:
//! it keeps Services, names and the mesh up to date with the pods' statuses, starts the pods of a StatefulSet in
//! turn, and makes a Job's pods until enough have succeeded.
//!
//! Whoever started it reads the notices, gives orders, and stops it. Dropping the session ends every process.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use remora_control::{Notice as PlaneNotice, Plane};
use remora_net::Namespace;
use remora_startup::kubelet::Config;
use serde_json::Value;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::cgroup::Hierarchy;
use crate::dns;
use crate::door::{self, PodInfo, Unknown, Which};
use crate::egress;
use crate::logs::Logs;
use crate::manifest::Manifest;
use crate::mesh::{self, MeshError};
use crate::network::{NetworkError, Node};
use crate::pod::Order;
use crate::provision::Provision;
use crate::registry::{Client, ClientError, Credentials, Settings as RegistrySettings};
use crate::relay::{self, Publish};
use crate::services::{CONTROL_ADDRESS, DNS_ADDRESS, Names};
use crate::store::{Store, StoreError};
use crate::token::Mint;
use crate::users::Users;
use crate::visitor::{Visitor, VisitorError};
use crate::world::{Isolation, Notice, Plugin, PodId, World};

mod controller;

use controller::Controller;

/// Notices that may wait to be read before those who tell have to wait.
const BACKLOG: usize = 4096;

/// How a run is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// A directory for this run alone.
    pub directory: PathBuf,
    /// Where images are kept between runs.
    pub store: PathBuf,
    /// How registries are reached.
    pub registries: RegistrySettings,
    /// What registries want to see.
    pub credentials: Credentials,
    /// Registries are asked for images that the demo application could stand in for.
    pub pull_first: bool,
    /// Ports of this machine that lead into the run.
    pub publish: Vec<Publish>,
    /// The kubelet's settings.
    pub kubelet: Config,
    /// This machine's `resolv.conf`.
    pub resolver: String,
    /// Pods reach the outside through this machine.
    pub egress: bool,
    /// Servers asked for names that are not the cluster's; none: those names do not exist.
    pub upstream: Vec<SocketAddr>,
    /// Something nobody can guess.
    pub secret: Vec<u8>,
    /// Processors, in thousandths.
    pub cpu_millis: i128,
    /// Memory in bytes.
    pub memory: i128,
    /// What is done to a pod's network before its first container.
    pub plugin: Option<Plugin>,
    /// Nobody else sees what this process mounts, so that volumes in memory can be mounted.
    pub private_mounts: bool,
    /// The program that runs containers instead of the own runner.
    pub runtime: Option<PathBuf>,
    /// What keeps containers apart from this machine.
    pub isolation: Isolation,
}

/// A run cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The node's network.
    #[error("make the network of the run")]
    Network(#[from] NetworkError),
    /// The mesh.
    #[error("make the mesh of the run")]
    Mesh(#[from] MeshError),
    /// The store of images.
    #[error("open the store of images")]
    Store(#[from] StoreError),
    /// Registries.
    #[error("prepare to reach registries")]
    Registries(#[from] ClientError),
    /// The directory.
    #[error("prepare {}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A published port.
    #[error("listen on {listen}")]
    Listen {
        /// Where.
        listen: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A published port that leads nowhere.
    #[error("no Service or pod is called {target:?}")]
    Target {
        /// As written.
        target: String,
    },
    /// Published ports and the mesh.
    #[error("publish ports into the mesh")]
    Visitor(#[from] VisitorError),
    /// A server inside the run.
    #[error("listen inside the run")]
    Inside(#[source] io::Error),
}

impl SessionError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Network(error) => error.hint(),
            Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                Some("another program listens there; choose another port, like -p 9081:productpage:9080")
            }
            _ => None,
        }
    }
}

/// What somebody wants of the run.
#[derive(Debug)]
pub enum Command {
    /// An order for a pod.
    Order(PodId, Order),
    /// Delete everything, with this grace period if one is given.
    Stop(Option<u64>),
    /// Tell about all pods.
    List(oneshot::Sender<Vec<PodInfo>>),
    /// Delete a pod, which what made it replaces, or what made it with all its pods.
    Delete {
        /// What.
        what: Which,
        /// Seconds to stop in, instead of the pods' own.
        grace: Option<u64>,
        /// What is being deleted, or why nothing is.
        reply: oneshot::Sender<Result<Vec<String>, Unknown>>,
        /// Told when all of it is gone.
        gone: oneshot::Sender<()>,
    },
}

/// A run.
#[derive(Debug)]
pub struct Session {
    /// When the clock of the notices began.
    pub began: Instant,
    /// What happens.
    pub notices: mpsc::Receiver<Notice>,
    /// Where orders are given.
    pub commands: mpsc::Sender<Command>,
    /// Where published ports are, in the order they were asked for.
    pub published: Vec<SocketAddr>,
    /// All tasks; they end with the session.
    tasks: JoinSet<()>,
    /// Where limits of containers are enforced, if they can be.
    cgroups: Option<Arc<Hierarchy>>,
}

impl Session {
    /// Ends what is left of the run, and waits until its control groups are gone.
    pub async fn end(mut self) {
        self.tasks.shutdown().await;
        if let Some(cgroups) = self.cgroups.take() {
            cgroups.close().await;
        }
    }

    /// Begins a run.
    pub async fn start(mut manifest: Manifest, options: Options) -> Result<Self, SessionError> {
        let prepare = |source| SessionError::Directory {
            path: options.directory.clone(),
            source,
        };
        for name in ["pods", "logs"] {
            fs::create_dir_all(options.directory.join(name)).map_err(prepare)?;
        }
        let (raw, raw_inbox) = mpsc::channel(BACKLOG);
        let provision = Provision {
            store: Arc::new(Store::open(&options.store)?),
            client: Client::new(options.registries.clone())?,
            credentials: options.credentials.clone(),
            pull_first: options.pull_first,
            said: std::sync::atomic::AtomicBool::new(false),
        };
        let cgroups = limits(&raw).await;
        let node = Node::create()?;
        let namespace = node.namespace().clone();
        let plane = Arc::new(set_up_mesh(&mut manifest, &options.secret, raw.clone())?);
        let world = Arc::new(World {
            node,
            objects: manifest.objects,
            services: manifest.services,
            policies: manifest.policies,
            provision,
            cgroups: cgroups.clone(),
            directory: options.directory.clone(),
            began: Instant::now(),
            notices: raw,
            resolver: options.resolver.clone(),
            node_name: "remora".to_owned(),
            cpu_millis: options.cpu_millis,
            memory: options.memory,
            logs: Logs::new(options.directory.join("logs")),
            plugin: options.plugin.clone(),
            private_mounts: options.private_mounts,
            runtime: options.runtime.clone(),
            isolation: options.isolation.clone(),
            users: Users::default(),
            addresses: Mutex::new(BTreeMap::new()),
        });
        let began = world.began;
        let door = door::open(&options.directory).map_err(prepare)?;
        let mut tasks = JoinSet::new();
        let names = watch::channel(Arc::new(Names::new(&world.services, &[]))).0;
        serve_inside(&namespace, &mut tasks, &names, &plane, options.upstream.clone())?;
        if options.egress {
            let listener = listen_inside(&namespace, *egress::AT.ip(), egress::AT.port())?;
            world.node.lead_outside(egress::AT)?;
            tasks.spawn(egress::serve(listener));
        }
        let visitor = if options.publish.is_empty() {
            None
        } else {
            Some(Visitor::begin(Arc::clone(&plane), &namespace)?)
        };
        let (published, targets) = publish(&options.publish, visitor.as_ref(), &mut tasks).await?;
        let (commands, orders) = mpsc::channel(64);
        tasks.spawn(door::keep(door, Arc::clone(&world), commands.clone()));
        let (notices, outbox) = mpsc::channel(BACKLOG);
        let mut controller = Controller::new(world, options, plane, names, targets, notices);
        controller.visitor = visitor;
        controller.check_targets(&manifest.pods)?;
        tasks.spawn(controller.run(manifest.pods, raw_inbox, orders));
        Ok(Self {
            began,
            notices: outbox,
            commands,
            published,
            tasks,
            cgroups,
        })
    }
}

/// Where limits are enforced. Without such a place pods run unlimited, which is said once.
async fn limits(notices: &mpsc::Sender<Notice>) -> Option<Arc<Hierarchy>> {
    match Hierarchy::probe() {
        Ok(hierarchy) => {
            hierarchy.sweep();
            Some(Arc::new(hierarchy))
        }
        Err(error) => {
            let text = format!(
                "limits of containers are not enforced: {error} ({})",
                error.hint()
            );
            // The run has only begun: somebody listens.
            let _ = notices.send(Notice::Trouble(None, text)).await;
            None
        }
    }
}

/// Tokens, the root certificate in every namespace, and the control plane.
fn set_up_mesh(
    manifest: &mut Manifest,
    secret: &[u8],
    notices: mpsc::Sender<Notice>,
) -> Result<Plane, MeshError> {
    let mint = Mint::new(secret);
    manifest.objects.put_mint(mint.clone());
    let plane = mesh::plane(&manifest.accounts(), mint, move |notice: &PlaneNotice| {
        if !matches!(notice, PlaneNotice::Mesh { .. }) {
            // Full means that much is being said already.
            let _ = notices.try_send(Notice::Trouble(None, format!("control plane: {notice}")));
        }
    })?;
    let root = plane.roots().into_bytes();
    for namespace in &manifest.namespaces {
        let content = [("root-cert.pem".to_owned(), root.clone())].into();
        manifest
            .objects
            .put_config_map(namespace, "istio-ca-root-cert", content);
    }
    Ok(plane)
}

/// DNS and the control plane, inside the node.
fn serve_inside(
    node: &Namespace,
    tasks: &mut JoinSet<()>,
    names: &watch::Sender<Arc<Names>>,
    plane: &Arc<Plane>,
    upstream: Vec<SocketAddr>,
) -> Result<(), SessionError> {
    let dns_at = SocketAddr::from((DNS_ADDRESS, 53));
    let udp = inside(node, || std::net::UdpSocket::bind(dns_at))?;
    udp.set_nonblocking(true).map_err(SessionError::Inside)?;
    let udp = UdpSocket::from_std(udp).map_err(SessionError::Inside)?;
    let tcp = listen_inside(node, DNS_ADDRESS, 53)?;
    tasks.spawn(dns::Server::new(udp, tcp, names.subscribe(), upstream).serve());
    let control = listen_inside(node, CONTROL_ADDRESS, 15012)?;
    let plane = Arc::clone(plane);
    tasks.spawn(async move {
        // It ends with the session; an error of one connection does not end it.
        let _ = plane.serve(control, std::future::pending()).await;
    });
    Ok(())
}

fn inside<T: Send>(node: &Namespace, work: impl FnOnce() -> io::Result<T> + Send) -> Result<T, SessionError> {
    let done = node.run(work).map_err(SessionError::Inside)?;
    done.map_err(SessionError::Inside)
}

fn listen_inside(node: &Namespace, address: Ipv4Addr, port: u16) -> Result<TcpListener, SessionError> {
    let listener = inside(node, || std::net::TcpListener::bind((address, port)))?;
    listener.set_nonblocking(true).map_err(SessionError::Inside)?;
    TcpListener::from_std(listener).map_err(SessionError::Inside)
}

type Targets = Vec<(Publish, watch::Sender<Option<std::net::SocketAddrV4>>)>;

async fn publish(
    wanted: &[Publish],
    visitor: Option<&Visitor>,
    tasks: &mut JoinSet<()>,
) -> Result<(Vec<SocketAddr>, Targets), SessionError> {
    let (mut addresses, mut targets) = (Vec::new(), Vec::new());
    for publish in wanted {
        let failed = |source| SessionError::Listen {
            listen: publish.listen,
            source,
        };
        let listener = TcpListener::bind(publish.listen).await.map_err(failed)?;
        addresses.push(listener.local_addr().map_err(failed)?);
        let (sender, receiver) = watch::channel(None);
        if let Some(visitor) = visitor {
            tasks.spawn(relay::serve(listener, visitor.visits(), receiver));
        }
        targets.push((publish.clone(), sender));
    }
    Ok((addresses, targets))
}

/// The documents of all pods, for those who draw them.
pub type Documents = BTreeMap<PodId, Arc<Value>>;
