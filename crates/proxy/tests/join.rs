//! Two pods that join a mesh through a real control plane and talk while everything around them changes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use remora_control::{Config, Plane};
use remora_mtls::{Roots, SpiffeId, TrustDomains, bootstrap_client};
use remora_net::{Namespace, privilege};
use remora_proxy::access::Record;
use remora_proxy::join::{Membership, Notice};
use remora_proxy::mesh::Mesh;
use remora_proxy::{Context, Listeners, Settings, serve};
use remora_testkit::{Actor, Lab};
use remora_xds::client::{Bytes, ControlPlane, Event};
use remora_xds::proto::discovery::Node;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

const PATIENCE: Duration = Duration::from_mins(1);

const CONFIG: &str = "
listen: 10.2.0.1:15012
trustDomain: td
authority: ca
mesh: [mesh.yaml]
tokens: tokens.yaml
reload: 20ms
";
const TOKENS: &str = "
- {token: web-secret, namespace: shop, serviceAccount: web}
- {token: cart-secret, namespace: shop, serviceAccount: cart}
";
const MESH: &str = "
kind: Workload
name: web-0
namespace: shop
addresses: [10.1.0.2]
serviceAccount: web
tunnel: hbone
---
kind: Workload
name: cart-0
namespace: shop
addresses: [10.1.0.1]
serviceAccount: cart
tunnel: hbone
services: {shop/cart.shop.svc.cluster.local: ['80:8080']}
---
kind: Service
name: cart
namespace: shop
addresses: [10.96.0.1]
ports: [{port: 80}]
";

/// Runs a future on a thread in a namespace, as the proxy's user, until told to stop.
struct Running {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start<F: Future<Output = ()>>(
        namespace: &Namespace,
        work: impl FnOnce(oneshot::Receiver<()>) -> F + Send + 'static,
    ) -> Self {
        let namespace = namespace.clone();
        let (stop, told) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            namespace.enter().unwrap();
            privilege::become_user(1337, 1337).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(work(told));
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn end(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

fn control(directory: &Path, namespace: &Namespace) -> Running {
    let config = Config::read(&directory.join("control.yaml")).unwrap();
    Running::start(namespace, async move |told| {
        let listener = tokio::net::TcpListener::bind(config.listen).await.unwrap();
        let plane = Plane::open(config, |_| ()).unwrap();
        plane.serve(listener, async { drop(told.await) }).await.unwrap();
    })
}

fn membership(directory: &Path, account: &str) -> Membership {
    let (directory, token) = (directory.to_owned(), format!("{account}-secret"));
    let id = SpiffeId::of_service_account("td", "shop", account).unwrap();
    Membership {
        control_plane: ControlPlane::new(
            "http://istiod.istio-system.svc:15012".parse().unwrap(),
            Arc::new(move || {
                let root = std::fs::read_to_string(directory.join("ca/root-cert.pem"));
                Box::pin(async move {
                    let roots = Roots::from_pem(&root?).map_err(std::io::Error::other)?;
                    let config = bootstrap_client(&roots).map_err(std::io::Error::other)?;
                    let address: SocketAddr = "10.2.0.1:15012".parse().unwrap();
                    let stream = tokio::net::TcpStream::connect(address).await?;
                    let name = "istiod.istio-system.svc".try_into().unwrap();
                    let tls = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
                    Ok(Box::new(tls) as Box<dyn Bytes>)
                })
            }),
            Arc::new(move || Ok(Some(token.clone()))),
        ),
        id,
        domains: TrustDomains::new::<&str>("td", &[]).unwrap(),
        // Renewed every second: half of a life of two seconds after the two minutes it is back-dated by.
        life: Duration::from_secs(122),
        node: Node {
            id: format!("sidecar~10.1.0.9~{account}-0.shop~shop.svc.cluster.local"),
            ..Node::default()
        },
    }
}

fn bind(port: u16) -> tokio::net::TcpListener {
    let at = SocketAddr::from(([0, 0, 0, 0], port));
    let listener = remora_net::socket::TcpOptions::default().listen(at).unwrap();
    listener.set_nonblocking(true).unwrap();
    tokio::net::TcpListener::from_std(listener).unwrap()
}

/// What a proxy reports.
enum Said {
    InSync,
    Certified,
    Trouble,
    Over(Box<Record>),
}

fn proxy(namespace: &Namespace, membership: Membership, say: Sender<Said>) -> Running {
    Running::start(namespace, async move |told| {
        let told_of = |say: &Sender<Said>, notice: &Notice| {
            let _ = say.send(match notice {
                Notice::Certified(_) => Said::Certified,
                Notice::Discovery(Event::InSync) => Said::InSync,
                Notice::Discovery(Event::Connected) => return,
                _ => Said::Trouble,
            });
        };
        let mut notice = |n: Notice| told_of(&say, &n);
        let identity = Arc::new(membership.identity(&mut notice).await);
        let mesh = Arc::new(Mesh::default());
        let over = say.clone();
        let log = move |record: &Record| drop(over.send(Said::Over(Box::new(record.clone()))));
        let ctx = Arc::new(Context::new(
            Arc::clone(&identity),
            Arc::clone(&mesh),
            Settings::default(),
            log,
        ));
        let listeners = Listeners {
            outbound: vec![bind(15001)],
            inbound: vec![bind(15006)],
            hbone: vec![bind(15008)],
            ..Listeners::default()
        };
        let (mut first, mut second) = (|n: Notice| told_of(&say, &n), |n: Notice| told_of(&say, &n));
        tokio::select! {
            () = serve(ctx, listeners, async { drop(told.await) }) => {}
            _ = membership.stay_certified(&identity, 0.5, &mut first) => {}
            _ = membership.follow(&mesh, &mut second) => {}
        }
    })
}

fn capture(namespace: &Namespace) {
    use remora_capture::install;
    use remora_rules::options::{Environment, Settings, parse_argv};
    let rules = [
        "-p",
        "15001",
        "-z",
        "15006",
        "-u",
        "1337",
        "-m",
        "REDIRECT",
        "-i",
        "*",
        "-b",
        "*",
        "-d",
        "15012",
        "--backend",
        "nftables",
    ];
    Actor::root(namespace).run(move || {
        let settings = Settings::read(&parse_argv(&rules).unwrap(), &Environment::default()).unwrap();
        let prepared = install::prepare(&settings).unwrap();
        install::install(&settings, &prepared.plan).unwrap();
    });
}

fn request() -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&"10.96.0.1:80".parse().unwrap(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"ping")?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    assert_eq!(&answer, b"pong");
    Ok(())
}

/// Two pods and, behind the first, a place for the control plane.
fn scene() -> (TempDir, Lab, Namespace) {
    let directory = tempfile::tempdir().unwrap();
    // The control plane runs as the proxy's user here, and makes its root there.
    std::os::unix::fs::chown(directory.path(), Some(1337), Some(1337)).unwrap();
    for (name, text) in [
        ("control.yaml", CONFIG),
        ("tokens.yaml", TOKENS),
        ("mesh.yaml", MESH),
    ] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let lab = Lab::new();
    let (elsewhere, _) = lab.attach("eth1", 2);
    remora_testkit::forwarding(&lab.pod);
    capture(&lab.pod);
    capture(&lab.peer);
    Actor::new(&lab.peer, 1000, 1000).run(|| {
        let at = SocketAddr::from(([0, 0, 0, 0], 8080));
        let listener = remora_net::socket::TcpOptions::default().listen(at).unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                std::thread::spawn(move || {
                    let mut word = [0; 4];
                    while stream.read_exact(&mut word).is_ok() && stream.write_all(b"pong").is_ok() {}
                });
            }
        });
    });
    (directory, lab, elsewhere)
}

