use super::{Desk, Share, Strangers, agent_port, readiness_port};
use crate::http::{self, Http1};
use crate::kubelet::KubeletSources;
use crate::log::Log;
use crate::metrics::AgentMetrics;
use crate::probes::{Prober, Probes};
use crate::readiness::{Readiness, Stage};
use crate::scrape::{ProxyMetrics, Scraper};
use crate::settings::Environment;
use crate::stop::StopSwitch;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

const NODE: &str = "192.168.1.10";
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);
const POD: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 7);

/// A sidecar whose application has these probes.
fn desk(probes: &str, ready: bool) -> Arc<Desk> {
    let readiness = Readiness::default();
    let stages = [
        Stage::Sockets,
        Stage::Certificate,
        Stage::Configuration,
        Stage::Proxy,
    ];
    for stage in stages.into_iter().filter(|_| ready) {
        readiness.reach(stage);
    }
    let env = [("HOST_IP".to_owned(), NODE.to_owned())].into();
    let addresses = [IpAddr::from(POD)];
    let kubelet = KubeletSources::resolve(Environment(&env), &[GATEWAY.into()], &addresses).unwrap();
    Arc::new(Desk {
        readiness,
        switch: StopSwitch::default(),
        prober: Prober::new(Probes::parse(probes).unwrap(), Ipv4Addr::LOCALHOST.into()),
        kubelet,
        strangers: Strangers::new(Log::new(|_, _| {})),
        waiting: Share::waiting(),
        scraping: Share::scraping(),
        scraper: Scraper {
            agent: Arc::new(AgentMetrics::default()),
            proxy: ProxyMetrics::None,
            targets: Vec::new(),
        },
        private_metrics: false,
    })
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

/// The readiness port, as the sidecar serves it.
async fn readiness(desk: Arc<Desk>) -> SocketAddr {
    let (listener, at) = listener().await;
    tokio::spawn(http::serve(
        vec![listener],
        Http1::probes(),
        move |request, peer| readiness_port(request, peer, Arc::clone(&desk)),
    ));
    at
}

/// The agent's port, to which every client seems to come from `peer`.
async fn agent(desk: Arc<Desk>, peer: IpAddr) -> SocketAddr {
    let (listener, at) = listener().await;
    tokio::spawn(http::serve(vec![listener], http::pages(), move |request, _| {
        agent_port(request, SocketAddr::new(peer, 40_000), Arc::clone(&desk))
    }));
    at
}

/// A connection from one of the machine's loopback addresses, which are different sources.
async fn connect(last: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let from = Ipv4Addr::new(127, 0, 0, last);
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    socket.connect(to).await.unwrap()
}

async fn ask(mut stream: TcpStream, path: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nhost: pod\r\nconnection: close\r\nx-evil: 1\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

/// Of a neighbour (127.0.0.2), and of a neighbour with the kubelet's own address.
#[tokio::test]
async fn readiness_is_answered_while_a_neighbour_holds_600_idle_connections() {
    remora_net::privilege::raise_descriptor_limit().unwrap();
    for neighbour in [2, 3] {
        let at = readiness(desk("{}", true)).await;
        let mut idle = Vec::new();
        for _ in 0..600 {
            idle.push(connect(neighbour, at).await);
        }
        for _ in 0..20 {
            let answer = ask(connect(3, at).await, "/healthz/ready").await;
            assert_eq!(status(&answer), "200", "{answer}");
            idle.push(connect(neighbour, at).await);
        }
    }
}

#[tokio::test]
async fn readiness_is_answered_while_neighbours_hold_requests_that_wait() {
    remora_net::privilege::raise_descriptor_limit().unwrap();
    let at = readiness(desk("{}", false)).await;
    let mut waiting = Vec::new();
    for neighbour in (10..60).flat_map(|last| [last; 20]) {
        let mut stream = connect(neighbour, at).await;
        let head = b"GET /healthz/ready?wait=60000 HTTP/1.1\r\nhost: pod\r\n\r\n";
        // A connection that was closed to make room is one that does not wait.
        let _ = stream.write_all(head).await;
        waiting.push(stream);
    }
    for _ in 0..20 {
        let answer = ask(connect(3, at).await, "/healthz/ready").await;
        assert_eq!(status(&answer), "503", "{answer}");
    }
    let local = ask(connect(1, at).await, "/healthz/ready?wait=1").await;
    assert!(local.contains("remora-waited: true"), "{local}");
}

/// A source with as many waiting requests as it may have is answered, only without the wait.
#[tokio::test]
async fn requests_that_wait_are_bounded_for_each_source() {
    let share = Share::new(3, 2);
    let [one, other, third] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
    let held = [share.try_acquire(one), share.try_acquire(one)];
    assert!(held.iter().all(Option::is_some) && share.try_acquire(one).is_none());
    let last = share.try_acquire(other);
    assert!(last.is_some() && share.try_acquire(third).is_none());
    assert!(
        share.try_acquire(Ipv4Addr::LOCALHOST.into()).is_some(),
        "the pod itself"
    );
}

/// An application that records the requests it receives.
async fn application() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&heads);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap().into());
            }
            seen.lock().unwrap().push(head);
            let answer = "HTTP/1.1 200 x\r\ncontent-length: 6\r\n\r\nsecret";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (port, heads)
}

#[tokio::test]
async fn hooks_are_run_for_the_kubelet_and_for_no_other_client() {
    let (port, heads) = application().await;
    let hook = r#"{"/app-lifecycle/web/prestopz":{"httpGet":{"path":"/admin/shutdown","port":PORT}}}"#;
    let hook = hook.replace("PORT", &port.to_string());
    for (peer, expected) in [
        (NODE, "200"),
        ("10.244.0.1", "200"),
        ("10.244.0.7", "200"),
        ("127.0.0.1", "200"),
        ("127.0.0.6", "403"),
        ("10.244.0.8", "403"),
        ("192.168.1.11", "403"),
    ] {
        heads.lock().unwrap().clear();
        let at = agent(desk(&hook, true), peer.parse().unwrap()).await;
        let answer = ask(connect(1, at).await, "/app-lifecycle/web/prestopz").await;
        assert_eq!(status(&answer), expected, "{peer}: {answer}");
        assert!(!answer.contains("secret"), "{answer}");
        let heads = heads.lock().unwrap();
        assert_eq!(heads.len(), usize::from(expected == "200"), "{peer}");
        assert!(!heads.iter().any(|head| head.contains("x-evil")), "{heads:?}");
    }
}

#[tokio::test]
async fn a_probe_tells_other_clients_the_status_and_nothing_else() {
    let (port, heads) = application().await;
    let probe = r#"{"/app-health/web/readyz":{"httpGet":{"path":"/ready","port":PORT}}}"#;
    let probe = probe.replace("PORT", &port.to_string());
    let at = agent(desk(&probe, true), IpAddr::from([10, 244, 0, 8])).await;
    let answer = ask(connect(1, at).await, "/app-health/web/readyz").await;
    assert_eq!(status(&answer), "200", "{answer}");
    assert!(!answer.contains("secret"), "{answer}");
    assert!(!heads.lock().unwrap()[0].contains("x-evil"));
}
