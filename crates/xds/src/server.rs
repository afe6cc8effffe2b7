//! Serves snapshots to many clients, each over its own [`delta::Server`].
//!
//! Snapshots come through a watch channel: a slow client skips intermediate ones. One response per type is in flight
//! to a client, so a slow client does not make memory grow.

mod service;

pub use service::Service;

use crate::delta::{self, Response, Snapshot, View};
use crate::proto::discovery::DeltaDiscoveryRequest;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Request, Status, Streaming};

/// Limit, in bytes, for the subscribed resource names of all streams together. Wildcard subscriptions name no resources,
/// so streams with many names cannot block them.
const MAX_REMEMBERED_BYTES: usize = 64 << 20;

/// All types with their resources. Types are sent in the order of their URLs: policies before the workloads that
/// name them.
pub type Snapshots = BTreeMap<&'static str, Snapshot>;

/// Authenticates clients and decides what each may see.
#[tonic::async_trait]
pub trait Admission: Send + Sync {
    /// The authenticated name of the client, or why it is refused.
    async fn admit(&self, metadata: &MetadataMap) -> Result<String, Status>;

    /// The same, with the properties that the server attached to the connection.
    async fn admit_over(&self, metadata: &MetadataMap, _connection: &Extensions) -> Result<String, Status> {
        self.admit(metadata).await
    }

    /// The resources that an admitted client may see.
    fn view(&self, _caller: &str) -> View {
        View::Everything
    }
}

/// Callback for a NACK: name of the client and its error message.
pub type Refusal = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// The discovery service.
pub struct Discovery {
    snapshots: watch::Receiver<Arc<Snapshots>>,
    admission: Arc<dyn Admission>,
    refusal: Refusal,
    remembered: Arc<AtomicUsize>,
}

impl Discovery {
    /// Serves the latest snapshots of the channel.
    pub fn new(
        snapshots: watch::Receiver<Arc<Snapshots>>,
        admission: Arc<dyn Admission>,
        refusal: Refusal,
    ) -> Self {
        Self {
            snapshots,
            admission,
            refusal,
            remembered: Arc::default(),
        }
    }

    /// As a gRPC service.
    pub fn into_service(self) -> Service {
        Service(Arc::new(self))
    }

    /// Admits the client and starts the session of its stream.
    async fn open(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<ReceiverStream<Result<Response, Status>>, Status> {
        let caller = self
            .admission
            .admit_over(request.metadata(), request.extensions())
            .await?;
        let (responses, outgoing) = mpsc::channel(2);
        let session = Session {
            view: self.admission.view(&caller),
            caller,
            snapshots: self.snapshots.clone(),
            refusal: Arc::clone(&self.refusal),
            remembered: Remembered {
                all: Arc::clone(&self.remembered),
                own: 0,
            },
            responses,
        };
        tokio::spawn(session.run(request.into_inner()));
        Ok(ReceiverStream::new(outgoing))
    }
}

/// A stream's share of the bytes that all streams together make the server remember.
struct Remembered {
    all: Arc<AtomicUsize>,
    own: usize,
}

impl Remembered {
    /// Changes the stream's share to `own` bytes; `false` if the total exceeds the limit.
    fn set(&mut self, own: usize) -> bool {
        let before = std::mem::replace(&mut self.own, own);
        if own <= before {
            self.all.fetch_sub(before - own, Ordering::Relaxed);
            return true;
        }
        let all = self.all.fetch_add(own - before, Ordering::Relaxed) + (own - before);
        all <= MAX_REMEMBERED_BYTES
    }
}

impl Drop for Remembered {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own, Ordering::Relaxed);
    }
}

struct Session {
    caller: String,
    view: View,
    snapshots: watch::Receiver<Arc<Snapshots>>,
    refusal: Refusal,
    remembered: Remembered,
    responses: mpsc::Sender<Result<Response, Status>>,
}

impl Session {
    /// Handles a request of the client; an error ends the stream.
    fn receive(&mut self, state: &mut delta::Server, request: DeltaDiscoveryRequest) -> Result<(), Status> {
        let refused = state
            .receive(request)
            .map_err(|error| Status::resource_exhausted(error.to_string()))?;
        if !self.remembered.set(state.remembered()) {
            return Err(Status::resource_exhausted(
                "clients name more resources than this control plane can remember",
            ));
        }
        if let Some(why) = refused {
            (self.refusal)(&self.caller, &why);
        }
        Ok(())
    }

    /// Runs until the stream, the client or the source of snapshots ends.
    async fn run(mut self, mut requests: Streaming<DeltaDiscoveryRequest>) {
        let mut state = delta::Server::with_view(std::mem::take(&mut self.view));
        loop {
            tokio::select! {
                request = requests.message() => match request {
                    Ok(Some(request)) => if let Err(status) = self.receive(&mut state, request) {
                        let _ = self.responses.send(Err(status)).await;
                        return;
                    },
                    Ok(None) => return,
                    // For example a request over the size limit. The send has no effect if the client is gone.
                    Err(status) => {
                        let _ = self.responses.send(Err(status)).await;
                        return;
                    }
                },
                changed = self.snapshots.changed() => if changed.is_err() {
                    return;
                },
                () = self.responses.closed() => return,
            }
            let now = Arc::clone(&self.snapshots.borrow_and_update());
            for (url, snapshot) in now.iter() {
                if let Some(response) = state.next(url, snapshot)
                    && self.responses.send(Ok(response)).await.is_err()
                {
                    return;
                }
            }
            self.remembered.set(state.remembered());
        }
    }
}
