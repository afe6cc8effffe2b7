//! Envoy's discovery stream, carried to the control plane.
//!
//! Envoy speaks to a unix socket; the agent speaks to the control plane, over TLS and with the pod's token, both read
//! anew for every connection. Messages pass as they are.
//!
//! Promises: Envoy's stream outlives the control plane's. When the control plane goes away the agent dials again, with
//! growing waits, and repeats what Envoy wants and already has, so that nothing is sent twice and nothing is lost. Of
//! several streams of Envoy's only the newest lives. What Envoy accepts and refuses is told as it happens.
// differs from istio: there Envoy's stream ends with the control plane's and Envoy waits up to 30 s before it asks
// again; a proxy whose control plane comes up a moment later would be ready half a minute later.
//!
//! Does not understand resources, except those the agent itself asks for.

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

/// Something that happened on the way.
#[derive(Debug)]
pub enum Event {
    /// Envoy opened a stream.
    Opened(Protocol),
    /// The control plane was reached.
    Connected,
    /// The control plane went away or could not be reached; it is dialled again.
    Disconnected(ClientError),
    /// Envoy took a response.
    Accepted {
        /// Of this type.
        type_url: String,
    },
    /// Envoy refused a response.
    Refused {
        /// Of this type.
        type_url: String,
        /// What it said.
        why: String,
    },
    /// The agent could not use what it asked for itself.
    NotUnderstood {
        /// Of this type.
        type_url: String,
        /// Why.
        why: String,
    },
    /// Envoy closed its stream.
    Closed,
}

/// Told about everything.
pub type Tell = Arc<dyn Fn(Event) + Send + Sync>;

/// Uses a resource, or says why it cannot be used.
pub type Use = Arc<dyn Fn(&[u8]) -> Result<(), String> + Send + Sync>;

/// A type the agent itself asks for on Envoy's stream; one resource, which Envoy never sees.
#[derive(Clone)]
pub struct Own {
    /// Its type URL.
    pub type_url: String,
    /// Given every version of it.
    pub apply: Use,
}

/// How the application feels, where the control plane wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It answers its probe.
    Healthy,
    /// It does not.
    Unhealthy(String),
}

/// What the proxy works with.
#[derive(Clone)]
pub struct XdsProxy {
    /// Where discovery is.
    pub control_plane: ControlPlane,
    /// What the agent asks for itself.
    pub own: Vec<Own>,
    /// How the application feels; `None` while nobody knows, and for ever in a pod.
    pub health: watch::Receiver<Option<Health>>,
    /// What Envoy may start with while the control plane is away, if that is kept.
    pub last_good: Option<LastGood>,
    /// Told about everything.
    pub tell: Tell,
}

impl XdsProxy {
    /// Answers Envoy on a socket until `stop`.
    pub async fn serve(
        self,
        listener: UnixListener,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        // Counts Envoy's streams; a stream that is not the newest ends.
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
