//! Discovery, carried to a control plane that comes and goes.

use crate::{channel, soon};
use remora_agent::xds_proxy::{Event, Health, Own, XdsProxy};
use remora_xds::client::{Bytes, ControlPlane};
use remora_xds::delta::{Audience, Snapshot, Versioned};
use remora_xds::proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use remora_xds::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node};
use remora_xds::server::{Admission, Discovery, Snapshots};
use remora_xds::types::{CLUSTER, LISTENER, NAME_TABLE};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

/// A control plane on loopback. Stopped on drop.
struct Plane {
    snapshots: watch::Sender<Arc<Snapshots>>,
    _stop: oneshot::Sender<()>,
    tokens: Arc<Mutex<Vec<String>>>,
}

impl Plane {
    fn start(at: SocketAddr, resources: &[(&'static str, &str, &str)]) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(at).unwrap();
        let listener = socket.listen(16).unwrap();
        let snapshots = watch::channel(Arc::new(snapshots(resources))).0;
        let tokens: Arc<Mutex<Vec<String>>> = Arc::default();
        let admit = Arc::new(Admit(Arc::clone(&tokens)));
        let service = Discovery::new(snapshots.subscribe(), admit, Arc::new(|_, _| ()));
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let server = tonic::transport::Server::builder()
                .add_service(service.into_service())
                .serve_with_incoming(TcpListenerStream::new(listener));
            tokio::select! {
                _ = server => {}
                _ = stopped => {}
            }
        });
        Self {
            snapshots,
            _stop: stop,
            tokens,
        }
    }

