//! Control planes and authorities that are silent, slow, or talk nonsense.
//!
//! Time is virtual: it moves on when nobody has anything to do, so that every wait of the proxy's passes.

use crate::scene::MESH;
use remora_control::{Config, Plane};
use remora_mtls::{Roots, SpiffeId, TrustDomains, bootstrap_client};
use remora_proxy::join::{Membership, Notice};
use remora_proxy::mesh::Mesh;
use remora_xds::client::{Bytes, ControlPlane, Event};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

const CONFIG: &str = "
listen: 127.0.0.1:0
trustDomain: td
authority: ca
mesh: [mesh.yaml]
tokens: tokens.yaml
";

/// What can be wrong with a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Takes connections and says nothing.
    Silent,
    /// Closes at once.
    Closed,
    /// Noise.
    Noise,
    /// The wrong version of HTTP.
    OldHttp,
    /// Announces more than may be sent at once.
    HugeFrame,
    /// Takes requests and never answers.
    Unanswered,
    /// Messages that are none.
    Nonsense,
    /// A message of four gigabytes, of which nothing comes.
    HugeMessage,
    /// Not gRPC.
    NotGrpc,
    /// Always busy.
    Unavailable,
}

const FAULTS: [Fault; 10] = [
    Fault::Silent,
    Fault::Closed,
    Fault::Noise,
    Fault::OldHttp,
    Fault::HugeFrame,
    Fault::Unanswered,
    Fault::Nonsense,
    Fault::HugeMessage,
    Fault::NotGrpc,
    Fault::Unavailable,
];

async fn misbehave(mut stream: TcpStream, fault: Fault) {
    let noise: Vec<u8> = (0..50_000_u32)
        .map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let bytes: &[u8] = match fault {
        Fault::Silent => &[],
        Fault::Closed => return,
        Fault::Noise => &noise,
        Fault::OldHttp => b"HTTP/1.1 400 Bad Request\r\n\r\n",
        Fault::HugeFrame => &[&settings[..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat(),
        Fault::Unanswered | Fault::Nonsense | Fault::HugeMessage | Fault::NotGrpc | Fault::Unavailable => {
            return answer_wrongly(stream, fault).await;
        }
    };
    let _ = stream.write_all(bytes).await;
    // Until the other side has had enough.
    while stream.read(&mut [0; 4096]).await.is_ok_and(|count| count > 0) {}
}

async fn answer_wrongly(stream: TcpStream, fault: Fault) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    let mut kept = Vec::new();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let grpc = http::Response::builder().header("content-type", "application/grpc");
        let response = match fault {
            Fault::NotGrpc => http::Response::builder().status(503),
            Fault::Unavailable => grpc.header("grpc-status", "14"),
            _ => grpc,
        };
        let body: &'static [u8] = match fault {
            Fault::Nonsense => &[0, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 0xff],
            Fault::HugeMessage => &[0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3],
            _ => &[],
        };
        if fault == Fault::Unanswered {
            kept.push((request, respond, None));
            continue;
        }
        if let Ok(mut send) = respond.send_response(response.body(()).unwrap(), body.is_empty()) {
            let _ = send.send_data(bytes::Bytes::from_static(body), false);
            kept.push((request, respond, Some(send)));
        }
    }
}

/// A membership whose dialling goes to the good control plane or to a bad one.
struct World {
    directory: TempDir,
    membership: Membership,
    /// None is wrong while this is greater than the last fault.
    wrong: Arc<AtomicUsize>,
    dials: Arc<AtomicUsize>,
}

async fn good_plane(directory: &Path) -> SocketAddr {
    let config = Config::read(&directory.join("control.yaml")).unwrap();
    let plane = Plane::open(config, |_| ()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move { plane.serve(listener, std::future::pending::<()>()).await });
    address
}

async fn bad_plane(wrong: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Some(fault) = FAULTS.get(wrong.load(Ordering::Relaxed)) {
                tokio::task::spawn_local(misbehave(stream, *fault));
            }
        }
    });
    address
}

