//! Ports of the control plane under floods of silent and idle connections, with a well-behaved client at the same time.
//!
//! Different loopback addresses are different sources. Success counts, not time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use remora_control::webhook::{Limits, Rules, Webhook};
use remora_control::{Config, Notice, Plane, status};
use remora_mtls::{Authority, PrivateKey, Roots, bootstrap_client, bootstrap_server};
use remora_xds::client::{Bytes, ControlPlane};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const FLOOD: u8 = 2;
const GOOD: u8 = 3;

async fn connect(last: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let from = Ipv4Addr::new(127, 0, 0, last);
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    socket.connect(to).await.unwrap()
}

/// Whether the server closes the connection, and not only says nothing.
async fn is_closed(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> bool {
    let mut sink = [0; 256];
    loop {
        match stream.read(&mut sink).await {
            Ok(0) | Err(_) => return true,
            Ok(_) => {}
        }
    }
}

// 15012

struct Discovery {
    _directory: TempDir,
    roots: Roots,
    address: SocketAddr,
}

const CONFIG: &str = "{trustDomain: td, authority: ca, mesh: [mesh], tokens: tokens.yaml}";
const TOKENS: &str = "[{token: secret, namespace: shop, serviceAccount: web}]";

async fn discovery() -> Discovery {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::create_dir(path.join("mesh")).unwrap();
    std::fs::write(path.join("config.yaml"), CONFIG).unwrap();
    std::fs::write(path.join("tokens.yaml"), TOKENS).unwrap();
    let config = Config::read(&path.join("config.yaml")).unwrap();
    let plane = Plane::open(config, |_: &Notice| {}).unwrap();
    let roots = Roots::from_pem(&plane.roots()).unwrap();
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { plane.serve(listener, std::future::pending()).await });
    Discovery {
        _directory: directory,
        roots,
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
    }
}

impl Discovery {
    async fn handshake(&self, last: u8) -> std::io::Result<TlsStream<TcpStream>> {
        let connector = TlsConnector::from(Arc::new(bootstrap_client(&self.roots).unwrap()));
        let name = "istiod.istio-system.svc".try_into().unwrap();
        connector.connect(name, connect(last, self.address).await).await
    }

    /// A proxy that asks for certificates.
    fn client(&self) -> ControlPlane {
        let connector = TlsConnector::from(Arc::new(bootstrap_client(&self.roots).unwrap()));
        let address = self.address;
        ControlPlane::new(
            "http://istiod.istio-system.svc:15012".parse().unwrap(),
            Arc::new(move || {
                let connector = connector.clone();
                Box::pin(async move {
                    let name = "istiod.istio-system.svc".try_into().unwrap();
                    let stream = connector.connect(name, connect(GOOD, address).await).await?;
                    Ok(Box::new(stream) as Box<dyn Bytes>)
                })
            }),
            Arc::new(|| Ok(Some("secret".to_owned()))),
        )
    }

    async fn certificate(&self) {
        let id = "spiffe://td/ns/shop/sa/web".parse().unwrap();
        let request = PrivateKey::generate().unwrap().request(&id).unwrap();
        let life = Duration::from_mins(10);
        self.client().certify(request, life).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_issued_while_a_source_holds_silent_connections() {
    raise();
    let plane = discovery().await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(connect(FLOOD, plane.address).await);
    }
    plane.certificate().await;
    for number in 0..4000 {
        silent.push(connect(FLOOD, plane.address).await);
        if number % 400 == 0 {
            plane.certificate().await;
        }
    }
    plane.certificate().await;
}

/// From as many addresses as there are connections no source has more than others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_issued_while_many_sources_hold_silent_connections() {
    raise();
    let plane = discovery().await;
    let mut silent = Vec::new();
    for number in 0..2400_u32 {
        let socket = TcpSocket::new_v4().unwrap();
        let from = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 0, 4, 0)) + number);
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        silent.push(socket.connect(plane.address).await.unwrap());
    }
    for _ in 0..5 {
        plane.certificate().await;
    }
}

