//! Programs of other people, through two proxies: gRPC, HTTP of both versions, WebSocket, PostgreSQL.

use crate::peer::as_user;
use crate::process::Pods;
use crate::scene::{APP, PATIENCE, service};
use bytes::Bytes;
use remora_net::{Namespace, privilege};
use remora_testkit::has_programs;
use remora_xds::proto::certificate::istio_certificate_service_client::IstioCertificateServiceClient;
use remora_xds::proto::certificate::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use remora_xds::proto::certificate::{IstioCertificateRequest, IstioCertificateResponse};
use remora_xds::proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use remora_xds::proto::discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use remora_xds::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Repeats what it is asked.
#[derive(Clone, Copy)]
struct Echo;

#[tonic::async_trait]
impl IstioCertificateService for Echo {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        match request.into_inner().csr {
            empty if empty.is_empty() => Err(Status::invalid_argument("nothing to say")),
            text => Ok(Response::new(IstioCertificateResponse {
                cert_chain: vec![text],
            })),
        }
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Echo {
    type DeltaAggregatedResourcesStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (send, outgoing) = mpsc::channel(4);
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            // It speaks first, too.
            let mut nonce = "hello".to_owned();
            loop {
                let response = DeltaDiscoveryResponse {
                    nonce,
                    ..DeltaDiscoveryResponse::default()
                };
                if send.send(Ok(response)).await.is_err() {
                    return;
                }
                match requests.message().await {
                    Ok(Some(request)) => nonce = request.response_nonce,
                    _ => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}

async fn grpc(stream: TcpStream) {
    let _ = tonic::transport::Server::builder()
        .add_service(IstioCertificateServiceServer::new(Echo))
        .add_service(AggregatedDiscoveryServiceServer::new(Echo))
        .serve_with_incoming(tokio_stream::once(Ok::<_, std::io::Error>(stream)))
        .await;
}

#[test]
fn grpc_calls_and_streams_pass() {
    let pods = Pods::new();
    let _app = pods.serve(grpc);
    as_user(&pods.lab.pod, APP, async || {
        for ipv6 in [false, true] {
            let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", service(ipv6)))
                .unwrap()
                .connect()
                .await
                .unwrap();
            let mut calls = IstioCertificateServiceClient::new(channel.clone());
            let (requests, outgoing) = mpsc::channel(4);
            let mut streams = AggregatedDiscoveryServiceClient::new(channel);
            let opened = streams
                .delta_aggregated_resources(ReceiverStream::new(outgoing))
                .await;
            let mut incoming = opened.unwrap().into_inner();
            assert_eq!(incoming.message().await.unwrap().unwrap().nonce, "hello");
            // One stream that lives while calls come and go beside it on the same connection.
            for number in 0..200 {
                let request = DeltaDiscoveryRequest {
                    response_nonce: number.to_string(),
                    ..DeltaDiscoveryRequest::default()
                };
                requests.send(request).await.unwrap();
                let csr = "x".repeat(number * 100);
                let asked = IstioCertificateRequest {
                    csr: csr.clone(),
                    ..IstioCertificateRequest::default()
                };
                match calls.create_certificate(asked).await {
                    Ok(answer) => assert_eq!(answer.into_inner().cert_chain, [csr]),
                    Err(status) => {
                        assert_eq!((number, status.code()), (0, tonic::Code::InvalidArgument));
                    }
                }
                let answer = incoming.message().await.unwrap().unwrap();
                assert_eq!(answer.nonce, number.to_string());
            }
            drop(requests);
            assert!(
                incoming.message().await.unwrap().is_none(),
                "the end of the stream arrives"
            );
        }
    });
}

/// HTTP/1.1, one request after the other on a connection.
async fn http1(stream: TcpStream) {
    let mut stream = tokio::io::BufReader::new(stream);
    loop {
        let mut first = String::new();
        if stream.read_line(&mut first).await.unwrap_or(0) == 0 {
            return;
        }
        let mut line = first.clone();
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let target = first.split(' ').nth(1).unwrap_or_default();
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{target}",
            target.len()
        );
        if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// HTTP/2 from the first byte.
async fn http2(stream: TcpStream) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let target = Bytes::from(request.uri().path().to_owned());
        if let Ok(mut send) = respond.send_response(http::Response::new(()), false) {
            let _ = send.send_data(target, true);
        }
    }
}

/// Runs a program in a pod, as its application.
fn run(namespace: &Namespace, command: &mut Command) -> String {
    let work = || {
        namespace.enter().unwrap();
        privilege::become_user(APP, APP).unwrap();
        command.stdin(Stdio::null()).output().unwrap()
    };
    let output = std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn curl_speaks_both_versions_of_http() {
    if !has_programs(&[("curl", "apt install curl")]) {
        return;
    }
    let pods = Pods::new();
    // curl 7.88 says its preface twice when it uses a connection of HTTP/2 again, so there it asks once.
    for (version, behaviour, times) in [("--http1.1", 1, 20), ("--http2-prior-knowledge", 2, 1)] {
        let _app = pods.serve(move |stream| async move {
            if behaviour == 1 {
                http1(stream).await;
            } else {
                http2(stream).await;
            }
        });
        for ipv6 in [false, true] {
            let mut curl = Command::new("curl");
            curl.args(["-sS", "--max-time", "60", version, "-w", ":%{num_connects};"]);
            curl.args((0..times).map(|number| format!("http://{}/{number}", service(ipv6))));
            let said = run(&pods.lab.pod, &mut curl);
            let expected: Vec<String> = (0..times)
                .map(|n| format!("/{n}:{};", u8::from(n == 0)))
                .collect();
            let expected = expected.concat();
            assert_eq!(said, expected, "{version}");
        }
    }
}

/// A frame of a few bytes, masked as clients must.
fn frame(opcode: u8, payload: &[u8], masked: bool) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    assert!(length < 126);
    let mask: &[u8] = if masked { &[1, 2, 3, 4] } else { &[] };
    let mut bytes = vec![0x80 | opcode, length | (u8::from(masked) << 7)];
    bytes.extend(mask);
    bytes.extend(
        payload
            .iter()
            .enumerate()
            .map(|(n, byte)| byte ^ mask.get(n % 4).unwrap_or(&0)),
    );
    bytes
}

/// Opcode and payload of the next frame.
async fn next_frame(stream: &mut (impl AsyncReadExt + Unpin)) -> (u8, Vec<u8>) {
    let first = stream.read_u8().await.unwrap();
    let second = stream.read_u8().await.unwrap();
    let mut mask = [0; 4];
    if second & 0x80 != 0 {
        stream.read_exact(&mut mask).await.unwrap();
    }
    let mut payload = vec![0; usize::from(second & 0x7f)];
    stream.read_exact(&mut payload).await.unwrap();
    payload
        .iter_mut()
        .enumerate()
        .for_each(|(n, byte)| *byte ^= mask[n % 4]);
    (first & 0x0f, payload)
}

/// Reads to the empty line.
async fn head(stream: &mut tokio::io::BufReader<TcpStream>) -> String {
    let mut all = String::new();
    while !all.ends_with("\r\n\r\n") {
        assert_ne!(stream.read_line(&mut all).await.unwrap(), 0);
    }
    all
}

#[test]
fn a_websocket_is_opened_and_both_sides_speak_as_they_like() {
    // RFC 6455 §1.3 gives this key and its answer.
    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
    const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzhZRbK+xOo=";
    let pods = Pods::new();
    let _app = pods.serve(async |stream: TcpStream| {
        let mut stream = tokio::io::BufReader::new(stream);
        assert!(head(&mut stream).await.contains(KEY));
        let upgraded = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
        );
        // The first message right behind the answer, unasked.
        let greeting = [upgraded.as_bytes(), &frame(1, b"welcome", false)].concat();
        stream.get_mut().write_all(&greeting).await.unwrap();
        loop {
            let (opcode, payload) = next_frame(&mut stream).await;
            let answer = match opcode {
                8 => frame(8, &payload, false),
                9 => frame(10, &payload, false),
                _ => [frame(1, &payload, false), frame(1, b"and more", false)].concat(),
            };
            stream.get_mut().write_all(&answer).await.unwrap();
            if opcode == 8 {
                return;
            }
        }
    });
    as_user(&pods.lab.pod, APP, async || {
        for ipv6 in [false, true] {
            let mut stream = tokio::io::BufReader::new(TcpStream::connect(service(ipv6)).await.unwrap());
            let request = format!(
                "GET /chat HTTP/1.1\r\nHost: cart\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
            );
            stream.get_mut().write_all(request.as_bytes()).await.unwrap();
            let answer = head(&mut stream).await;
            assert!(
                answer.starts_with("HTTP/1.1 101") && answer.contains(ACCEPT),
                "{answer}"
            );
            assert_eq!(next_frame(&mut stream).await, (1, b"welcome".to_vec()));
            for word in [&b"one"[..], b"two", b"three"] {
                stream.get_mut().write_all(&frame(1, word, true)).await.unwrap();
                assert_eq!(next_frame(&mut stream).await, (1, word.to_vec()));
                assert_eq!(next_frame(&mut stream).await, (1, b"and more".to_vec()));
            }
            stream
                .get_mut()
                .write_all(&frame(9, b"there?", true))
                .await
                .unwrap();
            assert_eq!(next_frame(&mut stream).await, (10, b"there?".to_vec()));
            stream
                .get_mut()
                .write_all(&frame(8, &[3, 232], true))
                .await
                .unwrap();
            assert_eq!(next_frame(&mut stream).await, (8, vec![3, 232]));
            assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
        }
    });
}

/// A running PostgreSQL; ends with the value.
struct Database(Child);

impl Drop for Database {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Database {
    /// In the server's pod, with an empty database. Ready when it answers there.
    fn start(pods: &Pods, directory: &Path) -> Self {
        let data = directory.join("data");
        let mut initdb = Command::new("initdb");
        initdb
            .args([
                "-A",
                "trust",
                "-U",
                "shop",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
                "-D",
            ])
            .arg(&data);
        run(&pods.lab.peer, initdb.current_dir(directory));
        // From wherever the application sees its callers.
        std::fs::write(data.join("pg_hba.conf"), "host all all all trust\n").unwrap();
        let mut server = Command::new("postgres");
        server.args([
            "-p",
            "8080",
            "-F",
            "-c",
            "listen_addresses=*",
            "-c",
            "unix_socket_directories=",
        ]);
        server
            .arg("-D")
            .arg(&data)
            .current_dir(directory)
            .process_group(0);
        server.stdin(Stdio::null()).stderr(Stdio::null());
        let namespace = pods.lab.peer.clone();
        let child = std::thread::spawn(move || {
            namespace.enter().unwrap();
            privilege::become_user(APP, APP).unwrap();
            server.spawn().unwrap()
        });
        let database = Self(child.join().unwrap());
        let ready: SocketAddr = "127.0.0.1:8080".parse().unwrap();
        let started = Instant::now();
        as_user(&pods.lab.peer, APP, async || {
            while TcpStream::connect(ready).await.is_err() {
                assert!(started.elapsed() < PATIENCE, "PostgreSQL does not listen");
                tokio::task::yield_now().await;
            }
        });
        database
    }
}

fn psql(ipv6: bool) -> Command {
    let mut psql = Command::new("psql");
    let host = service(ipv6).ip().to_string();
    psql.args([
        "-X",
        "-q",
        "-A",
        "-t",
        "-v",
        "ON_ERROR_STOP=1",
        "-U",
        "shop",
        "-p",
        "80",
        "-h",
        &host,
        "postgres",
    ]);
    psql
}

#[test]
fn a_database_answers_pushes_and_streams() {
    let remedy = "apt install postgresql has them in /usr/lib/postgresql/VERSION/bin";
    if !has_programs(&[("initdb", remedy), ("postgres", remedy), ("psql", remedy)]) {
        return;
    }
    let pods = Pods::new();
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(directory.path(), Some(APP), Some(APP)).unwrap();
    let _database = Database::start(&pods, directory.path());
    // A session that lives through everything that follows.
    let namespace = pods.lab.pod.clone();
    let listener = std::thread::spawn(move || {
        namespace.enter().unwrap();
        privilege::become_user(APP, APP).unwrap();
        psql(false)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let mut listener = listener.join().unwrap();
    let mut orders = listener.stdin.take().unwrap();
    let mut answers = BufReader::new(listener.stdout.take().unwrap()).lines();
    writeln!(orders, "LISTEN news; SELECT 'listening';").unwrap();
    assert_eq!(answers.next().unwrap().unwrap(), "listening");
    for ipv6 in [false, true] {
        let table = format!("t{}", u8::from(ipv6));
        let fill =
            format!("CREATE TABLE {table} AS SELECT n, md5(n::text) AS m FROM generate_series(1, 100000) n");
        run(&pods.lab.pod, psql(ipv6).args(["-c", &fill]));
        let copy = run(
            &pods.lab.pod,
            psql(ipv6).args(["-c", &format!("COPY {table} TO STDOUT")]),
        );
        assert_eq!(copy.lines().count(), 100_000);
        assert!(
            copy.ends_with("100000\t14ee22eaba297944c96afdbe5b16c65b\n"),
            "{}",
            &copy[copy.len() - 60..]
        );
        run(&pods.lab.pod, psql(ipv6).args(["-c", "NOTIFY news, 'fresh'"]));
    }
    // What the server pushed is told at the next word.
    writeln!(orders, "SELECT 'still here';").unwrap();
    drop(orders);
    let rest: Vec<String> = answers.map_while(Result::ok).collect();
    assert_eq!(rest.first().unwrap(), "still here", "{rest:?}");
    let pushed = rest
        .iter()
        .filter(|line| line.contains("notification \"news\" with payload \"fresh\""))
        .count();
    assert_eq!(pushed, 2, "{rest:?}");
    assert!(listener.wait().unwrap().success());
}
