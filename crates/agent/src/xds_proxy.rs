//! Proxies Envoy's discovery stream to the control plane.
//!
//! Envoy connects to a unix socket; the agent connects to the control plane, over TLS and with the pod's token. Roots and
//! token are read again for every connection. Messages are forwarded unchanged.
//!
//! Promises: Envoy's stream outlives the control plane's. When that breaks, the agent reconnects with backoff and repeats
//! Envoy's subscriptions and the versions it has, so that nothing is sent twice and nothing is lost. Of several streams
//! of Envoy only the newest is served. Every ACK and NACK of Envoy is reported as an event.
// differs from istio: there Envoy's stream ends with the control plane's and Envoy waits up to 30 s before it
// reconnects; a proxy whose control plane comes up a moment later would be ready half a minute later.
//!
//! Resources are not decoded, except those that the agent itself subscribes to.

mod carry;
mod kept;
mod memory;

pub use kept::LastGood;

use crate::xds_proxy::carry::Carrier;
use bytes::Bytes;
use remora_xds::client::{ClientError, ControlPlane};
use remora_xds::raw::{Protocol, Streams};
use std::future::Future;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Status, Streaming};

/// Events of the proxied stream.
#[derive(Debug)]
pub enum Event {
    /// Envoy opened a stream.
    Opened(Protocol),
    /// The control plane is connected.
    Connected,
    /// The connection to the control plane ended or failed; the agent reconnects.
    Disconnected(ClientError),
    /// Envoy accepted a response (ACK).
    Accepted {
        /// Type URL of the resources.
        type_url: String,
    },
    /// Envoy refused a response (NACK).
    Refused {
        /// Type URL of the resources.
        type_url: String,
        /// Envoy's error message.
        why: String,
    },
    /// The agent could not use a resource of its own subscription.
    NotUnderstood {
        /// Type URL of the resources.
        type_url: String,
        /// The reason.
        why: String,
    },
    /// Envoy closed its stream.
    Closed,
}

/// Callback for events.
pub type OnEvent = Arc<dyn Fn(Event) + Send + Sync>;

/// Applies a resource, or returns why it cannot be used.
pub type Use = Arc<dyn Fn(&[u8]) -> Result<(), String> + Send + Sync>;

/// A subscription of the agent itself on Envoy's stream: one resource, which is not forwarded to Envoy.
#[derive(Clone)]
pub struct Own {
    /// Type URL of the resource.
    pub type_url: String,
    /// Called with every version of the resource.
    pub apply: Use,
}

/// Health of the application, reported to the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// The health check succeeds.
    Healthy,
    /// The health check fails, for this reason.
    Unhealthy(String),
}

/// The xDS proxy.
#[derive(Clone)]
pub struct XdsProxy {
    /// The control plane.
    pub control_plane: ControlPlane,
    /// Subscriptions of the agent itself.
    pub own: Vec<Own>,
    /// Health of the application; `None` until it is known. In a pod it stays `None`, because the kubelet probes.
    pub health: watch::Receiver<Option<Health>>,
    /// Configuration that Envoy may start with while the control plane is unavailable, if it is kept.
    pub last_good: Option<LastGood>,
    /// Callback for events.
    pub tell: OnEvent,
}

impl XdsProxy {
    /// Serves Envoy on a socket until `stop`.
    pub async fn serve(
        self,
        listener: UnixListener,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        // Counts Envoy's streams; every stream but the newest ends.
        let newest = watch::Sender::new(0_u64);
        let accept = move |protocol, request: Request<Streaming<Bytes>>| {
            newest.send_modify(|number| *number += 1);
            let (to_envoy, responses) = mpsc::channel(1);
            let carrier = Carrier::new(self.clone(), protocol, request.into_inner(), to_envoy.clone());
            let mut newest = newest.subscribe();
            newest.mark_unchanged();
            (self.tell)(Event::Opened(protocol));
            let tell = Arc::clone(&self.tell);
            tokio::spawn(async move {
                tokio::select! {
                    () = carrier.run() => {}
                    _ = newest.changed() => {
                        let _ = to_envoy.try_send(Err(Status::aborted("a newer stream took over")));
                    }
                }
                tell(Event::Closed);
            });
            responses
        };
        tonic::transport::Server::builder()
            .add_service(Streams::new(Arc::new(accept)))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop)
            .await
    }
}
