//! Starting containers.

use std::sync::Arc;

use remora_pod::spec::Slot;
use remora_startup::kubelet::{Event, StartError as Reason};
use remora_startup::sim::{Actor, What};
use serde_json::Value;

use super::{Home, Mail, Pod, chain, output};
use crate::container::{self, Container, external};
use crate::image::Image;
use crate::launch::{Launch, full_name};
use crate::world::{Notice, PodId, World};

/// A container that has started.
#[derive(Debug)]
pub(crate) struct Running {
    container: Container,
    stop_signal: i32,
}

/// Why a container did not start.
#[derive(Debug)]
pub(crate) struct Failure {
    reason: Reason,
    text: String,
}

impl Failure {
    fn new(reason: Reason, error: &dyn std::error::Error) -> Self {
        Self {
            reason,
            text: chain(error),
        }
    }
}

impl Pod {
    pub(super) fn start(&mut self, slot: Slot, attempt: u32) {
        let Some(home) = self.home.clone() else {
            self.step_later(Event::StartFailed(slot, Reason::Runtime));
            return;
        };
        self.containers[slot] = None;
        let (world, document, mail) = (
            Arc::clone(&self.world),
            Arc::clone(&self.document),
            self.mail.clone(),
        );
        let container = self.raw(slot).clone();
        let id = self.id;
        tokio::spawn(async move {
            let started = launch(&world, &document, &container, &home, id, attempt).await;
            // The pod may be gone by now; dropping the container then ends it.
            let _ = mail.send(Mail::Started(slot, started));
        });
    }

    fn step_later(&self, event: Event) {
        self.tell_back(Mail::Event(event));
    }

    pub(super) async fn started(&mut self, slot: Slot, started: Result<Running, Failure>) {
        match started {
            Ok(Running {
                container,
                stop_signal,
            }) => {
                let container = Arc::new(container);
                self.stop_signals[slot] = stop_signal;
                let who = self.next_start(Actor::main(slot));
                self.containers[slot] = Some(Arc::clone(&container));
                self.happened(What::Started(who)).await;
                let mail = self.mail.clone();
                tokio::spawn(async move {
                    let code = container.wait().await.map_or(137, |exit| exit.code);
                    // The pod may be gone by now.
                    let _ = mail.send(Mail::Happened(What::Exited(who, code, code == 137)));
                    let _ = mail.send(Mail::Event(Event::Exited(slot, code)));
                });
                self.step(Event::Started(slot)).await;
            }
            Err(failure) => {
                let name = full_name(&self.document, self.raw(slot));
                self.trouble(format!("{name}: {}", failure.text)).await;
                self.step(Event::StartFailed(slot, failure.reason)).await;
            }
        }
    }
}

async fn launch(
    world: &Arc<World>,
    pod: &Value,
    container: &Value,
    home: &Home,
    id: PodId,
    attempt: u32,
) -> Result<Running, Failure> {
    let provided = world.provision.image(pod, container, &world.objects).await;
    let provided = provided.map_err(|error| {
        let hint = error.hint().map(|h| format!(" ({h})")).unwrap_or_default();
        Failure {
            reason: Reason::ImagePull,
            text: chain(&error) + &hint,
        }
    })?;
    if let Some(note) = provided.note.as_ref().filter(|_| attempt == 1) {
        let text = format!("{}: {note}", full_name(pod, container));
        world.tell(Notice::Trouble(Some(id), text)).await;
    }
    let container = &provided.container(container);
    let launch = of(world, pod, container, home, &provided.image, id, attempt);
    let spec = launch.spec().map_err(|e| Failure::new(Reason::Config, &e))?;
    let started = match &world.runtime {
        Some(runtime) => external::start(&spec, runtime, &launch.bundle()).await,
        None => container::start(&spec).await,
    };
    let mut started = started.map_err(|error| {
        let hint = error.hint().map(|h| format!(" ({h})")).unwrap_or_default();
        Failure {
            reason: if error.is_sub_path() {
                Reason::Config
            } else {
                Reason::Runtime
            },
            text: chain(&error) + &hint,
        }
    })?;
    let name = remora_pod::view::name(container);
    output::pump(&mut started, world, id, name, attempt);
    Ok(Running {
        container: started,
        stop_signal: provided.image.config.stop_signal(),
    })
}

/// What a process of a container is started from.
pub(super) fn of<'a>(
    world: &'a World,
    pod: &'a Value,
    container: &'a Value,
    home: &'a Home,
    image: &'a Image,
    id: PodId,
    attempt: u32,
) -> Launch<'a> {
    Launch {
        pod,
        container,
        facts: &home.facts,
        objects: &world.objects,
        services: &world.services,
        volumes: &home.volumes,
        image,
        directory: &home.directory,
        id: format!("{id}-{}-{attempt}", remora_pod::view::name(container)),
        sandbox: Arc::clone(&home.sandbox),
        cgroups: home.cgroups.clone(),
        // Another runtime makes groups of its own, where the limit of the pod does not reach.
        pids: world.isolation.pids.filter(|_| world.runtime.is_some()),
        seccomp_root: &world.isolation.seccomp_root,
    }
}
