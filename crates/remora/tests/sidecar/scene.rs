//! Two pods, `web` (10.1.0.2) and `cart` (10.1.0.1), and a control plane at 10.2.0.1.

use super::process::{PATIENCE, Process, Start};
use remora_capture::install;
use remora_net::Namespace;
use remora_net::socket::readable;
use remora_rules::options::{Environment, Settings, parse_argv};
use remora_testkit::{Actor, Lab};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PROXY: u32 = 1337;
const APP: u32 = 1000;
const CONFIG: &str = "
listen: 10.2.0.1:15012
trustDomain: cluster.local
serverNames: [istiod.istio-system.svc]
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

/// One of the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pod {
    Web,
    Cart,
}

impl Pod {
    fn account(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Cart => "cart",
        }
    }

    pub(crate) fn address(self) -> &'static str {
        match self {
            Self::Web => "10.1.0.2",
            Self::Cart => "10.1.0.1",
        }
    }
}

pub(crate) struct Scene {
    pub(crate) directory: TempDir,
    pub(crate) lab: Lab,
    elsewhere: Namespace,
}

impl Scene {
    /// Pods with capture rules and files; nothing runs.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let lab = Lab::new();
        let (elsewhere, _) = lab.attach("eth1", 2);
        remora_testkit::forwarding(&lab.pod);
        let scene = Self {
            directory,
            lab,
            elsewhere,
        };
        for (name, text) in [
            ("control.yaml", CONFIG),
            ("tokens.yaml", TOKENS),
            ("mesh.yaml", MESH),
        ] {
            scene.write(name, text);
        }
        for pod in [Pod::Web, Pod::Cart] {
            let token = format!("{}-secret", pod.account());
            scene.write_in(pod, "var/run/secrets/tokens/istio-token", &token);
            std::fs::create_dir_all(scene.in_pod(pod, "var/run/secrets/istio")).unwrap();
            capture(scene.namespace(pod));
        }
        open(scene.directory.path());
        scene
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory.path().join(name), text).unwrap();
    }

    /// A path below a pod's root.
    pub(crate) fn in_pod(&self, pod: Pod, name: &str) -> PathBuf {
        self.directory.path().join(pod.account()).join(name)
    }

    pub(crate) fn write_in(&self, pod: Pod, name: &str, text: &str) {
        let path = self.in_pod(pod, name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn namespace(&self, pod: Pod) -> &Namespace {
        match pod {
            Pod::Web => &self.lab.pod,
            Pod::Cart => &self.lab.peer,
        }
    }

    /// The control plane, listening; its root is in the pods.
    pub(crate) fn control(&self) -> Process {
        let start = Start {
            namespace: &self.elsewhere,
            uid: 0,
            directory: self.directory.path().to_owned(),
            env: BTreeMap::new(),
        };
        let control = start.remora(&["control", "--config", "control.yaml"]);
        control.says("listening on");
        for pod in [Pod::Web, Pod::Cart] {
            let root = self.directory.path().join("ca/root-cert.pem");
            let there = self.in_pod(pod, "var/run/secrets/istio/root-cert.pem");
            std::fs::copy(root, there).unwrap();
        }
        control
    }

    /// Does something where the control plane is.
    pub(crate) fn elsewhere<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        Actor::root(&self.elsewhere).run(work)
    }

    /// The environment Istio's template gives.
    pub(crate) fn env(pod: Pod) -> BTreeMap<String, String> {
        let name = format!("{}-0", pod.account());
        [
            ("POD_NAME", name.as_str()),
            ("POD_NAMESPACE", "shop"),
            ("SERVICE_ACCOUNT", pod.account()),
            ("INSTANCE_IP", pod.address()),
            ("ISTIOD_SAN", "istiod.istio-system.svc"),
            (
                "PROXY_CONFIG",
                "{discoveryAddress: '10.2.0.1:15012', concurrency: 1, terminationDrainDuration: 100ms}",
            ),
            ("ISTIO_META_CLUSTER_ID", "Kubernetes"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    pub(crate) fn start(&self, pod: Pod, env: BTreeMap<String, String>) -> Start<'_> {
        Start {
            namespace: self.namespace(pod),
            uid: PROXY,
            directory: self.in_pod(pod, ""),
            env,
        }
    }

    /// The sidecar of a pod.
    pub(crate) fn sidecar(&self, pod: Pod) -> Process {
        self.start(pod, Self::env(pod)).remora(&["proxy", "sidecar"])
    }

    /// Asks a port of the sidecar from inside the pod: status and body.
    pub(crate) fn ask(&self, pod: Pod, port: u16, path: &str) -> std::io::Result<(u16, String)> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        self.send(pod, SocketAddr::from(([127, 0, 0, 1], port)), &request)
    }

    /// Sends a request from inside a pod, as its application would.
    pub(crate) fn send(&self, pod: Pod, to: SocketAddr, request: &str) -> std::io::Result<(u16, String)> {
        let request = request.to_owned();
        let answer = Actor::new(self.namespace(pod), APP, APP).run(move || {
            let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok::<_, std::io::Error>(answer)
        })?;
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        status
            .map(|status| (status, body.to_owned()))
            .ok_or_else(|| std::io::Error::other(answer.clone()))
    }

    /// Waits for an answer of readiness.
    pub(crate) fn readiness(&self, pod: Pod, wanted: impl Fn(u16, &str) -> bool) -> (u16, String) {
        let started = Instant::now();
        loop {
            let answer = self.ask(pod, 15021, "/healthz/ready?wait=20");
            if let Ok((status, body)) = &answer
                && wanted(*status, body)
            {
                return (*status, body.clone());
            }
            assert!(started.elapsed() < PATIENCE, "{answer:?}");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// Waits until a sidecar is ready.
    pub(crate) fn ready(&self, pod: Pod) {
        self.readiness(pod, |status, _| status == 200);
    }

    /// An application on a pod's port 8080 that answers `ping` with `pong`, and requests of HTTP with a page.
    pub(crate) fn application(&self, pod: Pod) -> Application {
        let listens = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&listens);
        let thread = Actor::new(self.namespace(pod), APP, APP).run(move || {
            let at = SocketAddr::from(([0, 0, 0, 0], 8080));
            let listener = remora_net::socket::TcpOptions::default().listen(at).unwrap();
            std::thread::spawn(move || {
                while asked.load(Ordering::Relaxed) {
                    let ready = readable(&[listener.as_fd()], Duration::from_millis(5)).unwrap();
                    if ready[0]
                        && let Ok((stream, _)) = listener.accept()
                    {
                        std::thread::spawn(move || serve(stream));
                    }
                }
            })
        });
        Application {
            listens,
            thread: Some(thread),
        }
    }

    /// A connection from the application of `web` to the service `cart`, on which one word went both ways.
    pub(crate) fn call(&self) -> std::io::Result<TcpStream> {
        Actor::new(self.namespace(Pod::Web), APP, APP).run(|| {
            let mut stream = TcpStream::connect_timeout(&"10.96.0.1:80".parse().unwrap(), PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            ping(&mut stream)?;
            Ok(stream)
        })
    }
}

/// An application. Open connections go on when it no longer listens.
pub(crate) struct Application {
    listens: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Application {
    pub(crate) fn stop_listening(&mut self) {
        self.listens.store(false, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.stop_listening();
    }
}

fn serve(mut stream: TcpStream) {
    let mut word = [0; 4];
    while stream.read_exact(&mut word).is_ok() {
        if &word == b"GET " {
            let page = "app_metric 1\n";
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", page.len());
            let _ = stream.write_all(format!("{head}{page}").as_bytes());
            return;
        }
        if stream.write_all(b"pong").is_err() {
            return;
        }
    }
}

/// One word in each direction.
pub(crate) fn ping(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"ping")?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    assert_eq!(&answer, b"pong");
    Ok(())
}

fn capture(namespace: &Namespace) {
    let rules =
        "-p 15001 -z 15006 -u 1337 -m REDIRECT -i * -b * -d 15012,15020,15021,15090 --backend nftables";
    Actor::root(namespace).run(move || {
        let words: Vec<&str> = rules.split(' ').collect();
        let settings = Settings::read(&parse_argv(&words).unwrap(), &Environment::default()).unwrap();
        let prepared = install::prepare(&settings).unwrap();
        install::install(&settings, &prepared.plan).unwrap();
    });
}

/// The proxy's user may look everywhere below.
fn open(path: &Path) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}
