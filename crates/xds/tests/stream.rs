//! Client and server over a real connection: first answer, changes, refusals, loss of the stream, admission.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use prost_types::Any;
use remora_xds::Message as _;
use remora_xds::client::{Bytes, ClientError, ControlPlane, Event, LARGEST_MESSAGE};
use remora_xds::delta::{Audience, Change, Client, Interest, Snapshot, Versioned};
use remora_xds::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Resource};
use remora_xds::proto::workload::{Address, Port, PortList, Workload, address};
use remora_xds::server::{Admission, Discovery, Snapshots};
use remora_xds::types::ADDRESS;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Status;
use tonic::metadata::MetadataMap;

/// Far longer than any step takes, also on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_mins(1);

fn snapshots(content: &[(&str, u8)]) -> Arc<Snapshots> {
    let resources = content.iter().map(|(name, byte)| {
        let resource = Versioned {
            version: byte.to_string(),
            bytes: vec![*byte],
            aliases: Vec::new(),
            audience: Audience::Everyone,
        };
        ((*name).to_owned(), resource)
    });
    let snapshot = Snapshot::new(resources);
    Arc::new(BTreeMap::from([(ADDRESS, snapshot)]))
}

struct Plane {
    refusals: mpsc::UnboundedReceiver<String>,
    thread: std::thread::JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Plane {
    /// Breaks every connection, as a killed process does.
    fn kill(self) {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

/// Admits clients that send the token.
struct Secret;

#[tonic::async_trait]
impl Admission for Secret {
    async fn admit(&self, metadata: &MetadataMap) -> Result<String, Status> {
        match metadata.get("authorization") {
            Some(value) if value == "Bearer secret" => Ok("tester".to_owned()),
            _ => Err(Status::unauthenticated("who are you")),
        }
    }
}

/// Runs in a separate runtime; dropping it closes all its connections.
fn serve(listener: std::net::TcpListener, source: watch::Receiver<Arc<Snapshots>>) -> Plane {
    let (refused, refusals) = mpsc::unbounded_channel();
    let discovery = Discovery::new(
        source,
        Arc::new(Secret),
        Arc::new(move |caller, why| {
            let _ = refused.send(format!("{caller}: {why}"));
        }),
    );
    let server = tonic::transport::Server::builder().add_service(discovery.into_service());
    let (stop, stopped) = oneshot::channel();
    listener.set_nonblocking(true).unwrap();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let incoming = TcpListenerStream::new(TcpListener::from_std(listener).unwrap());
            tokio::select! {
                _ = server.serve_with_incoming(incoming) => {}
                _ = stopped => {}
            }
        });
    });
    Plane {
        refusals,
        thread,
        stop,
    }
}

fn control_plane(address: SocketAddr, token: &'static str) -> ControlPlane {
    ControlPlane::new(
        "http://control.test".parse().unwrap(),
        Arc::new(move || {
            Box::pin(async move { Ok(Box::new(TcpStream::connect(address).await?) as Box<dyn Bytes>) })
        }),
        Arc::new(move || Ok(Some(token.to_owned()))),
    )
}

/// Applied changes and events of a client that refuses the byte 13.
fn follow(plane: ControlPlane) -> (mpsc::UnboundedReceiver<Change>, mpsc::UnboundedReceiver<Event>) {
    let (applied, changes) = mpsc::unbounded_channel();
    let (noticed, events) = mpsc::unbounded_channel();
    let mut state = Client::new(Node::default());
    state.want(ADDRESS, Interest::Everything);
    let (_, demands) = mpsc::channel(1);
    tokio::spawn(async move {
        let apply = move |received: &remora_xds::delta::Received| {
            let mut refused = Vec::new();
            for change in &received.changes {
                match change {
                    Change::Update { name, bytes } if bytes == &[13] => {
                        refused.push((name.clone(), "unlucky".to_owned()));
                    }
                    other => drop(applied.send(other.clone())),
                }
            }
            refused
        };
        let notice = move |event| drop(noticed.send(event));
        plane.follow(state, apply, demands, notice).await
    });
    (changes, events)
}

async fn soon<T>(channel: &mut mpsc::UnboundedReceiver<T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, channel.recv())
        .await
        .unwrap()
        .unwrap()
}

fn update(name: &str, byte: u8) -> Change {
    Change::Update {
        name: name.to_owned(),
        bytes: vec![byte],
    }
}

#[tokio::test]
async fn changes_arrive_once_and_survive_a_restart_of_the_server() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (publish, source) = watch::channel(snapshots(&[("a", 1), ("b", 2)]));
    let mut plane = serve(listener, source.clone());
    let (mut changes, mut events) = follow(control_plane(address, "secret"));
    assert_eq!(soon(&mut changes).await, update("a", 1));
    assert_eq!(soon(&mut changes).await, update("b", 2));
    assert!(matches!(soon(&mut events).await, Event::Connected));
    assert!(matches!(soon(&mut events).await, Event::InSync));
    publish.send(snapshots(&[("a", 1), ("b", 13), ("c", 3)])).unwrap();
    assert_eq!(
        soon(&mut changes).await,
        update("c", 3),
        "a did not change, b is refused"
    );
    assert!(matches!(soon(&mut events).await, Event::Refused(_)));
    assert_eq!(soon(&mut plane.refusals).await, "tester: b: unlucky");
    // The control plane goes away, the mesh changes, it comes back at the same address.
    plane.kill();
    publish.send(snapshots(&[("a", 1), ("b", 4)])).unwrap();
    assert!(matches!(soon(&mut events).await, Event::Disconnected(_)));
    let listener = std::net::TcpListener::bind(address).unwrap();
    let _plane = serve(listener, source);
    assert_eq!(soon(&mut changes).await, update("b", 4), "a is known already");
    let gone = Change::Remove { name: "c".to_owned() };
    assert_eq!(soon(&mut changes).await, gone);
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_said() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (_publish, source) = watch::channel(snapshots(&[("a", 1)]));
    let _plane = serve(listener, source);
    let (_changes, mut events) = follow(control_plane(address, "guess"));
    let event = soon(&mut events).await;
    let Event::Disconnected(error) = event else {
        unreachable!("{event:?}")
    };
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("who are you"), "{cause}");
}

