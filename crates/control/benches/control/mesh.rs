//! A cluster of many pods, its proxies, and one change.

use crate::measure::{cpu, memory, millis, task};
use remora_control::kubernetes::{Kind, World};
use remora_control::mesh::amend;
use remora_control::plane::{Plane, Settings};
use remora_control::token::{Authenticator, Unidentified};
use remora_mtls::{Authority, Roots, SpiffeId, bootstrap_client};
use remora_xds::client::{Bytes, ControlPlane};
use remora_xds::delta::{Client, Interest, Received, Server, Snapshot};
use remora_xds::proto::discovery::{DeltaDiscoveryRequest, Node};
use remora_xds::server::Snapshots;
use remora_xds::types::{ADDRESS, AUTHORIZATION};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;

pub(crate) const HEAD: &str = "# Control plane\n\n\
    Pods with sidecars in 100 namespaces, a service for every ten. Reading them is from JSON to encoded resources. A proxy \
    over TLS and gRPC is in sync when it has decoded everything; 1,000 simulated ones are the streams of the server without \
    transport, and one pod's readiness is then changed. Memory is the growth of the process, what reading needed \
    and gave back included.\n\n\
    | workloads | read | memory each | one proxy in sync | 1,000 proxies' first configuration, CPU each | memory each proxy \
    | one change: bytes for a proxy | CPU for 1,000 proxies |\n|---|---|---|---|---|---|---|---|\n";

const PROXIES: usize = 1_000;
const NAMESPACES: usize = 100;

fn pod(number: usize, ready: bool) -> Value {
    let (space, app) = (number % NAMESPACES, number / 10 / NAMESPACES);
    let [a, b, c] = [number >> 16 & 255, number >> 8 & 255, number & 255];
    let address = format!("10.{a}.{b}.{c}");
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("app-{app}-6f7d8b9c4-{number:05x}"), "generateName": format!("app-{app}-6f7d8b9c4-"), "namespace": format!("space-{space}"),
            "labels": {"app": format!("app-{app}"), "version": "v1", "pod-template-hash": "6f7d8b9c4",
                "security.istio.io/tlsMode": "istio", "service.istio.io/canonical-name": format!("app-{app}"),
                "service.istio.io/canonical-revision": "v1"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": true,
                "name": format!("app-{app}-6f7d8b9c4"), "uid": "u"}]},
        "spec": {"nodeName": format!("node-{}", number % 500), "serviceAccountName": format!("app-{app}"),
            "initContainers": [{"name": "istio-proxy", "image": "registry.example/mesh/remora:1.0", "restartPolicy": "Always"}],
            "containers": [{"name": "app", "image": "app:1", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}})
}

fn service(space: usize, app: usize) -> Value {
    json!({"metadata": {"name": format!("app-{app}"), "namespace": format!("space-{space}")},
        "spec": {"clusterIPs": [format!("172.{}.{}.{}", 16 + (app >> 8), app & 255, space)], "selector": {"app": format!("app-{app}")},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}})
}

struct Anybody;

#[tonic::async_trait]
impl Authenticator for Anybody {
    async fn identify(&self, _: &str) -> Result<SpiffeId, Unidentified> {
        Ok("spiffe://td/ns/space-0/sa/app-0".parse().unwrap())
    }
}

fn plane() -> (Plane, String) {
    let authority = Authority::generate("bench", SystemTime::now(), Duration::from_hours(9)).unwrap();
    let root = authority.to_pem().0;
    let settings = Settings {
        trust_domain: "cluster.local".to_owned(),
        server_names: vec!["istiod".to_owned()],
        certificate_life: Duration::from_hours(1),
        longest_certificate_life: Duration::from_hours(2),
    };
    (
        Plane::new(authority, Arc::new(Anybody), settings, |_| ()).unwrap(),
        root,
    )
}

pub(crate) fn measure(workloads: usize) -> String {
    // What every size needs once, the program's own pages above all, is no workload's.
    drop(amend(&Snapshots::new(), cluster(10).changes(), "cluster.local"));
    let (plane, root) = plane();
    let empty = memory();
    let began = Instant::now();
    let mut world = cluster(workloads);
    plane.amend(world.changes());
    let read = began.elapsed();
    let each = (memory() - empty) / workloads as f64;
    let synced = in_sync(Arc::new(plane), &root, workloads);
    drop(world);
    let simulated = simulate(cluster(workloads), workloads);
    format!(
        "| {workloads} | {} | {each:.0} bytes | {} | {simulated}\n",
        millis(read),
        millis(synced)
    )
}

