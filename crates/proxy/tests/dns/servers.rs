//! How name servers are asked, with servers on loopback that misbehave.

use crate::wire::{A, TXT, asked, question, read, reply};
use remora_proxy::dns::names::Client;
use remora_proxy::dns::{Dns, Settings, Sockets};
use remora_proxy::mesh::Mesh;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

const FOUND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
/// Nothing takes longer, also on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

fn settings(servers: Vec<SocketAddr>) -> Settings {
    Settings {
        client: Client::default(),
        servers,
        rotate: false,
        patience: PATIENCE / 2,
        questions: 10,
        connections: 10,
    }
}

/// A proxy by UDP and TCP at one address.
async fn proxy(settings: Settings) -> (Arc<Dns>, SocketAddr) {
    let (udp, tcp, at) = pair().await;
    let dns = Arc::new(Dns::new(settings, Arc::new(Mesh::default()), &[at]).unwrap());
    let sockets = Sockets {
        udp: vec![udp],
        tcp: vec![tcp],
    };
    tokio::spawn(Arc::clone(&dns).serve(sockets));
    (dns, at)
}

/// Both sockets on one port. One that is free for datagrams may be taken for connections: then another one is tried.
async fn pair() -> (UdpSocket, TcpListener, SocketAddr) {
    for _ in 0..100 {
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let at = udp.local_addr().unwrap();
        if let Ok(tcp) = TcpListener::bind(at).await {
            return (udp, tcp, at);
        }
    }
    panic!("no port is free for both");
}

/// A server that makes of each question what it wants; counts them.
async fn server(behave: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> (SocketAddr, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let at = socket.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            counted.fetch_add(1, Ordering::Relaxed);
            for answer in behave(&buffer[..length]) {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    });
    (at, count)
}

/// The same address by TCP.
async fn tcp_server(at: SocketAddr, behave: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) {
    let listener = TcpListener::bind(at).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let length = stream.read_u16().await.unwrap();
            let mut message = vec![0; length.into()];
            stream.read_exact(&mut message).await.unwrap();
            let answer = behave(&message);
            stream
                .write_u16(u16::try_from(answer.len()).unwrap())
                .await
                .unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    });
}

async fn ask_udp(proxy: SocketAddr, message: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(message, proxy).await.unwrap();
    let mut buffer = vec![0; 65_535];
    let received = tokio::time::timeout(PATIENCE, socket.recv(&mut buffer));
    let length = received.await.unwrap().unwrap();
    buffer.truncate(length);
    buffer
}

async fn ask_tcp(stream: &mut TcpStream, message: &[u8]) -> Vec<u8> {
    stream
        .write_u16(u16::try_from(message.len()).unwrap())
        .await
        .unwrap();
    stream.write_all(message).await.unwrap();
    let length = stream.read_u16().await.unwrap();
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await.unwrap();
    answer
}

fn good(message: &[u8]) -> Vec<Vec<u8>> {
    vec![reply(message, 0, &[FOUND], false)]
}

#[tokio::test]
async fn a_question_gets_another_number_on_its_way_and_its_own_back() {
    let (at, _) = server(|message| {
        assert_eq!(asked(message), ("outside.example".to_owned(), A));
        good(message)
    })
    .await;
    let (_, proxy) = proxy(settings(vec![at])).await;
    let answer = read(&ask_udp(proxy, &question(77, "Outside.example", A, None)).await).unwrap();
    assert_eq!((answer.id, answer.code, answer.addresses), (77, 0, vec![FOUND]));
    assert_eq!(answer.ttls, [7], "as long as the server says");
}

#[tokio::test]
async fn the_next_server_is_asked_when_one_fails_or_is_gone() {
    let gone = UdpSocket::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let (failing, failed) = server(|message| vec![reply(message, 2, &[], false)]).await;
    let (last, _) = server(good).await;
    let (_, at) = proxy(settings(vec![gone, failing, last])).await;
    let answer = read(&ask_udp(at, &question(1, "outside.example", A, None)).await).unwrap();
    assert_eq!(answer.addresses, [FOUND]);
    assert_eq!(failed.load(Ordering::Relaxed), 1);
    // All agree on a failure: the client is told.
    let (_, at) = proxy(settings(vec![failing])).await;
    let answer = read(&ask_udp(at, &question(1, "outside.example", A, None)).await).unwrap();
    assert_eq!(answer.code, 2);
}