    fn publish(&self, resources: &[(&'static str, &str, &str)]) {
        self.snapshots.send_replace(Arc::new(snapshots(resources)));
    }
}

/// Admits every client that sends a token, and records the token.
struct Admit(Arc<Mutex<Vec<String>>>);

#[tonic::async_trait]
impl Admission for Admit {
    async fn admit(&self, metadata: &MetadataMap) -> Result<String, Status> {
        let header = |name: &str| metadata.get(name).and_then(|value| value.to_str().ok());
        let token = header("authorization").ok_or_else(|| Status::unauthenticated("no token"))?;
        let line = format!("{token} {}", header("clusterid").unwrap_or_default());
        self.0.lock().unwrap().push(line);
        Ok("proxy".to_owned())
    }
}

/// Resources by type, name and version; the version is the content, too.
fn snapshots(resources: &[(&'static str, &str, &str)]) -> Snapshots {
    let mut types: BTreeMap<&'static str, BTreeMap<String, Versioned>> = BTreeMap::new();
    for url in [CLUSTER, LISTENER, NAME_TABLE] {
        types.entry(url).or_default();
    }
    for (url, name, version) in resources {
        let versioned = Versioned {
            version: (*version).to_owned(),
            bytes: version.as_bytes().to_vec(),
            aliases: Vec::new(),
            audience: Audience::Everyone,
        };
        types
            .entry(url)
            .or_default()
            .insert((*name).to_owned(), versioned);
    }
    types
        .into_iter()
        .map(|(url, map)| (url, Snapshot::new(map)))
        .collect()
}

struct Scene {
    _directory: TempDir,
    events: mpsc::UnboundedReceiver<String>,
    envoy: AggregatedDiscoveryServiceClient<tonic::transport::Channel>,
    token: Arc<Mutex<String>>,
    names: Arc<Mutex<Vec<String>>>,
    health: watch::Sender<Option<Health>>,
}

fn short(event: &Event) -> Option<String> {
    Some(match event {
        Event::Connected => "connected".to_owned(),
        Event::Disconnected(_) => "disconnected".to_owned(),
        Event::Accepted { type_url } => format!("accepted {}", type_url.rsplit('.').next()?),
        Event::Refused { type_url, why } => format!("refused {}: {why}", type_url.rsplit('.').next()?),
        Event::NotUnderstood { why, .. } => format!("not understood: {why}"),
        Event::Opened(_) | Event::Closed => return None,
    })
}

impl Scene {
    fn new(plane: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("XDS");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let token = Arc::new(Mutex::new("first".to_owned()));
        let (say, events) = mpsc::unbounded_channel();
        let (names, shown) = (Arc::<Mutex<Vec<String>>>::default(), Arc::clone(&token));
        let table = Arc::clone(&names);
        let health = watch::Sender::new(None);
        let mut headers = MetadataMap::new();
        headers.insert("clusterid", "Kubernetes".parse().unwrap());
        let proxy = XdsProxy {
            control_plane: ControlPlane::new(
                format!("http://{plane}").parse().unwrap(),
                Arc::new(move || {
                    Box::pin(async move {
                        let stream = tokio::net::TcpStream::connect(plane).await?;
                        Ok(Box::new(stream) as Box<dyn Bytes>)
                    })
                }),
                Arc::new(move || Ok(Some(shown.lock().unwrap().clone()))),
            )
            .with_headers(headers),
            own: vec![Own {
                type_url: NAME_TABLE.to_owned(),
                apply: Arc::new(move |bytes| {
                    let text = String::from_utf8_lossy(bytes).into_owned();
                    if text == "broken" {
                        return Err("not a table".to_owned());
                    }
                    table.lock().unwrap().push(text);
                    Ok(())
                }),
            }],
            health: health.subscribe(),
            last_good: None,
            tell: Arc::new(move |event| drop(short(&event).map(|text| say.send(text)))),
        };
        tokio::spawn(proxy.serve(listener, std::future::pending()));
        Self {
            envoy: AggregatedDiscoveryServiceClient::new(channel(&path)),
            _directory: directory,
            events,
            token,
            names,
            health,
        }
    }

    async fn stream(&mut self) -> Stream {
        let (requests, outgoing) = mpsc::channel(16);
        let mut opening = wish(CLUSTER);
        opening.node = Some(Node {
            id: "sidecar~10.1.0.2~web-0.shop~shop.svc.cluster.local".to_owned(),
            ..Node::default()
        });
        requests.send(opening).await.unwrap();
        requests.send(wish(LISTENER)).await.unwrap();
        let opened = self
            .envoy
            .delta_aggregated_resources(ReceiverStream::new(outgoing));
        Stream {
            responses: soon(opened).await.unwrap().into_inner(),
            requests,
        }
    }

    /// Waits for an event; others before it do not matter.
    async fn happens(&mut self, wanted: &str) {
        loop {
            let event = soon(self.events.recv()).await.unwrap();
            if event == wanted {
                return;
            }
        }
    }
}

fn wish(type_url: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: type_url.to_owned(),
        ..DeltaDiscoveryRequest::default()
    }
}

struct Stream {
    responses: Streaming<DeltaDiscoveryResponse>,
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
}

impl Stream {
    async fn next(&mut self) -> DeltaDiscoveryResponse {
        soon(self.responses.message()).await.unwrap().unwrap()
    }

    /// The next response, answered: names with versions.
    async fn take(&mut self, refusal: Option<&str>) -> (String, Vec<String>, Vec<String>) {
        let response = self.next().await;
        let mut answer = wish(&response.type_url);
        answer.response_nonce = response.nonce;
        answer.error_detail = refusal.map(|why| remora_xds::proto::discovery::Status {
            code: 13,
            message: why.to_owned(),
        });
        self.requests.send(answer).await.unwrap();
        let named = response.resources.iter();
        let named = named.map(|resource| format!("{}={}", resource.name, resource.version));
        (response.type_url, named.collect(), response.removed_resources)
    }
}

async fn free_port() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test]
async fn a_stream_outlives_the_control_plane_and_gets_only_what_changed() {
    let at = free_port().await;
    let mut scene = Scene::new(at);
    // Before there is a control plane at all.
    let mut stream = scene.stream().await;
    scene.happens("disconnected").await;
    let plane = Plane::start(
        at,
        &[(CLUSTER, "a", "1"), (CLUSTER, "b", "1"), (LISTENER, "l", "1")],
    );
    let took = stream.take(None).await;
    assert_eq!(
        took,
        (
            CLUSTER.to_owned(),
            vec!["a=1".to_owned(), "b=1".to_owned()],
            vec![]
        )
    );
    scene.happens("accepted Cluster").await;
    assert_eq!(stream.take(None).await.0, LISTENER);
    scene.happens("accepted Listener").await;
    drop(plane);
    scene.happens("disconnected").await;
    *scene.token.lock().unwrap() = "second".to_owned();
    // It comes back with one cluster changed and one gone.
    let plane = Plane::start(at, &[(CLUSTER, "a", "2"), (LISTENER, "l", "1")]);
    let took = stream.take(None).await;
    assert_eq!(
        took,
        (CLUSTER.to_owned(), vec!["a=2".to_owned()], vec!["b".to_owned()])
    );
    scene.happens("accepted Cluster").await;
    assert_eq!(
        *plane.tokens.lock().unwrap(),
        ["Bearer second Kubernetes"],
        "the token is read for every connection"
    );
    // And goes on as if nothing had been.
    plane.publish(&[(CLUSTER, "a", "3"), (LISTENER, "l", "1")]);
    loop {
        let (url, named, _) = stream.take(None).await;
        if url == CLUSTER {
            assert_eq!(named, ["a=3"]);
            break;
        }
        assert!(named.is_empty(), "an answer to the repeated wish: {named:?}");
    }
}

#[tokio::test]
async fn what_envoy_refuses_is_told() {
    let at = free_port().await;
    let _plane = Plane::start(at, &[(CLUSTER, "a", "1")]);
    let mut scene = Scene::new(at);
    let mut stream = scene.stream().await;
    stream.take(Some("unknown filter")).await;
    scene.happens("refused Cluster: unknown filter").await;
}

#[tokio::test]
async fn the_agents_own_types_come_on_the_same_stream_and_stay_here() {
    let at = free_port().await;
    let plane = Plane::start(at, &[(LISTENER, "l", "1"), (NAME_TABLE, "t", "one")]);
    let mut scene = Scene::new(at);
    let mut stream = scene.stream().await;
    assert_eq!(stream.take(None).await.0, CLUSTER);
    assert_eq!(stream.take(None).await.0, LISTENER);
    plane.publish(&[(LISTENER, "l", "2"), (NAME_TABLE, "t", "broken")]);
    assert_eq!(
        stream.take(None).await.1,
        ["l=2"],
        "Envoy sees nothing of the table"
    );
    scene.happens("not understood: not a table").await;
    assert_eq!(*scene.names.lock().unwrap(), ["one"]);
}

#[tokio::test]
async fn a_newer_stream_takes_over() {
    let at = free_port().await;
    let _plane = Plane::start(at, &[(CLUSTER, "a", "1")]);
    let mut scene = Scene::new(at);
    let mut old = scene.stream().await;
    old.take(None).await;
    let mut new = scene.stream().await;
    assert_eq!(new.take(None).await.1, ["a=1"]);
    let ended = loop {
        match soon(old.responses.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => break "ended".to_owned(),
            Err(status) => break status.message().to_owned(),
        }
    };
    assert!(ended == "ended" || ended.contains("newer"), "{ended}");
}

/// A control plane that only records the requests it receives.
#[tokio::test]
async fn health_is_told_after_the_first_listeners_and_again_on_a_new_connection() {
    use remora_xds::Message as _;
    use remora_xds::raw::Streams;
    let at = free_port().await;
    let mut scene = Scene::new(at);
    scene
        .health
        .send_replace(Some(Health::Unhealthy("starting".to_owned())));
    let _stream = scene.stream().await;
    for connection in 0..2 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(at).unwrap();
        let listener = socket.listen(16).unwrap();
        let (say, mut heard) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(());
        let ends = stopped.clone();
        let service = Streams::new(Arc::new(move |_, request| {
            let (say, mut ends) = (say.clone(), ends.clone());
            let (keep, responses) = mpsc::channel(1);
            tokio::spawn(async move {
                let mut requests: Streaming<bytes::Bytes> = request.into_inner();
                let listen = async {
                    while let Ok(Some(message)) = requests.message().await {
                        drop(say.send(DeltaDiscoveryRequest::decode(message).unwrap()));
                    }
                };
                tokio::select! {
                    () = listen => {}
                    _ = ends.changed() => {}
                }
                drop(keep);
            });
            responses
        }));
        let server = tokio::spawn(async move {
            let mut stopped = stopped;
            let server = tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener));
            tokio::select! {
                _ = server => {}
                _ = stopped.changed() => {}
            }
        });
        let mut said = Vec::new();
        loop {
            let request = soon(heard.recv()).await.unwrap();
            let kind = request.type_url.rsplit('.').next().unwrap().to_owned();
            let error = request.error_detail.map(|status| status.message);
            let last = kind == "HealthInformation";
            said.push((kind, error));
            if last {
                break;
            }
        }
        let expected = |kind: &str, error: Option<&str>| (kind.to_owned(), error.map(str::to_owned));
        let why = (connection == 0).then_some("starting");
        assert_eq!(
            said,
            [
                expected("Cluster", None),
                expected("Listener", None),
                expected("NameTable", None),
                expected("HealthInformation", why),
            ]
        );
        scene.health.send_replace(Some(Health::Healthy));
        let changed = soon(heard.recv()).await.unwrap();
        if connection == 0 {
            assert_eq!(changed.error_detail, None, "only changes are told");
        }
        drop(stop);
        server.await.unwrap();
    }
}
