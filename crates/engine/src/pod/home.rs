//! Making and removing what the containers of a pod share.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use remora_capture::install;
use remora_net::Namespace;
use remora_pod::spec::PodView;
use remora_pod::view;
use remora_rules::options::Settings;
use remora_startup::kubelet::Event;
use remora_startup::mesh::{CapturePoint, Mode, Setup};
use remora_startup::sim::What;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::{Home, HomeError, Mail, Pod, chain, facts, users, watch};
use crate::cgroup::Hierarchy;
use crate::network::{NODE_ADDRESS, NetworkError};
use crate::sandbox::{Processes, Sandbox, SandboxSpec};
use crate::users::UserNamespace;
use crate::volumes;
use crate::world::{Notice, PodId, World};

impl Pod {
    pub(super) fn make_home(&mut self) {
        let (world, document, mail) = (
            Arc::clone(&self.world),
            Arc::clone(&self.document),
            self.mail.clone(),
        );
        let host = flag(&document, "hostNetwork");
        let place = Place {
            id: self.id,
            sandboxes: self.starts.len(),
            // Here, so that pods have their addresses in the order in which they were asked for.
            address: (!host).then(|| world.node.next_address()),
        };
        tokio::spawn(async move {
            // The kernel takes its time to make a network, and the thread of the run serves all pods.
            let runtime = Handle::current();
            let work = move || runtime.block_on(make(&world, &document, &place));
            let made = spawn_blocking(work).await;
            // The pod may be gone by now.
            let _ = mail.send(Mail::Home(made.unwrap_or_else(|died| Err(died.into()))));
        });
    }

    pub(super) async fn moved_in(&mut self, made: Result<Home, HomeError>) {
        match made {
            Ok(home) => {
                let home = Arc::new(home);
                self.world.placed(self.id, home.address);
                let network = home.network.clone();
                self.watcher = Some(watch::Watch::begin(network, self.mail.clone(), self.proxy()));
                self.renew_tokens(&home);
                self.home = Some(home);
                self.happened(What::SandboxReady).await;
                self.step(Event::SandboxCreated).await;
            }
            Err(error) => {
                self.trouble(format!("the pod cannot be set up: {}", chain(&error)))
                    .await;
                self.step(Event::SandboxFailed).await;
            }
        }
    }

    fn renew_tokens(&mut self, home: &Arc<Home>) {
        let Some(life) = volumes::life(&home.volumes) else {
            return;
        };
        let (world, document, home) = (
            Arc::clone(&self.world),
            Arc::clone(&self.document),
            Arc::clone(home),
        );
        let id = self.id;
        self.renewal.spawn(async move {
            let base = home.directory.join("volumes");
            loop {
                tokio::time::sleep(life).await;
                let now = SystemTime::now();
                let renewed = volumes::renew(&document, &home.volumes, &world.objects, &base, now);
                if let Err(error) = renewed {
                    let text = format!("renew the tokens: {}", chain(&error));
                    world.tell(Notice::Trouble(Some(id), text)).await;
                }
            }
        });
    }

    pub(super) fn leave_home(&mut self) {
        self.watcher = None;
        self.renewal.abort_all();
        for container in &mut self.containers {
            *container = None;
        }
        let (home, id) = (self.home.take(), self.id);
        let (world, mail) = (Arc::clone(&self.world), self.mail.clone());
        tokio::spawn(async move {
            let node = Arc::clone(&world);
            let left = spawn_blocking(move || home.map_or(Ok(()), |home| leave(&node, &home))).await;
            if let Err(error) = left.unwrap_or_else(|died| Err(died.into())) {
                world.tell(Notice::Trouble(Some(id), chain(&error))).await;
            }
            // The pod may be gone by now.
            let _ = mail.send(Mail::Happened(What::SandboxRemoved));
            let _ = mail.send(Mail::Event(Event::SandboxStopped));
        });
    }
}

/// Where a pod is put.
struct Place {
    id: PodId,
    sandboxes: usize,
    /// None: the node's own.
    address: Option<Ipv4Addr>,
}

fn flag(pod: &Value, field: &str) -> bool {
    view::at(pod, &["spec", field]).and_then(Value::as_bool) == Some(true)
}

fn leave(world: &World, home: &Home) -> Result<(), HomeError> {
    let detached = world.node.detach(home.address);
    volumes::release(&home.volumes, &home.directory.join("volumes"));
    // What is left of it is removed with the whole run.
    let _ = fs::remove_dir_all(&home.directory);
    Ok(detached?)
}

