//! A pod with DNS capture, its real resolver, and a name server outside.

use crate::wire::{A, asked, question, read, reply};
use remora_capture::install;
use remora_net::privilege;
use remora_net::socket::TcpOptions;
use remora_proxy::dns::resolv::Resolv;
use remora_proxy::dns::{Dns, Settings, Sockets};
use remora_proxy::mesh::Mesh;
use remora_rules::options::{Environment, Settings as CaptureSettings, parse_argv};
use remora_testkit::{Actor, Lab, has_programs};
use remora_xds::delta::{Client, Interest, Server};
use remora_xds::proto::discovery::Node;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::oneshot;

const PATIENCE: Duration = Duration::from_mins(1);
const PROXY: u32 = 1337;
const RULES: &[&str] = &[
    "-p",
    "15001",
    "-z",
    "15006",
    "-u",
    "1337",
    "-m",
    "REDIRECT",
    // Only names are captured: nobody listens for anything else here.
    "-i",
    "",
    "-b",
    "",
    "--redirect-dns",
    "--capture-all-dns",
    "--dual-stack",
    "--backend",
    "nftables",
];
const MESH: &str = "
kind: Service
name: cart
namespace: shop
addresses: [10.96.0.1, 'fd96::1']
ports: [{port: 80, targetPort: 8080}]
---
kind: Service
name: cart
namespace: bank
addresses: [10.96.0.2]
ports: [{port: 80, targetPort: 8080}]
---
kind: Service
name: api
namespace: shop
hostname: api.example.com
addresses: [240.240.0.1]
ports: [{port: 443, targetPort: 443}]
---
kind: Service
name: db
namespace: shop
addresses: []
ports: [{port: 5432, targetPort: 5432}]
---
kind: Workload
name: db-0
namespace: shop
addresses: [10.1.9.1, 'fd00:1::91']
serviceAccount: db
services: {shop/db.shop.svc.cluster.local: ['5432:5432']}
---
kind: Workload
name: db-1
namespace: shop
addresses: [10.1.9.2, 'fd00:1::92']
serviceAccount: db
services: {shop/db.shop.svc.cluster.local: ['5432:5432']}
";

/// The pod, with a proxy for names as some user, and a server outside that tells what it was asked.
struct Names {
    lab: Lab,
    dns: Arc<Dns>,
    asked: Receiver<(String, IpAddr)>,
    files: TempDir,
    _stop: oneshot::Sender<()>,
}

fn learn(mesh: &Mesh, text: &str) {
    let documents = remora_control::files::documents(text, "test").unwrap();
    let snapshots = remora_control::mesh::encode(&documents, "td").unwrap();
    let mut state = Client::new(Node::default());
    state.want(remora_xds::types::ADDRESS, Interest::Everything);
    let mut server = Server::new();
    for request in state.connected() {
        server.receive(request).unwrap();
    }
    let url = remora_xds::types::ADDRESS;
    let response = server.next(url, &snapshots[url]).unwrap().message().unwrap();
    let received = state.receive(response).unwrap();
    assert!(mesh.apply(&received).is_empty());
}

/// Knows `outside.example`, says of everything else that it does not exist.
fn outside(socket: &UdpSocket, asked_for: &Sender<(String, IpAddr)>) {
    let mut buffer = [0; 4096];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let message = &buffer[..length];
        let (name, kind) = asked(message);
        let answer = if name == "outside.example" {
            let address: IpAddr = if kind == A { "192.0.2.1" } else { "2001:db8::1" }
                .parse()
                .unwrap();
            reply(message, 0, &[address], false)
        } else {
            reply(message, 3, &[], false)
        };
        if asked_for.send((name, from.ip())).is_err() {
            return;
        }
        socket.send_to(&answer, from).unwrap();
    }
}

impl Names {
    fn new(ipv6: bool, user: u32, mesh: &str) -> Self {
        let lab = Lab::new();
        Actor::root(&lab.pod).run(|| {
            let environment = Environment::default();
            let settings = CaptureSettings::read(&parse_argv(RULES).unwrap(), &environment).unwrap();
            let prepared = install::prepare(&settings).unwrap();
            install::install(&settings, &prepared.plan).unwrap();
        });
        let server = lab.eth0.peer(ipv6);
        let (tell, asked) = channel();
        Actor::root(&lab.peer).run(move || {
            let socket = UdpSocket::bind((server, 53)).unwrap();
            std::thread::spawn(move || outside(&socket, &tell));
        });
        let files = tempfile::tempdir().unwrap();
        let resolv = format!(
            "search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver {server}\noptions ndots:5\n"
        );
        std::fs::write(files.path().join("resolv.conf"), &resolv).unwrap();
        std::fs::write(files.path().join("nsswitch.conf"), "hosts: dns\n").unwrap();
        let tables = Arc::new(Mesh::default());
        learn(&tables, mesh);
        let listening = ["127.0.0.1:15053", "[::1]:15053"].map(|a| a.parse().unwrap());
        let settings = Settings::new("shop", "cluster.local", Resolv::parse(&resolv));
        let dns = Arc::new(Dns::new(settings, tables, &listening).unwrap());
        let stop = serve(&lab, &dns, listening, user);
        Self {
            lab,
            dns,
            asked,
            files,
            _stop: stop,
        }
    }