#[tokio::test]
async fn a_message_beyond_the_limit_is_refused_and_said() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let names: Vec<String> = (0..100).map(|i| format!("workload-{i}")).collect();
    let content: Vec<(&str, u8)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let (_publish, source) = watch::channel(snapshots(&content));
    let _plane = serve(listener, source);
    let small = control_plane(address, "secret").with_largest_message(1024);
    let (mut changes, mut events) = follow(small);
    // The client retries, and reports the reason each time.
    for _ in 0..2 {
        assert!(matches!(soon(&mut events).await, Event::Connected));
        let event = soon(&mut events).await;
        assert!(
            matches!(event, Event::Disconnected(ClientError::TooLarge(_))),
            "{event:?}"
        );
        let Event::Disconnected(error) = event else {
            continue;
        };
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("the limit is: 1024 bytes"), "{cause}");
        assert!(
            error.to_string().contains("REMORA_XDS_MAX_MESSAGE_BYTES"),
            "{error}"
        );
    }
    assert!(changes.try_recv().is_err(), "nothing of it is applied");
    // With room for it the same mesh arrives.
    let (mut changes, _events) = follow(control_plane(address, "secret"));
    assert!(matches!(soon(&mut changes).await, Change::Update { .. }));
}

/// One workload as an Istio control plane describes it, with names of the usual lengths.
fn workload() -> Workload {
    let service = "shop-production/reviews-service.shop-production.svc.cluster.local".to_owned();
    let ports = [80, 443, 9090].map(|port| Port {
        service_port: port,
        target_port: 8000 + port,
        ..Port::default()
    });
    Workload {
        uid: "Kubernetes//Pod/shop-production/reviews-service-v1-6f7b9c8d5-abcde".to_owned(),
        name: "reviews-service-v1-6f7b9c8d5-abcde".to_owned(),
        namespace: "shop-production".to_owned(),
        addresses: vec![vec![10, 0, 0, 1]],
        network: "network-1".to_owned(),
        trust_domain: "mesh.example.com".to_owned(),
        service_account: "reviews-service".to_owned(),
        node: "ip-10-0-123-45.eu-central-1.compute.internal".to_owned(),
        canonical_name: "reviews-service".to_owned(),
        canonical_revision: "v1".to_owned(),
        workload_name: "reviews-service-v1".to_owned(),
        cluster_id: "Kubernetes".to_owned(),
        services: [(service, PortList { ports: ports.into() })].into(),
        ..Workload::default()
    }
}

#[test]
fn a_mesh_of_100_000_workloads_fits_a_message() {
    let address = Address {
        r#type: Some(address::Type::Workload(workload())),
    };
    let resource = Resource {
        name: workload().uid,
        version: "0123456789abcdef".to_owned(),
        resource: Some(Any {
            type_url: ADDRESS.to_owned(),
            value: address.encode_to_vec(),
        }),
        ..Resource::default()
    };
    let size = resource.encoded_len() * 100_000;
    assert!(size < LARGEST_MESSAGE, "{size} bytes");
    // Neither is the limit far beyond what is needed.
    assert!(size > LARGEST_MESSAGE / 4, "{size} bytes");
}

/// A raw client, which can send requests that a well-behaved client never sends.
async fn say(address: SocketAddr, requests: Vec<DeltaDiscoveryRequest>) -> Status {
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let mut request = tonic::Request::new(tokio_stream::iter(requests));
    let token = "Bearer secret".parse().unwrap();
    request.metadata_mut().insert("authorization", token);
    let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
    let codec = tonic_prost::ProstCodec::<DeltaDiscoveryRequest, DeltaDiscoveryResponse>::default();
    let answer = grpc.streaming(request, path.parse().unwrap(), codec).await;
    let mut responses = match answer {
        Ok(answer) => answer.into_inner(),
        Err(status) => return status,
    };
    loop {
        match responses.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return Status::ok("the stream ended"),
            Err(status) => return status,
        }
    }
}

fn named(count: usize, of: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: ADDRESS.to_owned(),
        resource_names_subscribe: (0..count).map(|n| format!("{of}{n}")).collect(),
        ..DeltaDiscoveryRequest::default()
    }
}

/// One message of 62 MB used to cost 1.2 GB of memory and to block all clients for ten seconds.
#[tokio::test]
async fn a_client_that_names_millions_of_resources_is_refused_and_others_are_served() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (publish, source) = watch::channel(snapshots(&[("a", 1)]));
    let _plane = serve(listener, source);
    let (mut changes, _events) = follow(control_plane(address, "secret"));
    assert_eq!(soon(&mut changes).await, update("a", 1));
    let long = say(address, vec![named(4_500_000, "resource-")]).await;
    assert_eq!(long.code(), tonic::Code::OutOfRange, "{long:?}");
    let parts = (0..100).map(|n| named(1000, &format!("{n}-"))).collect();
    let many = say(address, parts).await;
    assert_eq!(many.code(), tonic::Code::ResourceExhausted, "{many:?}");
    assert!(many.message().contains("10000 resources"), "{many:?}");
    publish.send(snapshots(&[("a", 2)])).unwrap();
    assert_eq!(soon(&mut changes).await, update("a", 2));
}
