//! Hooks, probes, stopping, and commands from outside.

use std::sync::Arc;
use std::time::Duration;

use remora_pod::spec::{Handler, Hook, ProbeKind, Slot};
use remora_pod::view;
use remora_startup::kubelet::{Event, Millis, Outcome};
use remora_startup::sim::{Actor, ActorRef, Part, What};
use tokio::sync::oneshot;

use super::probe::Attempt;
use super::{Mail, Pod, raw_hook, start};
use crate::container::{Container, Process, Stdio};

/// k8s: a hook that is answered by nobody would keep the pod for ever. It does so there; here it ends with the run.
const FOR_EVER: Duration = Duration::from_hours(24 * 365);
const KILLED: i32 = 137;
/// k8s: a kubelet dials a hook once, 10 to 150 ms after the container's start, so that most programs listen by then.
const DIAL_LAG: Duration = Duration::from_millis(50);

impl Pod {
    pub(super) fn run_hook(&mut self, slot: Slot, hook: Hook) {
        let handler = self.kubelet.view().containers[slot].hook(hook).cloned();
        let mail = self.mail.clone();
        let done = move |ok: bool| {
            // The pod may be gone by now.
            let _ = mail.send(Mail::Event(Event::HookDone(slot, hook, ok)));
        };
        let part = Part::Hook(hook);
        let lag = match hook {
            Hook::PostStart => DIAL_LAG,
            Hook::PreStop => Duration::ZERO,
        };
        match handler {
            Some(Handler::Exec(args)) => {
                let who = self.next_start(Actor { slot, part });
                let running = self.exec_part(slot, args, who, FOR_EVER);
                tokio::spawn(async move { done(running.await == Some(0)) });
            }
            Some(Handler::Sleep(seconds)) => {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    done(true);
                });
            }
            Some(Handler::Http { port, .. }) => {
                let raw = raw_hook(self.raw(slot), hook).cloned().unwrap_or_default();
                let attempt = self.attempt(&raw, port, "kube-lifecycle/1.38");
                tokio::spawn(async move {
                    tokio::time::sleep(lag).await;
                    // k8s: any answer will do, whatever its status.
                    done(attempt.http(FOR_EVER).await.is_ok());
                });
            }
            // k8s: nobody carries out the other kinds; they fail.
            Some(Handler::Tcp(_) | Handler::Grpc(_)) => {
                tokio::spawn(async move {
                    tokio::time::sleep(lag).await;
                    done(false);
                });
            }
            None => done(true),
        }
    }

    pub(super) fn run_probe(&mut self, slot: Slot, kind: ProbeKind) {
        let container = &self.kubelet.view().containers[slot];
        let Some(probe) = container.probe(kind).cloned() else {
            return;
        };
        let mail = self.mail.clone();
        let done = move |outcome: Outcome| {
            // The pod may be gone by now.
            let _ = mail.send(Mail::Event(Event::Probed(slot, kind, outcome)));
        };
        let patience = Duration::from_secs(probe.timeout);
        if let Handler::Exec(args) = probe.handler {
            let who = self.next_start(Actor {
                slot,
                part: Part::Probe(kind),
            });
            let running = self.exec_part(slot, args, who, patience);
            tokio::spawn(async move { done(outcome(running.await == Some(0))) });
            return;
        }
        let raw = view::at(self.raw(slot), &[kind.field()])
            .cloned()
            .unwrap_or_default();
        let attempt = self.attempt(&raw, probe.handler.kubelet_port(), "kube-probe/1.38");
        tokio::spawn(async move {
            if attempt.has_no_port() {
                done(Outcome::Error);
                return;
            }
            done(outcome(match probe.handler {
                Handler::Http { .. } => attempt.http_succeeds(patience).await,
                Handler::Tcp(_) => attempt.tcp(patience).await,
                Handler::Grpc(_) => attempt.grpc(patience).await,
                Handler::Exec(_) | Handler::Sleep(_) => false,
            }));
        });
    }

    fn attempt(&self, raw: &serde_json::Value, port: Option<u16>, agent: &'static str) -> Attempt {
        let node = self.world.node.namespace().clone();
        let address = self.home.as_ref().map(|home| home.address);
        Attempt::new(node, raw, address, port, agent)
    }

    /// Runs a command in a container; its exit code, or nothing if it did not come to an end in time.
    fn exec_part(
        &self,
        slot: Slot,
        args: Vec<String>,
        who: ActorRef,
        patience: Duration,
    ) -> impl Future<Output = Option<i32>> + use<> {
        let container = self.containers[slot].clone();
        let process = self.process(slot, args);
        let mail = self.mail.clone();
        async move {
            let tell = |what| {
                // The pod may be gone by now.
                let _ = mail.send(Mail::Happened(what));
            };
            let running = container?.exec(&process.await?, Stdio::Null).await.ok()?;
            tell(What::Started(who));
            let ended = tokio::time::timeout(patience, running.wait()).await;
            let code = match ended {
                Ok(Ok(exit)) => Some(exit.code),
                // Dropping it kills it.
                Ok(Err(_)) | Err(_) => None,
            };
            tell(What::Exited(who, code.unwrap_or(KILLED), code.is_none()));
            code
        }
    }

    /// A further process in a container.
    fn process(&self, slot: Slot, args: Vec<String>) -> impl Future<Output = Option<Process>> + use<> {
        let (world, document) = (Arc::clone(&self.world), Arc::clone(&self.document));
        let container = self.raw(slot).clone();
        let (home, id) = (self.home.clone(), self.id);
        async move {
            let home = home?;
            let provided = world.provision.image(&document, &container, &world.objects).await;
            let image = provided.ok()?.image;
            let launch = start::of(&world, &document, &container, &home, &image, id, 0);
            launch.further(args).ok()
        }
    }

    pub(super) async fn stop(&mut self, slot: Slot, grace: Millis) {
        let Some(container) = self.containers[slot].clone() else {
            return;
        };
        let who = ActorRef {
            actor: Actor::main(slot),
            instance: self.starts.get(&Actor::main(slot)).copied().unwrap_or(1),
        };
        self.happened(What::Signalled(who)).await;
        let signal = self.stop_signals[slot];
        tokio::spawn(async move {
            container.until_minded(signal).await;
            // It has ended if it cannot be signalled, which is what is wanted.
            let _ = container.signal(signal);
            let patience = Duration::from_millis(grace);
            if tokio::time::timeout(patience, container.wait()).await.is_err() {
                let _ = container.signal(libc::SIGKILL);
            }
        });
    }

    pub(super) fn exec(
        &self,
        name: &str,
        args: Vec<String>,
        env: Vec<(String, String)>,
        stdio: Stdio,
        reply: oneshot::Sender<Result<Container, String>>,
    ) {
        let view = self.kubelet.view();
        let wanted = if name.is_empty() {
            view.main_slots().next()
        } else {
            view.slot(name)
        };
        let container = wanted.and_then(|slot| Some((slot, self.containers[slot].clone()?)));
        let Some((slot, container)) = container else {
            // Whoever asked may have gone away.
            let _ = reply.send(Err(format!("container {name:?} does not run")));
            return;
        };
        let process = self.process(slot, args);
        tokio::spawn(async move {
            let started = match process.await {
                Some(mut process) => {
                    process.env.extend(env);
                    let started = container.exec(&process, stdio).await;
                    started.map_err(|e| {
                        let hint = e.hint().map(|h| format!(" ({h})")).unwrap_or_default();
                        super::chain(&e) + &hint
                    })
                }
                None => Err("its environment cannot be made".to_owned()),
            };
            let _ = reply.send(started);
        });
    }
}

const fn outcome(ok: bool) -> Outcome {
    if ok { Outcome::Success } else { Outcome::Failure }
}