#[tokio::test]
async fn a_server_that_is_silent_costs_a_bounded_time() {
    let (silent, asked) = server(|_| Vec::new()).await;
    let (last, _) = server(good).await;
    let patience = Duration::from_secs(4);
    let with = |servers| Settings {
        patience,
        ..settings(servers)
    };
    let (_, at) = proxy(with(vec![silent, last])).await;
    let answer = read(&ask_udp(at, &question(1, "outside.example", A, None)).await).unwrap();
    assert_eq!(answer.addresses, [FOUND]);
    let (dns, at) = proxy(with(vec![silent])).await;
    let started = std::time::Instant::now();
    let answer = read(&ask_udp(at, &question(1, "outside.example", A, None)).await).unwrap();
    assert_eq!(answer.code, 2);
    assert!(started.elapsed() + Duration::from_millis(50) >= patience);
    assert_eq!(
        asked.load(Ordering::Relaxed),
        3,
        "a packet may be lost: it is asked again"
    );
    let mut text = String::new();
    dns.counters().render(&mut text);
    for line in [
        "istio_dns_requests_total 1\n",
        "istio_dns_upstream_requests_total 1\n",
        "istio_dns_upstream_failures_total 1\n",
        "istio_dns_upstream_request_duration_seconds_count 1\n",
    ] {
        assert!(text.contains(line), "{line} not in\n{text}");
    }
}

#[tokio::test]
async fn answers_to_other_questions_are_not_believed() {
    let forged: IpAddr = "203.0.113.66".parse().unwrap();
    let (at, _) = server(move |message| {
        let mut other_number = reply(message, 0, &[forged], false);
        other_number[0] ^= 0x40;
        let other_name = reply(&question(0, "another.example", A, None), 0, &[forged], false);
        let other_name = [&message[..2], &other_name[2..]].concat();
        let mut echo = message.to_vec();
        echo.truncate(40);
        let rubbish = message[..3].to_vec();
        [vec![other_number, other_name, echo, rubbish], good(message)].concat()
    })
    .await;
    let (_, proxy) = proxy(settings(vec![at])).await;
    let answer = read(&ask_udp(proxy, &question(1, "outside.example", A, None)).await).unwrap();
    assert_eq!(answer.addresses, [FOUND]);
}

#[tokio::test]
async fn an_answer_that_was_cut_is_fetched_whole_if_the_client_can_take_it() {
    let many: Vec<IpAddr> = (0..60).map(|n| IpAddr::from([192, 0, 2, n])).collect();
    let (at, _) = server(|message| vec![reply(message, 0, &[FOUND], true)]).await;
    let whole = many.clone();
    tcp_server(at, move |message| reply(message, 0, &whole, false)).await;
    let (_, proxy) = proxy(settings(vec![at])).await;
    let roomy = read(&ask_udp(proxy, &question(1, "outside.example", A, Some(4096))).await).unwrap();
    assert!(!roomy.truncated && roomy.addresses == many);
    let narrow = read(&ask_udp(proxy, &question(1, "outside.example", A, None)).await).unwrap();
    assert!(
        narrow.truncated && narrow.addresses == [FOUND],
        "the client asks by TCP"
    );
    let mut stream = TcpStream::connect(proxy).await.unwrap();
    for id in 1..4 {
        let answer = read(&ask_tcp(&mut stream, &question(id, "outside.example", A, None)).await).unwrap();
        assert!(
            answer.id == id && answer.addresses == many,
            "several on one connection"
        );
    }
}

#[tokio::test]
async fn questions_under_way_are_bounded_and_refused_at_once_above_that() {
    let (silent, _) = server(|_| Vec::new()).await;
    let (_, at) = proxy(Settings {
        questions: 2,
        ..settings(vec![silent])
    })
    .await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for id in 1..=3 {
        let message = question(id, "outside.example", A, None);
        socket.send_to(&message, at).await.unwrap();
    }
    let mut buffer = [0; 512];
    let started = std::time::Instant::now();
    let length = socket.recv(&mut buffer).await.unwrap();
    let refused = read(&buffer[..length]).unwrap();
    assert_eq!((refused.id, refused.code), (3, 2));
    assert!(started.elapsed() < PATIENCE / 4);
}

#[tokio::test]
async fn nobody_to_ask_is_a_failure_at_once_and_other_types_pass_as_they_are() {
    let (_, at) = proxy(settings(Vec::new())).await;
    let answer = read(&ask_udp(at, &question(1, "outside.example", A, None)).await).unwrap();
    assert_eq!(answer.code, 2);
    let (at, _) = server(|message| vec![[&reply(message, 3, &[], false)[..], b"anything"].concat()]).await;
    let (_, at) = proxy(settings(vec![at])).await;
    let answer = ask_udp(at, &question(0x0102, "outside.example", TXT, None)).await;
    assert!(answer.starts_with(&[1, 2]) && answer.ends_with(b"anything"));
    assert_eq!(answer[3] & 15, 3, "there is no such name, also not in the mesh");
}
