//! A control plane for Envoys: certificates, clusters and listeners, over TLS, for whoever shows the right token.

use super::protos;
use prost::Message as _;
use remora_mtls::{Authority, PrivateKey, SpiffeId, bootstrap_server};
use remora_net::Namespace;
use remora_xds::delta::{Snapshot, Versioned};
use remora_xds::proto::certificate::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use remora_xds::proto::certificate::{IstioCertificateRequest, IstioCertificateResponse};
use remora_xds::server::{Admission, Discovery, Snapshots};
use remora_xds::types::{CLUSTER, LISTENER};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

pub(crate) const TOKEN: &str = "web-secret";
pub(crate) const NAME: &str = "istiod.istio-system.svc";

/// What Envoy is to do: ports on which it listens, all for the application's 8080.
pub(crate) type Ports = Vec<u16>;

/// A running control plane. Gone, with all its connections, when this value is.
pub(crate) struct Plane {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Plane {
    pub(crate) fn start(
        namespace: &Namespace,
        at: SocketAddr,
        authority: &Arc<Authority>,
        ports: &Ports,
    ) -> Self {
        let (namespace, authority, snapshots) = (namespace.clone(), Arc::clone(authority), snapshots(ports));
        let (stop, stopped) = oneshot::channel();
        let (ready, listening) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            namespace.enter().unwrap();
            let listener = remora_net::socket::TcpOptions::default().listen(at).unwrap();
            listener.set_nonblocking(true).unwrap();
            // Everything ends with the runtime, connections included.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                ready.send(()).unwrap();
                tokio::select! {
                    () = serve(listener, authority, snapshots) => {}
                    _ = stopped => {}
                }
            });
        });
        listening.recv().unwrap();
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: tokio::net::TcpListener, authority: Arc<Authority>, snapshots: Snapshots) {
    let key = PrivateKey::generate().unwrap();
    let names = [NAME.to_owned()];
    let own = authority
        .issue_server(&key, &names, Duration::from_hours(1), SystemTime::now())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(bootstrap_server(&own.leaf, &key).unwrap()));
    let (ready, connections) = mpsc::channel(4);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, ready) = (acceptor.clone(), ready.clone());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    let _ = ready.send(Ok::<_, std::io::Error>(stream)).await;
                }
            });
        }
    });
    let (_keep, snapshots) = tokio::sync::watch::channel(Arc::new(snapshots));
    let discovery = Discovery::new(snapshots, Arc::new(Guard), Arc::new(|_, _| ()));
    tonic::transport::Server::builder()
        .add_service(discovery.into_service())
        .add_service(IstioCertificateServiceServer::new(Certificates(authority)))
        .serve_with_incoming(ReceiverStream::new(connections))
        .await
        .unwrap();
}

fn snapshots(ports: &Ports) -> Snapshots {
    let versioned = |name: String, bytes: Vec<u8>| {
        let resource = Versioned {
            version: format!("{}-{}", bytes.len(), name),
            bytes,
            aliases: Vec::new(),
        };
        (name, Arc::new(resource))
    };
    let clusters = [("app", 8080)]
        .map(|(name, port)| versioned(name.to_owned(), protos::cluster(name, port).encode_to_vec()));
    let listeners = ports.iter().map(|port| {
        let name = format!("inbound-{port}");
        let listener = protos::listener(&name, *port, "app");
        versioned(name, listener.encode_to_vec())
    });
    BTreeMap::from([
        (CLUSTER, Snapshot::new(clusters.into_iter().collect())),
        (LISTENER, Snapshot::new(listeners.collect())),
    ])
}

fn admit(metadata: &MetadataMap) -> Result<(), Status> {
    let shown = metadata
        .get("authorization")
        .and_then(|value| value.to_str().ok());
    if shown == Some(&format!("Bearer {TOKEN}")) {
        return Ok(());
    }
    Err(Status::unauthenticated("the token is not known"))
}

struct Guard;

#[tonic::async_trait]
impl Admission for Guard {
    async fn admit(&self, metadata: &MetadataMap) -> Result<String, Status> {
        admit(metadata).map(|()| "web".to_owned())
    }
}

struct Certificates(Arc<Authority>);

#[tonic::async_trait]
impl IstioCertificateService for Certificates {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        admit(request.metadata())?;
        let request = request.into_inner();
        let id = SpiffeId::of_service_account("cluster.local", "shop", "web").unwrap();
        let life = Duration::from_secs(request.validity_duration.unsigned_abs());
        let issued = self
            .0
            .issue(&request.csr, &id, life, SystemTime::now())
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Response::new(IstioCertificateResponse {
            cert_chain: vec![issued.leaf, self.0.roots()],
        }))
    }
}