/// From the start of a connection to the last workload, over TLS and gRPC.
fn in_sync(plane: Arc<Plane>, root: &str, workloads: usize) -> Duration {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let config = Arc::new(bootstrap_client(&Roots::from_pem(root).unwrap()).unwrap());
    runtime.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { plane.serve(listener, std::future::pending()).await });
        let mut times = Vec::new();
        for _ in 0..5 {
            times.push(first_configuration(address, &config, workloads).await);
        }
        times.sort();
        times[times.len() / 2]
    })
}

async fn first_configuration(
    address: std::net::SocketAddr,
    config: &Arc<rustls::ClientConfig>,
    workloads: usize,
) -> Duration {
    let began = Instant::now();
    let config = Arc::clone(config);
    let client = ControlPlane::new(
        "http://istiod:15012".parse().unwrap(),
        Arc::new(move || {
            let connector = TlsConnector::from(Arc::clone(&config));
            Box::pin(async move {
                let stream = TcpStream::connect(address).await?;
                let stream = connector.connect("istiod".try_into().unwrap(), stream).await?;
                Ok(Box::new(stream) as Box<dyn Bytes>)
            })
        }),
        Arc::new(|| Ok(Some("token".to_owned()))),
    );
    let mut state = Client::new(Node::default());
    state.want(ADDRESS, Interest::Everything);
    state.want(AUTHORIZATION, Interest::Everything);
    let (tell, mut told) = mpsc::unbounded_channel();
    let following = tokio::spawn(async move {
        let (_open, demands) = mpsc::channel(1);
        let apply = move |received: &Received| {
            let _ = tell.send(received.changes.len());
            Vec::new()
        };
        client.follow(state, apply, demands, |_| ()).await
    });
    let mut seen = 0;
    while seen < workloads {
        seen += told.recv().await.unwrap();
    }
    following.abort();
    began.elapsed()
}

/// A thousand streams: the first configuration of each, and one change for all.
fn simulate(mut world: World, workloads: usize) -> String {
    let now = amend(&Snapshots::new(), world.changes(), "cluster.local").0;
    let mut proxies: Vec<Server> = Vec::new();
    let task = task();
    let (memory_before, cpu_before) = (memory(), cpu(&task));
    for _ in 0..PROXIES {
        let mut proxy = Server::new();
        let _ = proxy.receive(DeltaDiscoveryRequest {
            type_url: ADDRESS.to_owned(),
            ..DeltaDiscoveryRequest::default()
        });
        assert!(told(&mut proxy, &now[ADDRESS]) > workloads, "everything");
        proxies.push(proxy);
    }
    let first = cpu(&task).saturating_sub(cpu_before) / PROXIES as u32;
    let each = ((memory() - memory_before) / PROXIES as f64).max(0.0);
    // One pod is not ready any more.
    world.put(Kind::Pod, &pod(workloads / 2, false));
    let changes: Vec<_> = world.changes().collect();
    let cpu_before = cpu(&task);
    let next = amend(&now, changes, "cluster.local").0;
    let sizes: Vec<usize> = proxies
        .iter_mut()
        .map(|proxy| told(proxy, &next[ADDRESS]))
        .collect();
    let spent = cpu(&task).saturating_sub(cpu_before);
    let largest = sizes.iter().max().unwrap();
    assert!(sizes.iter().all(|size| *size > 0), "everybody is told");
    format!(
        "{} | {each:.0} bytes | {largest} | {} |",
        millis(first),
        millis(spent)
    )
}

/// A cluster in which nothing was told yet.
fn cluster(workloads: usize) -> World {
    let mut world = World::new(
        "Kubernetes",
        "istio-system",
        "cluster.local",
        remora_mtls::TrustDomains::default(),
    );
    for app in 0..workloads.div_ceil(10 * NAMESPACES) {
        for space in 0..NAMESPACES {
            world.put(Kind::Service, &service(space, app));
        }
    }
    for number in 0..workloads {
        world.put(Kind::Pod, &pod(number, true));
    }
    world
}

/// Bytes of what a proxy is told, which it acknowledges.
fn told(proxy: &mut Server, now: &Snapshot) -> usize {
    let response = proxy.next(ADDRESS, now).unwrap();
    let mut message = Vec::with_capacity(response.encoded_len());
    response.write(&mut message);
    let _ = proxy.receive(DeltaDiscoveryRequest {
        type_url: ADDRESS.to_owned(),
        response_nonce: response.nonce,
        ..DeltaDiscoveryRequest::default()
    });
    message.len()
}
