//! Serves snapshots to many clients, each over its own [`delta::Server`].
//!
//! Snapshots come through a watch channel: a client that is slow skips the ones in between. One response per type is
//! in flight to a client, so memory does not grow with its slowness.

mod service;

pub use service::Service;

use crate::delta::{self, Response, Snapshot, View};
use crate::proto::discovery::DeltaDiscoveryRequest;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status, Streaming};

/// All types with their resources. Types are sent in the order of their URLs: policies before the workloads that
/// name them.
pub type Snapshots = BTreeMap<&'static str, Snapshot>;

/// Decides who may listen.
#[tonic::async_trait]
pub trait Admission: Send + Sync {
    /// The caller's name, or why it may not.
    async fn admit(&self, metadata: &MetadataMap) -> Result<String, Status>;

    /// What a caller that was admitted may have.
    fn view(&self, _caller: &str) -> View {
        View::Everything
    }
}

/// Told about a caller and what it refused.
pub type Refusal = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// The discovery service.
pub struct Discovery {
    snapshots: watch::Receiver<Arc<Snapshots>>,
    admission: Arc<dyn Admission>,
    refusal: Refusal,
}

impl Discovery {
    /// Serves what the channel holds.
    pub fn new(
        snapshots: watch::Receiver<Arc<Snapshots>>,
        admission: Arc<dyn Admission>,
        refusal: Refusal,
    ) -> Self {
        Self {
            snapshots,
            admission,
            refusal,
        }
    }

    /// As a gRPC service.
    pub fn into_service(self) -> Service {
        Service(Arc::new(self))
    }

    /// A stream of a caller that may listen.
    async fn open(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<ReceiverStream<Result<Response, Status>>, Status> {
        let caller = self.admission.admit(request.metadata()).await?;
        let (responses, outgoing) = mpsc::channel(2);
        let session = Session {
            view: self.admission.view(&caller),
            caller,
            snapshots: self.snapshots.clone(),
            refusal: Arc::clone(&self.refusal),
            responses,
        };
        tokio::spawn(session.run(request.into_inner()));
        Ok(ReceiverStream::new(outgoing))
    }
}

struct Session {
    caller: String,
    view: View,
    snapshots: watch::Receiver<Arc<Snapshots>>,
    refusal: Refusal,
    responses: mpsc::Sender<Result<Response, Status>>,
}

impl Session {
    /// Ends with the stream, with the client, or with the source of snapshots.
    async fn run(mut self, mut requests: Streaming<DeltaDiscoveryRequest>) {
        let mut state = delta::Server::with_view(std::mem::take(&mut self.view));
        loop {
            tokio::select! {
                request = requests.message() => match request {
                    Ok(Some(request)) => {
                        if let Some(why) = state.receive(request) {
                            (self.refusal)(&self.caller, &why);
                        }
                    }
                    Ok(None) | Err(_) => return,
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
        }
    }
}