/// TLS connections without a token used to be kept for as long as the client liked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_do_not_authenticate_give_way_and_those_that_did_stay() {
    raise();
    let plane = discovery().await;
    let stream = plane.handshake(FLOOD).await.unwrap();
    let (mut trusted, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    ask(&mut trusted, "Bearer secret").await;
    let mut first = plane.handshake(FLOOD).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..80 {
        idle.push(plane.handshake(FLOOD).await.unwrap());
    }
    assert!(is_closed(&mut first).await, "the oldest one of that source");
    ask(&mut trusted, "Bearer secret").await;
}

/// A request for a certificate, without one. The token is good, so it is answered.
async fn ask(client: &mut h2::client::SendRequest<bytes::Bytes>, token: &str) {
    let service = "istio.v1.auth.IstioCertificateService/CreateCertificate";
    let request = http::Request::post(format!("https://istiod.istio-system.svc/{service}"))
        .header("content-type", "application/grpc")
        .header("authorization", token)
        .body(())
        .unwrap();
    let (answer, mut body) = client.send_request(request, false).unwrap();
    body.send_data(bytes::Bytes::from_static(&[0; 5]), true).unwrap();
    let answer = answer.await.unwrap();
    assert_eq!(answer.headers()["grpc-status"], "3", "{answer:?}");
}

// 15017

struct Hooks {
    address: SocketAddr,
    roots: Roots,
}

async fn hooks() -> Hooks {
    let now = SystemTime::now();
    let life = Duration::from_hours(1);
    let authority = Authority::generate("test", now, life).unwrap();
    let key = PrivateKey::generate().unwrap();
    let own = authority
        .issue_server(&key, &["localhost".to_owned()], life, now)
        .unwrap();
    let mut config = bootstrap_server(&own.leaf, &key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let config = Arc::new(RwLock::new(Arc::new(config)));
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let webhook = Arc::new(Webhook::new(Rules::default(), Limits::default()));
    tokio::spawn(webhook.serve(listener, config, std::future::pending()));
    Hooks {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        roots: Roots::from_pem(&authority.to_pem().0).unwrap(),
    }
}

impl Hooks {
    async fn handshake(&self, last: u8, version: &[u8]) -> TlsStream<TcpStream> {
        let mut client = bootstrap_client(&self.roots).unwrap();
        client.alpn_protocols = vec![version.to_vec()];
        let connector = TlsConnector::from(Arc::new(client));
        let name = "localhost".try_into().unwrap();
        let stream = connect(last, self.address).await;
        connector.connect(name, stream).await.unwrap()
    }

    /// As an API server does for a new pod.
    async fn review(&self, last: u8) -> String {
        let body = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u",
            "namespace":"shop","operation":"CREATE","object":{"spec":{"containers":[{"name":"web"}]}}}}"#;
        let head = format!(
            "POST /inject HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n",
            body.len()
        );
        let mut stream = self.handshake(last, b"http/1.1").await;
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_reviewed_while_a_source_holds_idle_connections() {
    raise();
    let hooks = hooks().await;
    let mut idle = Vec::new();
    for number in 0..1100 {
        let version = if number % 2 == 0 { &b"h2"[..] } else { b"http/1.1" };
        let mut stream = hooks.handshake(FLOOD, version).await;
        if number % 2 == 0 {
            // The beginning of HTTP/2, and then nothing but answers to pings.
            let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
            stream.write_all(preface).await.unwrap();
        }
        idle.push(stream);
        if number % 100 == 99 {
            for source in [GOOD, FLOOD] {
                let answer = hooks.review(source).await;
                assert!(
                    answer.starts_with("HTTP/1.1 200 "),
                    "{number}, {source}: {answer}"
                );
            }
        }
    }
}

// 15014

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_answered_while_a_source_holds_silent_connections() {
    raise();
    for flood in [FLOOD, GOOD] {
        let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (_ready, seen) = watch::channel(true);
        status::serve_apart(listener, seen, Arc::new(String::new)).unwrap();
        let mut silent = Vec::new();
        for _ in 0..600 {
            silent.push(connect(flood, address).await);
        }
        for path in ["/live", "/ready", "/metrics"].iter().cycle().take(30) {
            let mut stream = connect(GOOD, address).await;
            let head = format!("GET {path} HTTP/1.1\r\nhost: pod\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
            silent.push(connect(flood, address).await);
        }
    }
}

/// Both ends of every connection are in this process.
fn raise() {
    let _ = remora_net::privilege::raise_descriptor_limit();
}