async fn make(world: &World, pod: &Value, place: &Place) -> Result<Home, HomeError> {
    let (id, sandboxes) = (place.id, place.sandboxes);
    let address = place.address.unwrap_or(NODE_ADDRESS);
    let directory = world.directory.join("pods").join(format!("{id}-{sandboxes}"));
    let facts = facts(world, address, format!("00000000-0000-4000-8000-{id:012}"));
    let volumes = volumes::plan(pod, &facts, &world.objects)?;
    let base = directory.join("volumes");
    volumes::prepare(&volumes, &volumes::nested(pod), &base, world.private_mounts)?;
    let made = sandbox(world, pod, place, &volumes::elsewhere(&volumes, &base)).await;
    let (sandbox, network) = made.inspect_err(|_| volumes::release(&volumes, &base))?;
    write(&directory.join("hosts"), &volumes::hosts(pod, &facts))?;
    write(
        &directory.join("resolv.conf"),
        &volumes::resolver(pod, &world.resolver),
    )?;
    write(
        &directory.join("hostname"),
        &format!("{}\n", volumes::host_name(pod)),
    )?;
    let cgroups = pod_group(world, id, sandboxes).await;
    Ok(Home {
        sandbox,
        network,
        address,
        facts,
        volumes,
        directory,
        cgroups,
    })
}

/// The namespaces of a pod, with its network captured and connected.
async fn sandbox(
    world: &World,
    pod: &Value,
    place: &Place,
    elsewhere: &[(String, PathBuf)],
) -> Result<(Arc<Sandbox>, Namespace), HomeError> {
    let flag = |field: &str| flag(pod, field);
    let users = users::of(world, pod, place.id, elsewhere).await?;
    let network = network(world, place, users.as_deref())?;
    capture_with_sandbox(pod, &network)?;
    if let Some(plugin) = &world.plugin {
        plugin.add(pod, &network).map_err(HomeError::Plugin)?;
    }
    let sandbox = Sandbox::create(&SandboxSpec {
        hostname: Some(volumes::host_name(pod)),
        network: Some(network.clone()),
        host_ipc: flag("hostIPC"),
        sysctls: sysctls(pod),
        users,
        processes: match (flag("shareProcessNamespace"), flag("hostPID")) {
            (true, _) => Processes::Pod,
            (_, true) => Processes::Host,
            _ => Processes::Container,
        },
    })
    .await?;
    Ok((sandbox, network))
}

/// The network of a pod, connected to the node.
fn network(world: &World, place: &Place, users: Option<&UserNamespace>) -> Result<Namespace, HomeError> {
    let Some(address) = place.address else {
        return Ok(world.node.namespace().clone());
    };
    let network = match users {
        Some(users) => users.network().clone(),
        None => Namespace::create().map_err(|source| NetworkError::Namespace {
            what: "make a network namespace for the pod",
            source,
        })?,
    };
    world.node.attach(&network, address)?;
    Ok(network)
}

/// The group of the pod. Where the kernel cannot count processes, pods run without that limit, which is reported.
async fn pod_group(world: &World, id: PodId, sandboxes: usize) -> Option<Arc<Hierarchy>> {
    let node = world.cgroups.as_ref()?;
    let Some(limit) = world.isolation.pids else {
        return Some(Arc::clone(node));
    };
    match node.pod(&format!("pod-{id}-{sandboxes}"), limit) {
        Ok(pod) => Some(Arc::new(pod)),
        Err(error) => {
            let text = format!("the number of processes is not limited: {error}");
            world.tell(Notice::Trouble(Some(id), text)).await;
            Some(Arc::clone(node))
        }
    }
}

pub(super) fn sysctls(pod: &Value) -> Vec<(String, String)> {
    let listed = view::list(pod, &["spec", "securityContext", "sysctls"]).iter();
    let pair = |s: &Value| {
        let value = s.get("value").map(view::scalar).unwrap_or_default();
        (view::name(s).to_owned(), value)
    };
    listed.map(pair).collect()
}

/// Captures a pod's traffic before its first container, where the pod leaves that to the node (CNI).
fn capture_with_sandbox(pod: &Value, network: &Namespace) -> Result<(), HomeError> {
    let pod = PodView::read(pod);
    let setup = Setup::detect(&pod);
    if setup.capture_at != CapturePoint::Sandbox || setup.mode == Mode::Ambient {
        return Ok(());
    }
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| HomeError::Capture(error);
    let options = remora_rules::pod::options(&pod, setup.mesh.dialect).map_err(|e| failed(e.into()))?;
    let settings = Settings::read(&options.given, &options.environment).map_err(|e| failed(e.into()))?;
    let installed = network.run(|| {
        let prepared = install::prepare(&settings)?;
        install::install(&settings, &prepared.plan)
    });
    match installed {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(failed(error.into())),
        Err(error) => Err(failed(error.into())),
    }
}

fn write(path: &Path, text: &str) -> Result<(), HomeError> {
    fs::write(path, text).map_err(|source| HomeError::Write {
        path: path.to_owned(),
        source,
    })
}
