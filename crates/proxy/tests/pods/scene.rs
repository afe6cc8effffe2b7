//! The two pods.

use remora_capture::install;
use remora_mtls::{Authority, Chain, Credentials, Identity, PrivateKey, Roots, SpiffeId, TrustDomains};
use remora_net::{Namespace, privilege};
use remora_proxy::access::Record;
use remora_proxy::drain::Phase;
use remora_proxy::inbound::Modes;
use remora_proxy::mesh::Mesh;
use remora_proxy::{Context, Limits, Listeners, Settings as ProxySettings, UnknownDestinations, serve};
use remora_rules::options::{Environment, Settings, parse_argv};
use remora_testkit::{Actor, Lab};
use remora_xds::delta::{Client, Interest, Server};
use remora_xds::proto::discovery::Node;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Nothing takes longer, also on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
pub(crate) const APP: u32 = 1000;
pub(crate) const PROXY: u32 = 1337;
const RULES: &[&str] = &[
    "-p",
    "15001",
    "-u",
    "1337",
    "-i",
    "*",
    "-b",
    "*",
    "--dual-stack",
    "--backend",
    "nftables",
];
const REDIRECT: &[&str] = &["-z", "15006", "-m", "REDIRECT"];

/// Where the service is dialled.
pub(crate) fn service(ipv6: bool) -> SocketAddr {
    let address: IpAddr = if ipv6 { "fd96::1" } else { "10.96.0.1" }.parse().unwrap();
    SocketAddr::new(address, 80)
}

/// The sockets of a proxy, which another may go on with.
pub(crate) struct Sockets([Vec<TcpListener>; 4]);

impl Sockets {
    pub(crate) fn bind(namespace: &Namespace) -> Self {
        Self(Actor::new(namespace, PROXY, PROXY).run(|| all(false)))
    }

    /// Which take connections under the address they were going to.
    pub(crate) fn transparent(namespace: &Namespace) -> Self {
        Self(Actor::root(namespace).run(|| all(true)))
    }

    /// Who may use them: addresses of others are for the privileged only.
    fn user(&self) -> u32 {
        let [_, inbound, ..] = &self.0;
        let transparent = remora_net::socket::is_transparent(&inbound[0], false).unwrap();
        if transparent { 0 } else { PROXY }
    }

    pub(crate) fn share(&self) -> Self {
        let same = |list: &Vec<TcpListener>| list.iter().map(|l| l.try_clone().unwrap()).collect();
        Self(self.0.each_ref().map(same))
    }

    pub(crate) fn listeners(self) -> Listeners {
        let [outbound, inbound, hbone, admin] = self.0.map(|list| {
            let listener = |l: TcpListener| tokio::net::TcpListener::from_std(l).unwrap();
            list.into_iter().map(listener).collect()
        });
        Listeners {
            outbound,
            inbound,
            hbone,
            admin,
            ..Listeners::default()
        }
    }
}

fn all(transparent: bool) -> [Vec<TcpListener>; 4] {
    let both = |port| vec![bind("0.0.0.0", port, transparent), bind("::", port, transparent)];
    let admin = vec![bind("127.0.0.1", 15000, false), bind("::1", 15000, false)];
    [both(15001), both(15006), both(15008), admin]
}

/// What a proxy was told of the mesh.
pub(crate) struct Lessons {
    pub(crate) mesh: Arc<Mesh>,
    state: Mutex<Client>,
}

impl Lessons {
    pub(crate) fn new() -> Self {
        let mut state = Client::new(Node::default());
        state.want(remora_xds::types::ADDRESS, Interest::Everything);
        state.want(remora_xds::types::AUTHORIZATION, Interest::Everything);
        Self {
            mesh: Arc::new(Mesh::default()),
            state: Mutex::new(state),
        }
    }

    /// Tells it about the mesh as discovery would: what changed since the last time.
    pub(crate) fn learn(&self, mesh: &str) {
        let documents = remora_control::files::documents(mesh, "test").unwrap();
        let snapshots = remora_control::mesh::encode(&documents, "td").unwrap();
        let mut server = Server::new();
        let mut state = self.state.lock().unwrap();
        for request in state.connected() {
            server.receive(request).unwrap();
        }
        for (url, snapshot) in &snapshots {
            let response = server.next(url, snapshot).unwrap().message().unwrap();
            let received = state.receive(response).unwrap();
            let refused = self.mesh.apply(&received);
            assert!(refused.is_empty(), "{refused:?}");
            state.answer(&received, &refused);
        }
    }
}

