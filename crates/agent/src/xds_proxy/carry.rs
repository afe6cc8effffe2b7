//! One stream of Envoy, proxied over successive connections to the control plane.

use super::kept::Kept;
use super::memory::{Answer, FromControlPlane, FromEnvoy, Memory};
use super::{Event, Health, XdsProxy};
use bytes::Bytes;
use remora_xds::client::ClientError;
use remora_xds::raw::Protocol;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tonic::{Status, Streaming};

const MIN_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_secs(15);
/// Timeout for opening a stream on a control plane that accepts the connection but does not respond.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// A control plane that does not respond within this time counts as unavailable, if there is a last good configuration.
const CONTROL_PLANE_TIMEOUT: Duration = Duration::from_secs(2);
/// Queue of requests for the control plane. When it is full, Envoy's requests are not read; responses still flow.
const MAX_QUEUED_REQUESTS: usize = 256;

/// Why a connection to the control plane ended.
enum Over {
    /// Envoy closed its stream.
    Envoy,
    /// The control plane closed the connection; reconnect.
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
    /// Envoy's requests until the first response of the control plane: they may have to be answered from disk.
    asked: Vec<Bytes>,
    /// Whether the control plane responded on this connection.
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

    /// Runs until Envoy closes the stream.
    pub(super) async fn run(mut self) {
        // The first message carries the node, which every connection to the control plane needs.
        let Ok(Some(first)) = self.from_envoy.message().await else {
            return;
        };
        self.note(&first);
        let mut wait = MIN_BACKOFF;
        loop {
            self.heard = false;
            let Over::Plane(error) = self.connection().await else {
                return;
            };
            (self.proxy.tell)(Event::Disconnected(error));
            if self.answer_from_last_good().await.is_none() {
                return;
            }
            wait = if self.heard {
                MIN_BACKOFF
            } else {
                (wait * 2).min(MAX_BACKOFF)
            };
            if self.pause(wait).await.is_none() {
                return;
            }
        }
    }

    /// Waits, and meanwhile records Envoy's requests. `None` when Envoy closed the stream.
    async fn pause(&mut self, wait: Duration) -> Option<()> {
        let over = tokio::time::sleep(wait.mul_f64(0.5 + 0.5 * jitter()));
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

    /// The control plane is unavailable: answers Envoy's requests so far from the last good configuration, if there is
    /// one. `None` when Envoy closed the stream.
    async fn answer_from_last_good(&mut self) -> Option<()> {
        if !self.kept.as_mut().is_some_and(Kept::away) {
            return Some(());
        }
        for own in &self.proxy.own {
            // Best effort: if the agent cannot use its own resource from disk, it continues without it.
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

    /// The response to a request from the last good configuration, while that is in use.
    fn kept_answer(&mut self, message: &Bytes) -> Option<Bytes> {
        let answer = self.kept.as_mut()?.answer(message)?;
        self.memory.on_kept_response(&answer);
        Some(answer)
    }

    /// Records a request while no control plane is connected.
    fn note(&mut self, message: &Bytes) {
        self.record_message(message);
        let heard = self.memory.on_envoy_message(message);
        self.tell(heard.answer);
    }

    /// Records a message of Envoy: an ACK for the last good configuration, a request for an answer from it.
    fn record_message(&mut self, message: &Bytes) {
        let Some(kept) = &mut self.kept else { return };
        let accepted = kept.answered(message);
        if kept.can_make_do() && !self.heard {
            self.asked.push(message.clone());
        }
        // For delta streams the memory reports the ACK.
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
        // Some servers accept the stream only after a first message, so both happen concurrently.
        let opening = tokio::time::timeout(OPEN_TIMEOUT, plane.open(protocol, outgoing));
        tokio::pin!(opening);
        let envoy = self.to_envoy.clone();
        let mut from_plane: Option<Streaming<Bytes>> = None;
        let mut to_envoy: VecDeque<Bytes> = VecDeque::new();
        let away = tokio::time::sleep(CONTROL_PLANE_TIMEOUT);
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
                // Messages are sent here only, one at a time, so that a slow receiver does not block the other direction.
                permit = requests.reserve(), if !waiting.is_empty() => match permit {
                    Ok(permit) => if let Some(request) = waiting.pop_front() {
                        permit.send(request);
                    },
                    // The stream itself returns the reason.
                    Err(_) => waiting.clear(),
                },
                message = self.from_envoy.message(), if waiting.len() < MAX_QUEUED_REQUESTS => match message {
                    Ok(Some(message)) => {
                        self.handle_envoy_request(&message, &mut waiting);
                        to_envoy.extend(self.kept_answer(&message));
                    }
                    Ok(None) | Err(_) => return Over::Envoy,
                },
                message = receive(from_plane.as_mut()), if to_envoy.is_empty() => match message {
                    Ok(Some(message)) => {
                        self.heard = true;
                        self.asked.clear();
                        let forwarded = self.handle_control_plane_response(message, &mut waiting);
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
                // Completes only if there is a last good configuration that is not in use yet.
                () = &mut away, if !self.heard && self.has_unused_last_good() => {
                    return Over::Plane(ClientError::Slow);
                }
                () = envoy.closed() => return Over::Envoy,
            }
        }
    }

    /// Whether there is a last good configuration that could be used now instead of waiting.
    fn has_unused_last_good(&self) -> bool {
        self.kept.as_ref().is_some_and(Kept::could_start)
    }

    /// Handles a request of Envoy.
    fn handle_envoy_request(&mut self, message: &Bytes, waiting: &mut VecDeque<Bytes>) {
        self.record_message(message);
        let introduced = self.memory.introduced();
        let FromEnvoy { forward, answer } = self.memory.on_envoy_message(message);
        waiting.extend(forward);
        self.tell(answer);
        // istio: istiod handles the agent's own subscriptions only after the first request for listeners.
        if !introduced && self.memory.introduced() {
            waiting.extend(self.memory.own_requests());
            waiting.extend(self.health_request());
        }
    }

    /// Handles a response of the control plane. Returns the message to forward to Envoy, if any.
    fn handle_control_plane_response(
        &mut self,
        message: Bytes,
        waiting: &mut VecDeque<Bytes>,
    ) -> Option<Bytes> {
        let (type_url, resource) = match self.memory.on_control_plane_message(message) {
            FromControlPlane::Forward(message) => return Some(message),
            FromControlPlane::Ignore => return None,
            FromControlPlane::Own { type_url, resource } => (type_url, resource),
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

/// The next message; pending indefinitely while there is no stream.
async fn receive(stream: Option<&mut Streaming<Bytes>>) -> Result<Option<Bytes>, Status> {
    match stream {
        Some(stream) => stream.message().await,
        None => std::future::pending().await,
    }
}

/// Jitter from 0 to 1, so that proxies that lost their control plane together do not reconnect together.
fn jitter() -> f64 {
    let random = RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(random % 1024).unwrap_or_default()) / 1024.0
}