#[test]
fn nothing_is_lost_while_certificates_change_and_the_control_plane_restarts() {
    let (directory, lab, elsewhere) = scene();
    let mut plane = control(directory.path(), &elsewhere);
    let (say, said) = channel();
    let (say_server, said_server) = channel();
    let _server = proxy(&lab.peer, membership(directory.path(), "cart"), say_server);
    let _client = proxy(&lab.pod, membership(directory.path(), "web"), say);
    let started = Instant::now();
    for channel in [&said, &said_server] {
        while !matches!(channel.recv_timeout(PATIENCE).unwrap(), Said::InSync) {
            assert!(started.elapsed() < PATIENCE, "no certificate or no discovery");
        }
    }
    let app = Actor::new(&lab.pod, 1000, 1000);
    let (mut certificates, mut troubles, mut done) = (0, 0, 0);
    let mut restarted = false;
    // Until three more certificates came after a restart of the control plane, with many requests all the time.
    while certificates < 6 || done <= 200 {
        assert!(started.elapsed() < PATIENCE * 2, "no new certificates");
        app.run(request).unwrap();
        done += 1;
        for word in said.try_iter() {
            match word {
                Said::Certified => certificates += 1,
                Said::Trouble => troubles += 1,
                Said::Over(record) => assert_eq!(record.error, None, "{record}"),
                Said::InSync => {}
            }
        }
        if certificates >= 3 && !restarted {
            plane.end();
            for _ in 0..100 {
                app.run(request).unwrap();
                done += 1;
            }
            plane = control(directory.path(), &elsewhere);
            restarted = true;
        }
    }
    assert!(troubles > 0, "the restart was noticed");
    plane.end();
}

/// By a clock that is ahead, or with a life that is shorter than what certificates are back-dated by, every new
/// certificate is due at once. The authority must not be asked again and again without a pause.
#[test]
fn a_certificate_that_is_due_at_once_is_not_renewed_in_a_hurry() {
    let (directory, lab, elsewhere) = scene();
    let mut plane = control(directory.path(), &elsewhere);
    let (say, said) = channel();
    let membership = Membership {
        life: Duration::from_mins(1),
        ..membership(directory.path(), "web")
    };
    let mut client = proxy(&lab.pod, membership, say);
    let mut certified = 0;
    let mut started = Instant::now();
    while certified < 5 {
        if matches!(said.recv_timeout(PATIENCE).unwrap(), Said::Certified) {
            certified += 1;
            if certified == 1 {
                started = Instant::now();
            }
        }
    }
    // 100 ms, then 200, then 400.
    assert!(
        started.elapsed() >= Duration::from_millis(700),
        "{:?}",
        started.elapsed()
    );
    client.end();
    plane.end();
}
