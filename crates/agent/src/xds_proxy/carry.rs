//! One stream of Envoy's, over as many connections to the control plane as it takes.

use super::kept::Kept;
use super::memory::{Answer, FromEnvoy, FromPlane, Memory};
use super::{Event, Health, XdsProxy};
use bytes::Bytes;
use remora_xds::client::ClientError;
use remora_xds::raw::Protocol;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tonic::{Status, Streaming};

const SHORTEST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// A control plane that takes connections and says nothing is given up after this.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// A control plane that says nothing for so long is away, where something was kept.
const PATIENCE: Duration = Duration::from_secs(2);
/// Requests that wait for the control plane. Envoy is not read beyond that, and goes on reading itself.
const WAITING: usize = 256;

/// Why a connection to the control plane is over.
enum Over {
    /// Envoy is gone.
    Envoy,
    /// The control plane is; dial again.
    Plane(ClientError),
}

pub(super) struct Carrier {
    proxy: XdsProxy,
    protocol: Protocol,
    from_envoy: Streaming<Bytes>,
    to_envoy: mpsc::Sender<Result<Bytes, Status>>,
    memory: Memory,
    health: watch::Receiver<Option<Health>>,
    kept: Option<Kept>,
    /// What Envoy asked for, until the control plane is heard: it may have to be answered without it.
    asked: Vec<Bytes>,
    /// Whether the control plane said something on this connection.
    heard: bool,
}

impl Carrier {
    pub(super) fn new(
        proxy: XdsProxy,
        protocol: Protocol,
        from_envoy: Streaming<Bytes>,
        to_envoy: mpsc::Sender<Result<Bytes, Status>>,
    ) -> Self {
        let own = proxy.own.iter().map(|own| own.type_url.clone()).collect();
        Self {
            protocol,
            from_envoy,
            to_envoy,
            memory: Memory::new(protocol, own),
            health: proxy.health.clone(),
            kept: proxy.last_good.clone().map(|all| Kept::new(all, protocol)),
            asked: Vec::new(),
            heard: false,
            proxy,
        }
    }

    /// Until Envoy closes.
    pub(super) async fn run(mut self) {
        // Without a first message there is nobody to introduce.
        let Ok(Some(first)) = self.from_envoy.message().await else {
            return;
        };
        self.note(&first);
        let mut wait = SHORTEST_WAIT;
        loop {
            self.heard = false;
            let Over::Plane(error) = self.connection().await else {
                return;
            };
            (self.proxy.tell)(Event::Disconnected(error));
            if self.make_do().await.is_none() {
                return;
            }
            wait = if self.heard {
                SHORTEST_WAIT
            } else {
                (wait * 2).min(LONGEST_WAIT)
            };
            if self.pause(wait).await.is_none() {
                return;
            }
        }
    }