    /// What the pod's own resolver finds: addresses of a family, sorted.
    fn resolve(&self, name: &str, ipv6: bool) -> Vec<IpAddr> {
        let database = if ipv6 { "ahostsv6" } else { "ahostsv4" };
        let files = self.files.path().display().to_string();
        let script = format!(
            "mount --bind {files}/resolv.conf /etc/resolv.conf && mount --bind {files}/nsswitch.conf \
             /etc/nsswitch.conf && exec getent {database} {name}"
        );
        let output = Actor::root(&self.lab.pod).run(move || {
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
            command.output().unwrap()
        });
        assert!(
            output.stderr.is_empty(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout).unwrap();
        let addresses = text.lines().filter(|line| line.contains("STREAM"));
        let mut found: Vec<IpAddr> = addresses
            .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
            .collect();
        found.sort();
        found
    }

    fn asked_outside(&self) -> Vec<String> {
        self.asked.try_iter().map(|(name, _)| name).collect()
    }
}

fn serve(lab: &Lab, dns: &Arc<Dns>, listening: [SocketAddr; 2], user: u32) -> oneshot::Sender<()> {
    let (stop, told) = oneshot::channel::<()>();
    let (ready, started) = channel();
    let (inside, dns) = (lab.pod.clone(), Arc::clone(dns));
    std::thread::spawn(move || {
        inside.enter().unwrap();
        if user != 0 {
            privilege::become_user(user, user).unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async move {
            let mut sockets = Sockets::default();
            for address in listening {
                sockets
                    .udp
                    .push(tokio::net::UdpSocket::bind(address).await.unwrap());
                let tcp = TcpOptions::default().listen(address).unwrap();
                tcp.set_nonblocking(true).unwrap();
                sockets.tcp.push(tokio::net::TcpListener::from_std(tcp).unwrap());
            }
            tokio::spawn(dns.serve(sockets));
            ready.send(()).unwrap();
            let _ = told.await;
        });
    });
    started.recv_timeout(PATIENCE).unwrap();
    stop
}

fn can_run() -> bool {
    has_programs(&[("getent", "install libc-bin"), ("unshare", "install util-linux")])
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn the_pods_resolver_finds_the_mesh_and_the_world_through_either_family() {
    if !can_run() {
        return;
    }
    for transport_v6 in [false, true] {
        let names = Names::new(transport_v6, PROXY, MESH);
        let cases: [(&str, &[&str], &[&str]); 9] = [
            ("cart", &["10.96.0.1"], &["fd96::1"]),
            ("cart.shop", &["10.96.0.1"], &["fd96::1"]),
            ("cart.shop.svc.cluster.local", &["10.96.0.1"], &["fd96::1"]),
            ("cart.bank", &["10.96.0.2"], &[]),
            ("cart.bank.svc", &["10.96.0.2"], &[]),
            ("api.example.com", &["240.240.0.1"], &[]),
            ("db", &["10.1.9.1", "10.1.9.2"], &["fd00:1::91", "fd00:1::92"]),
            ("db-1.db", &["10.1.9.2"], &["fd00:1::92"]),
            ("db-0.db.shop.svc.cluster.local", &["10.1.9.1"], &["fd00:1::91"]),
        ];
        for (name, v4, v6) in cases {
            assert_eq!(names.resolve(name, false), addresses(v4), "{name}");
            let with_v6 = names.resolve(name, true);
            // Where there is none, getent shows the others mapped.
            if !v6.is_empty() {
                assert_eq!(with_v6, addresses(v6), "{name}");
            }
        }
        // Only what is nobody's: some of these are tried with another suffix first.
        let asked = names.asked_outside();
        let known = |name: &String| cases.iter().any(|(known, _, _)| name == known);
        assert!(!asked.is_empty() && !asked.iter().any(known), "{asked:?}");
        assert_eq!(names.resolve("outside.example", false), addresses(&["192.0.2.1"]));
        assert_eq!(
            names.resolve("outside.example", true),
            addresses(&["2001:db8::1"])
        );
        assert!(names.resolve("nobody.example", false).is_empty());
        let (_, from) = names.asked.recv_timeout(PATIENCE).unwrap();
        assert_eq!(from, names.lab.eth0.pod(transport_v6), "asked by the pod's proxy");
    }
}

#[test]
fn an_answer_too_large_for_a_datagram_comes_by_tcp() {
    if !can_run() {
        return;
    }
    let mut mesh =
        "kind: Service\nname: many\nnamespace: shop\naddresses: []\nports: [{port: 80, targetPort: 80}]\n"
            .to_owned();
    for number in 0..200 {
        let _ = write!(
            mesh,
            "---\nkind: Workload\nname: many-{number}\nnamespace: shop\naddresses: [10.1.8.{number}]\n\
             services: {{shop/many.shop.svc.cluster.local: ['80:80']}}\n"
        );
    }
    let names = Names::new(false, PROXY, &mesh);
    assert_eq!(names.resolve("many", false).len(), 200);
}

#[test]
fn before_discovery_has_spoken_others_are_asked() {
    if !can_run() {
        return;
    }
    let names = Names::new(false, PROXY, "");
    assert_eq!(names.resolve("outside.example", false), addresses(&["192.0.2.1"]));
}

/// The proxy's own questions are captured when it runs as a user that the rules do not know.
#[test]
fn questions_that_go_in_a_circle_are_refused() {
    let names = Names::new(false, 0, MESH);
    let server = SocketAddr::new(names.lab.eth0.peer(false), 53);
    let answer = Actor::new(&names.lab.pod, 1000, 1000).run(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
            .send_to(&question(5, "outside.example", A, None), server)
            .unwrap();
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer).unwrap();
        read(&buffer[..length]).unwrap()
    });
    assert_eq!((answer.id, answer.code), (5, 2));
    // Each try came back once, and no further.
    assert_eq!(names.dns.counters().circular(), 2);
    assert!(names.asked_outside().is_empty());
}
