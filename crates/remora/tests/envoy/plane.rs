//! A control plane for Envoys: certificates, clusters and listeners, over TLS, for whoever shows the right token.

use crate::protos;
use prost::Message as _;
use remora_mtls::{Authority, PrivateKey, SpiffeId, bootstrap_server};
use remora_net::Namespace;
use remora_xds::delta::{Audience, Snapshot, Versioned};
use remora_xds::proto::certificate::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use remora_xds::proto::certificate::{IstioCertificateRequest, IstioCertificateResponse};
use remora_xds::proto::discovery::{DiscoveryRequest, DiscoveryResponse};
use remora_xds::raw::{Protocol, Streams};
use remora_xds::server::{Admission, Discovery, Snapshots};
use remora_xds::types::{ADDRESS, AUTHORIZATION, CLUSTER, LISTENER};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
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

/// Resources besides Envoy's, one of a type.
pub(crate) type More = Vec<(&'static str, Vec<u8>)>;

/// Requests as they came: their type, and what was wrong if something was.
pub(crate) type Heard = Arc<Mutex<Vec<(String, Option<String>)>>>;

/// A running control plane. Gone, with all its connections, when this value is.
pub(crate) struct Plane {
    /// What it was asked for, if it speaks of the state of the world.
    pub(crate) heard: Heard,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Plane {
    pub(crate) fn start(
        namespace: &Namespace,
        at: SocketAddr,
        authority: &Arc<Authority>,
        speaks: Protocol,
        ports: &Ports,
        more: More,
    ) -> Self {
        let (namespace, authority) = (namespace.clone(), Arc::clone(authority));
        let mut snapshots = snapshots(ports);
        for (type_url, bytes) in more {
            let resources = [versioned("only".to_owned(), bytes)];
            snapshots.insert(type_url, Snapshot::new(resources));
        }
        let heard = Heard::default();
        let hearing = Arc::clone(&heard);
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
                    () = serve(listener, authority, speaks, snapshots, hearing) => {}
                    _ = stopped => {}
                }
            });
        });
        listening.recv().unwrap();
        Self {
            heard,
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

async fn serve(
    listener: tokio::net::TcpListener,
    authority: Arc<Authority>,
    speaks: Protocol,
    snapshots: Snapshots,
    heard: Heard,
) {
    let key = PrivateKey::generate().unwrap();
    let names = [NAME.to_owned()];
    let own = authority
        .issue_server(&key, &names, Duration::from_hours(1), SystemTime::now())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(bootstrap_server(&own.leaf, &key).unwrap()));
    let (ready, connections) = mpsc::channel(4);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            let (acceptor, ready) = (acceptor.clone(), ready.clone());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    let _ = ready.send(Ok::<_, std::io::Error>(stream)).await;
                }
            });
        }
    });
    let connections = ReceiverStream::new(connections);
    let certificates = IstioCertificateServiceServer::new(Certificates(authority));
    let server = tonic::transport::Server::builder().add_service(certificates);
    match speaks {
        Protocol::Delta => {
            let (_keep, snapshots) = tokio::sync::watch::channel(Arc::new(snapshots));
            let discovery = Discovery::new(snapshots, Arc::new(Guard), Arc::new(|_, _| ()));
            server
                .add_service(discovery.into_service())
                .serve_with_incoming(connections)
                .await
                .unwrap();
        }
        Protocol::Sotw => server
            .add_service(world(snapshots, heard))
            .serve_with_incoming(connections)
            .await
            .unwrap(),
    }
}

/// Everything of a type, whenever it is asked for anew.
fn world(snapshots: Snapshots, heard: Heard) -> Streams {
    let snapshots = Arc::new(snapshots);
    Streams::new(Arc::new(move |protocol, request| {
        assert_eq!(protocol, Protocol::Sotw, "Envoy was told to speak this one");
        let (say, responses) = mpsc::channel(4);
        let (snapshots, heard) = (Arc::clone(&snapshots), Arc::clone(&heard));
        tokio::spawn(async move {
            let mut requests = request.into_inner();
            let mut nonces = 0;
            while let Ok(Some(message)) = requests.message().await {
                let request = DiscoveryRequest::decode(message).unwrap();
                let wrong = request.error_detail.as_ref().map(|status| status.message.clone());
                heard.lock().unwrap().push((request.type_url.clone(), wrong));
                let Some(now) = snapshots.get(request.type_url.as_str()) else {
                    continue;
                };
                // With a nonce it is an answer, and nothing changes here.
                if !request.response_nonce.is_empty() {
                    continue;
                }
                nonces += 1;
                let resources = now.iter().map(|resource| prost_types::Any {
                    type_url: request.type_url.clone(),
                    value: resource.bytes().to_vec(),
                });
                let response = DiscoveryResponse {
                    version_info: now.len().to_string(),
                    resources: resources.collect(),
                    type_url: request.type_url.clone(),
                    nonce: nonces.to_string(),
                };
                if say.send(Ok(response.encode_to_vec().into())).await.is_err() {
                    return;
                }
            }
        });
        responses
    }))
}

fn versioned(name: String, bytes: Vec<u8>) -> (String, Versioned) {
    let resource = Versioned {
        version: format!("{}-{}", bytes.len(), name),
        bytes,
        aliases: Vec::new(),
        audience: Audience::Everyone,
    };
    (name, resource)
}

fn snapshots(ports: &Ports) -> Snapshots {
    let clusters = [("app", 8080)]
        .map(|(name, port)| versioned(name.to_owned(), protos::cluster(name, port).encode_to_vec()));
    let listeners = ports.iter().map(|port| {
        let name = format!("inbound-{port}");
        let listener = protos::listener(&name, *port, "app");
        versioned(name, listener.encode_to_vec())
    });
    BTreeMap::from([
        (CLUSTER, Snapshot::new(clusters)),
        (LISTENER, Snapshot::new(listeners)),
        // For the built-in proxy there is nothing to know.
        (ADDRESS, Snapshot::default()),
        (AUTHORIZATION, Snapshot::default()),
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