    /// Waits, while Envoy may change its mind. `None` when it is gone.
    async fn pause(&mut self, wait: Duration) -> Option<()> {
        let over = tokio::time::sleep(wait.mul_f64(0.5 + 0.5 * share()));
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return Some(()),
                message = self.from_envoy.message() => match message {
                    Ok(Some(message)) => {
                        self.note(&message);
                        if let Some(answer) = self.kept_answer(&message) {
                            self.to_envoy.send(Ok(answer)).await.ok()?;
                        }
                    }
                    Ok(None) | Err(_) => return None,
                },
                () = self.to_envoy.closed() => return None,
            }
        }
    }

    /// The control plane is away: what Envoy asked for so far is answered with what was kept, if there is something.
    /// `None` when Envoy is gone.
    async fn make_do(&mut self) -> Option<()> {
        if !self.kept.as_mut().is_some_and(Kept::away) {
            return Some(());
        }
        for own in &self.proxy.own {
            // What was good enough before is not worth more than a try.
            if let Some(resource) = self.kept.as_ref().and_then(|kept| kept.own(&own.type_url)) {
                let _ = (own.apply)(&resource);
            }
        }
        for message in std::mem::take(&mut self.asked) {
            if let Some(answer) = self.kept_answer(&message) {
                self.to_envoy.send(Ok(answer)).await.ok()?;
            }
        }
        Some(())
    }

    /// What was kept of what a message asks for, while that has to do.
    fn kept_answer(&mut self, message: &Bytes) -> Option<Bytes> {
        let answer = self.kept.as_mut()?.answer(message)?;
        self.memory.hear_kept(&answer);
        Some(answer)
    }

    /// Remembers a message while there is nobody to pass it on to.
    fn note(&mut self, message: &Bytes) {
        self.listen(message);
        let heard = self.memory.hear_envoy(message);
        self.tell(heard.answer);
    }

    /// What a message means for what is kept.
    fn listen(&mut self, message: &Bytes) {
        let Some(kept) = &mut self.kept else { return };
        let accepted = kept.answered(message);
        if kept.can_make_do() && !self.heard {
            self.asked.push(message.clone());
        }
        // Of incremental streams the memory tells.
        if let (Some(type_url), Protocol::Sotw) = (accepted, self.protocol) {
            (self.proxy.tell)(Event::Accepted { type_url });
        }
    }

    /// One connection to the control plane.
    async fn connection(&mut self) -> Over {
        let (requests, outgoing) = mpsc::channel(4);
        let mut waiting: VecDeque<Bytes> = self.memory.connected().into();
        self.health.mark_unchanged();
        if self.memory.introduced() {
            waiting.extend(self.health_request());
        }
        let plane = self.proxy.control_plane.clone();
        let protocol = self.protocol;
        // Some servers answer the opening only after a first message, so both happen at once.
        let opening = tokio::time::timeout(OPEN_TIMEOUT, plane.open(protocol, outgoing));
        tokio::pin!(opening);
        let envoy = self.to_envoy.clone();
        let mut from_plane: Option<Streaming<Bytes>> = None;
        let mut to_envoy: VecDeque<Bytes> = VecDeque::new();
        let away = tokio::time::sleep(PATIENCE);
        tokio::pin!(away);
        loop {
            tokio::select! {
                opened = &mut opening, if from_plane.is_none() => match opened {
                    Ok(Ok(stream)) => {
                        (self.proxy.tell)(Event::Connected);
                        from_plane = Some(stream);
                    }
                    Ok(Err(error)) => return Over::Plane(error),
                    Err(_) => return Over::Plane(Box::new(Status::deadline_exceeded("no answer")).into()),
                },
                // Sent one by one, never awaited elsewhere: whoever is slow holds up nobody else.
                permit = requests.reserve(), if !waiting.is_empty() => match permit {
                    Ok(permit) => if let Some(request) = waiting.pop_front() {
                        permit.send(request);
                    },
                    // The opening, or the stream, says why.
                    Err(_) => waiting.clear(),
                },
                message = self.from_envoy.message(), if waiting.len() < WAITING => match message {
                    Ok(Some(message)) => {
                        self.envoy_said(&message, &mut waiting);
                        to_envoy.extend(self.kept_answer(&message));
                    }
                    Ok(None) | Err(_) => return Over::Envoy,
                },
                message = receive(from_plane.as_mut()), if to_envoy.is_empty() => match message {
                    Ok(Some(message)) => {
                        self.heard = true;
                        self.asked.clear();
                        let forwarded = self.plane_said(message, &mut waiting);
                        if let (Some(kept), Some(message)) = (&mut self.kept, &forwarded) {
                            kept.forwarded(message);
                        }
                        to_envoy.extend(forwarded);
                    }
                    Ok(None) => return Over::Plane(ClientError::Ended),
                    Err(status) => return Over::Plane(Box::new(status).into()),
                },
                permit = envoy.reserve(), if !to_envoy.is_empty() => match permit {
                    Ok(permit) => if let Some(message) = to_envoy.pop_front() {
                        permit.send(Ok(message));
                    },
                    Err(_) => return Over::Envoy,
                },
                Ok(()) = self.health.changed() => {
                    if self.memory.introduced() {
                        waiting.extend(self.health_request());
                    }
                }
                // Somebody could be made do with something.
                () = &mut away, if !self.heard && self.waits_for_nothing() => {
                    return Over::Plane(ClientError::Slow);
                }
                () = envoy.closed() => return Over::Envoy,
            }
        }
    }

    /// Whether there is something kept that is not used while the control plane is waited for.
    fn waits_for_nothing(&self) -> bool {
        self.kept.as_ref().is_some_and(Kept::could_start)
    }

    fn envoy_said(&mut self, message: &Bytes, waiting: &mut VecDeque<Bytes>) {
        self.listen(message);
        let introduced = self.memory.introduced();
        let FromEnvoy { forward, answer } = self.memory.hear_envoy(message);
        waiting.extend(forward);
        self.tell(answer);
        // istio: istiod listens to the agent's own wishes only after the first request for listeners.
        if !introduced && self.memory.introduced() {
            waiting.extend(self.memory.own_requests());
            waiting.extend(self.health_request());
        }
    }

    /// What goes on to Envoy.
    fn plane_said(&mut self, message: Bytes, waiting: &mut VecDeque<Bytes>) -> Option<Bytes> {
        let (type_url, resource) = match self.memory.hear_plane(message) {
            FromPlane::Forward(message) => return Some(message),
            FromPlane::Ignore => return None,
            FromPlane::Own { type_url, resource } => (type_url, resource),
        };
        let own = self.proxy.own.iter().find(|own| own.type_url == type_url);
        let refusal = match (own, resource) {
            (Some(own), Some(resource)) => {
                let refusal = (own.apply)(&resource).err();
                if let (Some(kept), None) = (&self.kept, &refusal) {
                    kept.keep_own(&type_url, resource);
                }
                refusal
            }
            _ => None,
        };
        waiting.extend(self.memory.answer_own(&type_url, refusal.as_deref()));
        if let Some(why) = refusal {
            (self.proxy.tell)(Event::NotUnderstood { type_url, why });
        }
        None
    }

    fn tell(&self, answer: Option<Answer>) {
        let event = match answer {
            Some(Answer::Accepted(type_url)) => Event::Accepted { type_url },
            Some(Answer::Refused(type_url, why)) => Event::Refused { type_url, why },
            None => return,
        };
        (self.proxy.tell)(event);
    }

    fn health_request(&mut self) -> Option<Bytes> {
        let health = self.health.borrow_and_update().clone()?;
        Some(self.memory.health(&health))
    }
}

/// The next message, or for ever nothing while there is no stream.
async fn receive(stream: Option<&mut Streaming<Bytes>>) -> Result<Option<Bytes>, Status> {
    match stream {
        Some(stream) => stream.message().await,
        None => std::future::pending().await,
    }
}

/// Any number from 0 to 1: proxies that lost their control plane together must not come back together.
fn share() -> f64 {
    let random = RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(random % 1024).unwrap_or_default()) / 1024.0
}