impl World {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("control.yaml", CONFIG),
            (
                "tokens.yaml",
                "- {token: secret, namespace: shop, serviceAccount: web}\n",
            ),
            ("mesh.yaml", MESH),
        ] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let (wrong, dials) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let good = good_plane(directory.path()).await;
        let bad = bad_plane(Arc::clone(&wrong)).await;
        let root = std::fs::read_to_string(directory.path().join("ca/root-cert.pem")).unwrap();
        let (which, count) = (Arc::clone(&wrong), Arc::clone(&dials));
        let dial = move || {
            count.fetch_add(1, Ordering::Relaxed);
            let broken = which.load(Ordering::Relaxed) < FAULTS.len();
            let root = root.clone();
            let dialled = async move {
                if broken {
                    return Ok(Box::new(TcpStream::connect(bad).await?) as Box<dyn Bytes>);
                }
                let roots = Roots::from_pem(&root).map_err(std::io::Error::other)?;
                let config = bootstrap_client(&roots).map_err(std::io::Error::other)?;
                let name = "istiod.istio-system.svc".try_into().unwrap();
                let stream = TcpStream::connect(good).await?;
                let tls = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
                Ok(Box::new(tls) as Box<dyn Bytes>)
            };
            Box::pin(dialled) as std::pin::Pin<Box<dyn Future<Output = _> + Send>>
        };
        let membership = Membership {
            control_plane: ControlPlane::new(
                "http://istiod.istio-system.svc:15012".parse().unwrap(),
                Arc::new(dial),
                Arc::new(|| Ok(Some("secret".to_owned()))),
            ),
            id: SpiffeId::of_service_account("td", "shop", "web").unwrap(),
            domains: TrustDomains::new::<&str>("td", &[]).unwrap(),
            life: Duration::from_hours(1),
            node: remora_xds::proto::discovery::Node {
                id: "sidecar~10.1.0.2~web-0.shop~shop.svc.cluster.local".to_owned(),
                ..Default::default()
            },
        };
        Self {
            directory,
            membership,
            wrong,
            dials,
        }
    }

    fn break_it(&self, fault: usize) {
        self.wrong.store(fault, Ordering::Relaxed);
        self.dials.store(0, Ordering::Relaxed);
    }

    fn mend(&self) {
        self.wrong.store(FAULTS.len(), Ordering::Relaxed);
    }

    /// How often it was dialled: at least once more in the time given, and never in a hurry.
    fn judge_dials(&self, fault: Fault, minutes: usize) {
        let dials = self.dials.load(Ordering::Relaxed);
        // A few at first, then every 15 seconds.
        assert!(
            dials <= 15 + 5 * minutes,
            "{fault:?}: dialled {dials} times in {minutes} minutes"
        );
        assert!(dials >= 2, "{fault:?}: given up after {dials} attempts");
    }
}

fn virtually<T>(work: impl AsyncFnOnce() -> T) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, work())
}

#[test]
fn discovery_that_fails_is_asked_again_without_hurry_and_what_is_known_stays() {
    virtually(async || {
        let world = World::new().await;
        let mesh = Mesh::default();
        let in_sync = Cell::new(0);
        let mut notice = |notice: Notice| {
            if matches!(notice, Notice::Discovery(Event::InSync)) {
                in_sync.set(in_sync.get() + 1);
            }
        };
        for (number, fault) in FAULTS.into_iter().enumerate() {
            world.break_it(number);
            {
                let following = world.membership.follow(&mesh, &mut notice);
                tokio::pin!(following);
                let early = tokio::time::timeout(Duration::from_mins(3), &mut following).await;
                assert!(early.is_err());
                world.judge_dials(fault, 3);
                assert_eq!(in_sync.get(), number, "{fault:?} brought nothing");
                let known = mesh.workload("10.1.0.1".parse().unwrap()).is_some();
                assert_eq!(known, number > 0, "{fault:?} took nothing away");
                world.mend();
                // A silent one is found out after its keepalive, the others sooner.
                let one = tokio::time::timeout(Duration::from_mins(2), &mut following).await;
                assert!(one.is_err());
            }
            assert_eq!(in_sync.get(), number + 1, "no recovery from {fault:?}");
        }
    });
}

#[test]
fn an_authority_that_fails_is_asked_again_without_hurry() {
    virtually(async || {
        let world = World::new().await;
        for (number, fault) in FAULTS.into_iter().enumerate() {
            world.break_it(number);
            let refusals = RefCell::new(Vec::new());
            let mut notice = |notice: Notice| {
                if let Notice::NotCertified(error) = notice {
                    refusals.borrow_mut().push(error.to_string());
                }
            };
            let asking = world.membership.identity(&mut notice);
            tokio::pin!(asking);
            let early = tokio::time::timeout(Duration::from_mins(3), &mut asking).await;
            assert!(early.is_err(), "{fault:?} gave a certificate");
            world.judge_dials(fault, 3);
            assert!(!refusals.borrow().is_empty(), "{fault:?} is told");
            world.mend();
            let identity = tokio::time::timeout(Duration::from_mins(1), asking)
                .await
                .unwrap();
            assert_eq!(identity.id(), world.membership.id, "after {fault:?}");
        }
        drop(world.directory);
    });
}