/// One pod's proxy.
pub(crate) struct Proxy {
    pub(crate) ctx: Arc<Context>,
    pub(crate) sockets: Sockets,
    /// Held: the proxy stops at the end of its next connection until it is released.
    pub(crate) log: Arc<Mutex<Sender<Record>>>,
    pub(crate) records: Receiver<Record>,
    lessons: Lessons,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A client pod, a server pod, their proxies.
pub(crate) struct Scene {
    pub(crate) lab: Lab,
    pub(crate) authority: Authority,
    pub(crate) client: Proxy,
    pub(crate) server: Proxy,
    pub(crate) app: Actor,
    pub(crate) server_app: Actor,
}

/// The mesh both proxies are told about.
pub(crate) const MESH: &str = "
kind: Workload
name: web-0
namespace: shop
addresses: [10.1.0.2, 'fd00:1::2']
serviceAccount: web
tunnel: hbone
---
kind: Workload
name: cart-0
namespace: shop
addresses: [10.1.0.1, 'fd00:1::1']
serviceAccount: cart
tunnel: hbone
services: {shop/cart.shop.svc.cluster.local: ['80:8080']}
---
kind: Service
name: cart
namespace: shop
addresses: [10.96.0.1, 'fd96::1']
ports: [{port: 80, targetPort: 8080}]
";

pub(crate) fn identity(authority: &Authority, account: &str) -> Arc<Identity> {
    let credentials = credentials(authority, account, SystemTime::now());
    let domains = TrustDomains::new::<&str>("td", &[]).unwrap();
    Arc::new(Identity::new(domains, credentials).unwrap())
}

/// A certificate for one hour from then on.
pub(crate) fn credentials(authority: &Authority, account: &str, now: SystemTime) -> Credentials {
    let id = SpiffeId::of_service_account("td", "shop", account).unwrap();
    let key = PrivateKey::generate().unwrap();
    let request = key.request(&id).unwrap();
    let issued = authority
        .issue(&request, &id, Duration::from_hours(1), now)
        .unwrap();
    let chain = Chain::from_pem(&issued.leaf).unwrap();
    let roots = Roots::from_pem(&issued.roots).unwrap();
    Credentials::new(&key, chain, roots, &id, now).unwrap()
}

/// The certificate of an account, its key and the roots as files that every user may read.
pub(crate) fn identity_files(authority: &Authority, account: &str) -> TempDir {
    use std::os::unix::fs::PermissionsExt;
    let id = SpiffeId::of_service_account("td", "shop", account).unwrap();
    let key = PrivateKey::generate().unwrap();
    let request = key.request(&id).unwrap();
    let issued = authority
        .issue(&request, &id, Duration::from_hours(1), SystemTime::now())
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for (name, text) in [
        ("chain.pem", issued.leaf),
        ("key.pem", key.to_pem()),
        ("roots.pem", issued.roots),
    ] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

pub(crate) fn limits() -> Limits {
    Limits {
        discovery: Duration::from_millis(300),
        drain: Duration::from_secs(20),
        ..Limits::default()
    }
}

impl Proxy {
    pub(crate) fn start(
        namespace: &Namespace,
        sockets: Sockets,
        identity: Arc<Identity>,
        modes: Modes,
        limits: Limits,
    ) -> Self {
        let lessons = Lessons::new();
        let mesh = Arc::clone(&lessons.mesh);
        let (log, records) = channel();
        let log = Arc::new(Mutex::new(log));
        let written = Arc::clone(&log);
        let ctx = Arc::new(Context::new(
            identity,
            mesh,
            ProxySettings {
                limits,
                unknown: UnknownDestinations::Pass,
                modes,
                ..ProxySettings::default()
            },
            move |record| {
                let _ = written.lock().unwrap().send(record.clone());
            },
        ));
        let (stop, told) = oneshot::channel();
        let used = sockets.share();
        let (inside, shared) = (namespace.clone(), Arc::clone(&ctx));
        let uid = sockets.user();
        let thread = std::thread::spawn(move || {
            inside.enter().unwrap();
            privilege::become_user(uid, PROXY).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listeners = used.listeners();
                serve(shared, listeners, async { drop(told.await) }).await;
            });
        });
        Self {
            ctx,
            sockets,
            log,
            records,
            lessons,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Tells the proxy about the mesh as discovery would: what changed since the last time.
    pub(crate) fn learn(&self, mesh: &str) {
        self.lessons.learn(mesh);
    }

    pub(crate) fn record(&self) -> Record {
        self.records.recv_timeout(PATIENCE).unwrap()
    }

    /// Asks it to end; see [`finish`](Self::finish).
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until it has begun to end.
    pub(crate) fn draining(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(self.ctx.drain().reached(Phase::Draining));
    }

    pub(crate) fn finish(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

fn bind(any: &str, port: u16, transparent: bool) -> TcpListener {
    let at = SocketAddr::new(any.parse().unwrap(), port);
    let options = remora_net::socket::TcpOptions {
        transparent,
        ..Default::default()
    };
    let listener = options.listen(at).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

pub(crate) fn capture(namespace: &Namespace) {
    capture_by(namespace, REDIRECT);
}

/// With rules of another kind.
pub(crate) fn capture_by(namespace: &Namespace, more: &'static [&str]) {
    Actor::root(namespace).run(move || {
        let environment = Environment::default();
        let line: Vec<&str> = RULES.iter().chain(more).copied().collect();
        let settings = Settings::read(&parse_argv(&line).unwrap(), &environment).unwrap();
        let prepared = install::prepare(&settings).unwrap();
        install::install(&settings, &prepared.plan).unwrap();
    });
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::with(MESH)
    }

    pub(crate) fn with(mesh: &str) -> Self {
        Self::strictness(mesh, Modes::default())
    }

    /// With room for so many connections at the client's proxy.
    pub(crate) fn budget(connections: usize) -> Self {
        let limits = Limits {
            connections,
            ..limits()
        };
        Self::made(MESH, Modes::default(), limits)
    }

    /// With modes for the server's ports.
    pub(crate) fn strictness(mesh: &str, modes: Modes) -> Self {
        Self::made(mesh, modes, limits())
    }

    pub(crate) fn made(mesh: &str, modes: Modes, client: Limits) -> Self {
        let lab = Lab::new();
        capture(&lab.peer);
        let sockets = Sockets::bind(&lab.peer);
        Self::in_lab(lab, sockets, mesh, modes, [client, limits()])
    }

    /// With limits for the server's proxy.
    pub(crate) fn guarded(server: Limits) -> Self {
        let lab = Lab::new();
        capture(&lab.peer);
        let sockets = Sockets::bind(&lab.peer);
        Self::in_lab(lab, sockets, MESH, Modes::default(), [limits(), server])
    }

    /// In a lab whose server's pod is captured already, with limits for client and server.
    pub(crate) fn in_lab(
        lab: Lab,
        server: Sockets,
        mesh: &str,
        modes: Modes,
        [client, limits]: [Limits; 2],
    ) -> Self {
        let now = SystemTime::now();
        let authority = Authority::generate("test", now, Duration::from_hours(10)).unwrap();
        capture(&lab.pod);
        let proxy = |namespace: &Namespace, sockets: Sockets, account: &str, modes: Modes, limits: Limits| {
            Proxy::start(namespace, sockets, identity(&authority, account), modes, limits)
        };
        let scene = Self {
            client: proxy(&lab.pod, Sockets::bind(&lab.pod), "web", Modes::default(), client),
            server: proxy(&lab.peer, server, "cart", modes, limits),
            app: Actor::new(&lab.pod, APP, APP),
            server_app: Actor::new(&lab.peer, APP, APP),
            authority,
            lab,
        };
        scene.learn(mesh);
        scene
    }

    pub(crate) fn learn(&self, mesh: &str) {
        self.client.learn(mesh);
        self.server.learn(mesh);
    }

    /// The server's application: one connection after the other, each on a thread of its own.
    pub(crate) fn serve(&self, port: u16, behaviour: impl Fn(TcpStream) + Send + Sync + Clone + 'static) {
        serve_at(&self.server_app, port, behaviour);
    }

    /// The client's application opens a connection.
    pub(crate) fn connect(&self, to: SocketAddr) -> TcpStream {
        self.try_connect(to).unwrap()
    }

    pub(crate) fn try_connect(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let stream = self.app.run(move || TcpStream::connect_timeout(&to, PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Somebody in the client's pod whose connections are not captured, as a program outside the mesh.
    pub(crate) fn outsider(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let outsider = Actor::new(&self.lab.pod, PROXY, PROXY);
        let stream = outsider.run(move || TcpStream::connect_timeout(&to, PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// One connection with a word and its echo.
    pub(crate) fn attempt(&self, to: SocketAddr) -> std::io::Result<()> {
        exchange(&mut self.try_connect(to)?, b"hello?")
    }

    /// How a connection that should fail ends: while it opens or when it is used, whichever is noticed first.
    pub(crate) fn failure(&self, to: SocketAddr) -> ErrorKind {
        self.attempt(to).unwrap_err().kind()
    }
}

/// An application: one connection after the other, each on a thread of its own.
pub(crate) fn serve_at(
    actor: &Actor,
    port: u16,
    behaviour: impl Fn(TcpStream) + Send + Sync + Clone + 'static,
) {
    actor.run(move || {
        for any in ["0.0.0.0", "::"] {
            let at = SocketAddr::new(any.parse().unwrap(), port);
            let listener: TcpListener = remora_net::socket::TcpOptions::default().listen(at).unwrap();
            let behaviour = behaviour.clone();
            std::thread::spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    let behaviour = behaviour.clone();
                    std::thread::spawn(move || behaviour(stream));
                }
            });
        }
    });
}

/// An application that repeats what it hears.
pub(crate) fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = stream.read(&mut buffer) {
        if count == 0 || stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

/// Sends and hears the same back.
pub(crate) fn exchange(stream: &mut TcpStream, words: &[u8]) -> std::io::Result<()> {
    stream.write_all(words)?;
    let mut heard = vec![0; words.len()];
    stream.read_exact(&mut heard)?;
    assert_eq!(heard, words);
    Ok(())
}
