//! Making and removing what the containers of a pod share.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use remora_capture::install;
use remora_capture::options::{Environment, Settings};
use remora_net::Namespace;
use remora_pod::view;
use remora_startup::kubelet::Event;
use remora_startup::mesh::{CapturePoint, Mode, Setup};
use remora_startup::sim::What;
use remora_startup::view::PodView;
use serde_json::Value;

use super::{Home, HomeError, Mail, Pod, chain, facts, watch};
use crate::network::NODE_ADDRESS;
use crate::sandbox::{Processes, Sandbox, SandboxSpec};
use crate::volumes;
use crate::world::{PodId, World};

impl Pod {
    pub(super) fn make_home(&mut self) {
        let (world, document, mail) = (
            Arc::clone(&self.world),
            Arc::clone(&self.document),
            self.mail.clone(),
        );
        let (id, sandboxes) = (self.id, self.starts.len());
        tokio::spawn(async move {
            let made = make(&world, &document, id, sandboxes).await;
            // The pod may be gone by now.
            let _ = mail.send(Mail::Home(made));
        });
    }

    pub(super) async fn moved_in(&mut self, made: Result<Home, HomeError>) {
        match made {
            Ok(home) => {
                let home = Arc::new(home);
                self.world.placed(self.id, home.address);
                let network = home.network.clone();
                self.watcher = Some(watch::Watch::begin(network, self.mail.clone(), self.proxy()));
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

    pub(super) async fn leave_home(&mut self) {
        self.watcher = None;
        for container in &mut self.containers {
            *container = None;
        }
        if let Some(home) = self.home.take() {
            let detached = self.world.with_node(|node| node.detach(home.address));
            if let Err(error) = detached {
                self.trouble(chain(&error)).await;
            }
            // What is left of it is removed with the whole run.
            let _ = fs::remove_dir_all(&home.directory);
        }
        self.happened(What::SandboxRemoved).await;
        self.tell_back(Mail::Event(Event::SandboxStopped));
    }
}

async fn make(world: &World, pod: &Value, id: PodId, sandboxes: usize) -> Result<Home, HomeError> {
    let flag = |field: &str| view::at(pod, &["spec", field]).and_then(Value::as_bool) == Some(true);
    let host = flag("hostNetwork");
    let address = if host { NODE_ADDRESS } else { world.next_address() };
    let network = if host {
        world.with_node(|node| node.namespace().clone())
    } else {
        let made = Namespace::create().map_err(|source| crate::network::NetworkError::Namespace {
            what: "make a network namespace for the pod",
            source,
        })?;
        world.with_node(|node| node.attach(&made, address))?;
        made
    };
    capture_with_sandbox(pod, &network)?;
    if let Some(plugin) = &world.plugin {
        plugin.add(pod, &network).map_err(HomeError::Plugin)?;
    }
    let directory = world.directory.join("pods").join(format!("{id}-{sandboxes}"));
    let facts = facts(world, address, format!("00000000-0000-4000-8000-{id:012}"));
    let volumes = volumes::plan(pod, &facts, &world.objects)?;
    volumes::prepare(&volumes, &volumes::nested(pod), &directory.join("volumes"))?;
    write(&directory.join("hosts"), &volumes::hosts(pod, &facts))?;
    write(
        &directory.join("resolv.conf"),
        &volumes::resolver(pod, &world.resolver),
    )?;
    write(
        &directory.join("hostname"),
        &format!("{}\n", volumes::host_name(pod)),
    )?;
    let sandbox = Sandbox::create(&SandboxSpec {
        hostname: Some(volumes::host_name(pod)),
        network: Some(network.clone()),
        host_ipc: flag("hostIPC"),
        sysctls: sysctls(pod),
        processes: match (flag("shareProcessNamespace"), flag("hostPID")) {
            (true, _) => Processes::Pod,
            (_, true) => Processes::Host,
            _ => Processes::Container,
        },
    })
    .await?;
    Ok(Home {
        sandbox,
        network,
        address,
        facts,
        volumes,
        directory,
    })
}

fn sysctls(pod: &Value) -> Vec<(String, String)> {
    let listed = view::list(pod, &["spec", "securityContext", "sysctls"]).iter();
    let pair = |s: &Value| {
        let value = s.get("value").map(view::scalar).unwrap_or_default();
        (view::name(s).to_owned(), value)
    };
    listed.map(pair).collect()
}

/// Captures a pod's traffic before its first container, where the pod leaves that to the node (CNI).
fn capture_with_sandbox(pod: &Value, network: &Namespace) -> Result<(), HomeError> {
    let setup = Setup::detect(&PodView::read(pod));
    if setup.capture_at != CapturePoint::Sandbox || setup.mode == Mode::Ambient {
        return Ok(());
    }
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| HomeError::Capture(error);
    let (_, mut given) = remora_capture::pod::options(pod).map_err(|e| failed(e.into()))?;
    // What the validating init container is told concerns itself only.
    given.retain(|g| !matches!(g.option, "skip-rule-apply" | "run-validation" | "dry-run"));
    let settings = Settings::read(&given, &Environment::new()).map_err(|e| failed(e.into()))?;
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
