//! The mutating webhook over TLS, from a client that keeps its connections, as an API server does.

use crate::measure::{cpu, millis, quantile, task};
use remora_control::webhook::{Limits, Native, Node, Rules, Webhook};
use remora_mtls::{Authority, PrivateKey, Roots, bootstrap_client, bootstrap_server};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock, mpsc};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const RATE: u64 = 1_000;
const CONNECTIONS: usize = 16;
const STEADY: Duration = Duration::from_secs(10);
const FLAT_OUT: Duration = Duration::from_secs(5);

/// A pod as a Deployment makes it.
fn request() -> Vec<u8> {
    let container = |name: &str, port: u16| {
        json!({"name": name, "image": format!("registry.example/shop/{name}:1.4.2"), "imagePullPolicy": "IfNotPresent",
            "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
            "env": (0..12).map(|n| json!({"name": format!("SETTING_{n}"), "value": "some value"})).collect::<Vec<_>>(),
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5},
            "livenessProbe": {"httpGet": {"path": "/live", "port": "http"}, "periodSeconds": 10},
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
            "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]})
    };
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "cart-6f7d8b9c4-", "namespace": "shop",
            "labels": {"app": "cart", "version": "v1", "pod-template-hash": "6f7d8b9c4"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "cart-6f7d8b9c4",
                "uid": "0b7e6a0e-6f5b-4a39-8a3e-1d4f4d1d3c2b", "controller": true}]},
        "spec": {"serviceAccountName": "cart", "containers": [container("cart", 8080), container("cache", 9090)],
            "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]}});
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "namespace": "shop", "operation": "CREATE", "object": pod}})
    .to_string();
    let head = format!(
        "POST /inject?timeout=10s HTTP/1.1\r\nhost: istiod\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body.into_bytes()].concat()
}

struct Server {
    address: SocketAddr,
    client: TlsConnector,
    task: String,
}

/// On a thread of its own with one event loop: what one core can do.
fn serve() -> Server {
    let authority = Authority::generate("bench", SystemTime::now(), Duration::from_hours(1)).unwrap();
    let client = bootstrap_client(&Roots::from_pem(&authority.to_pem().0).unwrap()).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let key = PrivateKey::generate().unwrap();
            let issued = authority
                .issue_server(
                    &key,
                    &["localhost".to_owned()],
                    Duration::from_hours(1),
                    SystemTime::now(),
                )
                .unwrap();
            let config = Arc::new(RwLock::new(Arc::new(
                bootstrap_server(&issued.leaf, &key).unwrap(),
            )));
            let node = Node {
                name: "n1".to_owned(),
                labels: serde_json::Map::new(),
                kubelet: "v1.35.0".to_owned(),
            };
            let rules = Rules {
                native: Native::ByNodes(vec![node; 100]),
                ..Rules::default()
            };
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send((listener.local_addr().unwrap(), task())).unwrap();
            let webhook = Arc::new(Webhook::new(rules, Limits::default()));
            webhook.serve(listener, config, std::future::pending()).await;
        });
    });
    let (address, task) = told.recv().unwrap();
    let mut client = client;
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    Server {
        address,
        client: TlsConnector::from(Arc::new(client)),
        task,
    }
}

impl Server {
    async fn connect(&self) -> TlsStream<TcpStream> {
        let tcp = TcpStream::connect(self.address).await.unwrap();
        tcp.set_nodelay(true).unwrap();
        self.client
            .connect("localhost".try_into().unwrap(), tcp)
            .await
            .unwrap()
    }
}

/// One question and its whole answer.
async fn ask(stream: &mut TlsStream<TcpStream>, request: &[u8]) {
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::with_capacity(16 << 10);
    loop {
        let count = stream.read_buf(&mut answer).await.unwrap();
        assert!(count > 0, "the server broke off");
        let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = std::str::from_utf8(&answer[..end]).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .unwrap();
        if answer.len() == end + 4 + length.parse::<usize>().unwrap() {
            assert!(
                answer[end..].windows(11).any(|part| part == b"\"JSONPatch\""),
                "injected"
            );
            return;
        }
    }
}

pub(crate) fn measure() -> String {
    let server = Arc::new(serve());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let request: Arc<[u8]> = request().into();
        let before = cpu(&server.task);
        let mut latencies = steady(&server, &request).await;
        let per_review = cpu(&server.task).saturating_sub(before) / latencies.len() as u32;
        latencies.sort();
        let flat = flat_out(&server, &request).await;
        format!(
            "# Webhook\n\nOne event loop, {CONNECTIONS} TLS connections, a pod of two containers with probes ({} bytes), native \
             sidecar by 100 nodes.\n\n| what | value |\n|---|---|\n| at {RATE} reviews a second: p50 | {} |\n| p99 | {} |\n\
             | p99.9 | {} |\n| CPU for a review | {:.0} µs |\n| flat out | {flat:.0} reviews a second |\n",
            request.len(),
            millis(quantile(&latencies, 0.5)),
            millis(quantile(&latencies, 0.99)),
            millis(quantile(&latencies, 0.999)),
            per_review.as_secs_f64() * 1e6,
        )
    })
}

/// Reviews at a fixed rate, each counted from when it was due.
async fn steady(server: &Arc<Server>, request: &Arc<[u8]>) -> Vec<Duration> {
    let (give, take) = tokio::sync::mpsc::unbounded_channel::<Instant>();
    let take = Arc::new(tokio::sync::Mutex::new(take));
    let mut workers = Vec::new();
    for _ in 0..CONNECTIONS {
        let (server, request, take) = (Arc::clone(server), Arc::clone(request), Arc::clone(&take));
        workers.push(tokio::spawn(async move {
            let mut stream = server.connect().await;
            ask(&mut stream, &request).await;
            let mut latencies = Vec::new();
            loop {
                let due = take.lock().await.recv().await;
                let Some(due) = due else { return latencies };
                ask(&mut stream, &request).await;
                latencies.push(due.elapsed());
            }
        }));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The timer has milliseconds: what is due within one is given at once, and counted from then.
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    let began = Instant::now();
    let mut given = 0;
    while began.elapsed() < STEADY {
        ticks.tick().await;
        let due = began.elapsed().as_micros() as u64 * RATE / 1_000_000;
        while given < due {
            give.send(Instant::now()).unwrap();
            given += 1;
        }
    }
    drop(give);
    let mut all = Vec::new();
    for worker in workers {
        all.extend(worker.await.unwrap());
    }
    all
}

/// As many as there can be.
async fn flat_out(server: &Arc<Server>, request: &Arc<[u8]>) -> f64 {
    let end = Instant::now() + FLAT_OUT;
    let mut workers = Vec::new();
    for _ in 0..CONNECTIONS {
        let (server, request) = (Arc::clone(server), Arc::clone(request));
        workers.push(tokio::spawn(async move {
            let mut stream = server.connect().await;
            let mut count = 0.0;
            while Instant::now() < end {
                ask(&mut stream, &request).await;
                count += 1.0;
            }
            count
        }));
    }
    let mut all = 0.0;
    for worker in workers {
        all += worker.await.unwrap();
    }
    all / FLAT_OUT.as_secs_f64()
}
