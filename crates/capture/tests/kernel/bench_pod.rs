//! A pod with listeners everywhere a connection may end up.

use remora_capture::install::{self, Outcome};
use remora_net::socket::{TcpOptions, original_destination, readable};
use remora_rules::options::{Backend, Environment, Settings, parse_argv};
use remora_rules::switch::State;
use remora_testkit::{Actor, Lab, Seen, Watch, has_programs};
use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

/// Nothing on a loaded machine takes longer than this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Long enough to be sure that nothing comes, when nothing should.
pub(crate) const SILENCE: Duration = Duration::from_millis(300);
/// Where the world outside takes everything.
pub(crate) const WORLD: u16 = 9000;
/// Ports the application serves.
pub(crate) const APP_PORTS: [u16; 4] = [53, 80, 8080, 9090];
/// The application's user.
pub(crate) const APP: (u32, u32) = (1000, 1000);
/// The proxy's user.
pub(crate) const PROXY: (u32, u32) = (1337, 1337);

/// The back ends this machine can run: our own always, the others where their programs are.
pub(crate) fn backends() -> Vec<Backend> {
    let mut all = vec![Backend::Nftables];
    if has_iptables() {
        all.extend([Backend::IptablesNft, Backend::IptablesLegacy]);
    }
    all
}

/// Whether the iptables programs are there, and the nft one to look at the result with.
pub(crate) fn has_iptables() -> bool {
    has_programs(&[
        ("iptables-legacy-save", "apt-get install iptables"),
        ("iptables-nft-save", "apt-get install iptables"),
        ("nft", "apt-get install nftables"),
    ])
}

/// A pod, its proxy, its application and the world.
pub(crate) struct BenchPod {
    pub(crate) lab: Lab,
    pub(crate) app: Actor,
    pub(crate) proxy: Actor,
    pub(crate) root: Actor,
    pub(crate) world: Actor,
    pub(crate) watch: Watch,
    ports: Cell<u16>,
}

impl BenchPod {
    /// With every listener up.
    pub(crate) fn new() -> Self {
        let mut pod = Self::without_proxy();
        pod.start_proxy(true);
        pod
    }

    /// With application and outside world, and without listeners on the proxy's ports.
    pub(crate) fn without_proxy() -> Self {
        let lab = Lab::new();
        remora_testkit::answer_for_everyone(&lab.peer, WORLD);
        let actor = |(uid, gid)| Actor::new(&lab.pod, uid, gid);
        let mut pod = Self {
            app: actor(APP),
            proxy: actor(PROXY),
            root: Actor::root(&lab.pod),
            world: Actor::root(&lab.peer),
            watch: Watch::default(),
            ports: Cell::new(20_000),
            lab,
        };
        for any in any_addresses() {
            for port in APP_PORTS {
                pod.listen(false, "app", SocketAddr::new(any, port), false);
            }
            pod.udp(false, "app", SocketAddr::new(any, 53));
            pod.listen(true, "world", SocketAddr::new(any, WORLD), false);
            pod.udp(true, "world", SocketAddr::new(any, WORLD));
        }
        pod
    }

    /// Opens the proxy's ports.
    pub(crate) fn start_proxy(&mut self, transparent: bool) {
        for any in any_addresses() {
            self.listen(false, "out", SocketAddr::new(any, 15001), false);
            self.listen(false, "in", SocketAddr::new(any, 15006), transparent);
            self.listen(false, "dns", SocketAddr::new(any, 15053), false);
            // As the proxy's user, or the answers are not tracked with the queries; and on the loopback address
            // that queries are redirected to, or the answers leave from another one and stay untranslated.
            let loopback = if any.is_ipv4() {
                IpAddr::from([127, 0, 0, 1])
            } else {
                IpAddr::from([0u16, 0, 0, 0, 0, 0, 0, 1])
            };
            let at = SocketAddr::new(loopback, 15053);
            let socket = self.proxy.run(move || TcpOptions::default().udp(at));
            self.watch
                .udp("dns", socket.unwrap_or_else(|e| panic!("bind {at}: {e}")));
        }
    }

    /// Watches a listener that an actor opens.
    pub(crate) fn also_listen(&mut self, actor: &Actor, name: &str, at: SocketAddr) {
        let listener = actor.run(move || TcpOptions::default().listen(at));
        self.watch
            .tcp(name, listener.unwrap_or_else(|e| panic!("listen on {at}: {e}")));
    }

    fn listen(&mut self, outside: bool, name: &str, at: SocketAddr, transparent: bool) {
        let actor = if outside { &self.world } else { &self.root };
        let listener = actor.run(move || {
            TcpOptions {
                transparent,
                ..TcpOptions::default()
            }
            .listen(at)
        });
        self.watch
            .tcp(name, listener.unwrap_or_else(|e| panic!("listen on {at}: {e}")));
    }

    fn udp(&mut self, outside: bool, name: &str, at: SocketAddr) {
        let actor = if outside { &self.world } else { &self.root };
        let socket = actor.run(move || TcpOptions::default().udp(at));
        self.watch
            .udp(name, socket.unwrap_or_else(|e| panic!("bind {at}: {e}")));
    }

    /// Runs the command in the pod.
    pub(crate) fn install(&self, backend: Backend, flags: &[&str]) -> Outcome {
        self.try_install(backend, flags, &[])
            .unwrap_or_else(|error| panic!("{flags:?}: {error}"))
    }

    /// Runs the command in the pod, with environment variables.
    pub(crate) fn try_install(
        &self,
        backend: Backend,
        flags: &[&str],
        env: &[(&str, &str)],
    ) -> Result<Outcome, String> {
        let settings = settings(backend, flags, env)?;
        self.root.run(move || {
            let work = || -> Result<Outcome, install::InstallError> {
                if settings.cleanup_only {
                    return install::remove(&settings);
                }
                let plan = install::prepare(&settings)?.plan;
                install::install(&settings, &plan)
            };
            work().map_err(|error| chain(&error))
        })
    }

    /// Flips the switch.
    pub(crate) fn switch(&self, state: State) {
        self.root
            .run(move || install::switch(state))
            .unwrap_or_else(|error| panic!("{}", chain(&error)));
    }

    /// Connects and says where the connection arrived.
    pub(crate) fn connect(&self, from: &Actor, to: SocketAddr) -> Arrival {
        self.connect_with(from, to, TcpOptions::default())
    }

    /// A source port that no other connection of this pod has used.
    ///
    /// The kernel may choose the same source port for different destinations, and REDIRECT then makes these connections
    /// identical: a known problem (istio/istio#38982) that is not under test here.
    fn fresh(&self, to: SocketAddr, bind: Option<SocketAddr>) -> SocketAddr {
        self.ports.set(self.ports.get() + 1);
        let any = any_addresses()[usize::from(to.is_ipv6())];
        SocketAddr::new(bind.map_or(any, |address| address.ip()), self.ports.get())
    }

    /// Connects with options and says where the connection arrived.
    pub(crate) fn connect_with(&self, from: &Actor, to: SocketAddr, options: TcpOptions) -> Arrival {
        let options = TcpOptions {
            bind: Some(self.fresh(to, options.bind)),
            ..options
        };
        match from.run(move || options.connect(to, PATIENCE)) {
            Err(error) => Arrival::Failed(error.kind()),
            Ok(client) => {
                let seen = self
                    .watch
                    .next(PATIENCE)
                    .unwrap_or_else(|| panic!("nobody accepted {to}"));
                Arrival::at(seen, client)
            }
        }
    }

    /// Sends a datagram, says where it arrived, and checks that the answer comes back as if from there.
    pub(crate) fn query(&self, from: &Actor, to: SocketAddr) -> Option<String> {
        let bind = self.fresh(to, None);
        let socket = from.run(move || TcpOptions::default().udp(bind)).expect("socket");
        socket
            .send_to(b"query", to)
            .unwrap_or_else(|error| panic!("send to {to}: {error}"));
        let seen = self.watch.next(PATIENCE)?;
        let ready = readable(&[socket.as_fd()], PATIENCE).expect("poll");
        assert_eq!(ready, [true], "{to} gave no answer: {seen:?}");
        let (length, answered) = socket.recv_from(&mut [0; 64]).expect("answer");
        assert_eq!(
            (length, answered),
            (6, to),
            "the answer seems to come from whom was asked"
        );
        Some(seen.at)
    }

    /// Sends a datagram from an address and says where it arrived.
    pub(crate) fn query_from(&self, from: &Actor, bind: Option<IpAddr>, to: SocketAddr) -> Option<String> {
        let bind = self.fresh(to, bind.map(|ip| SocketAddr::new(ip, 0)));
        let sent = from.run(move || TcpOptions::default().udp(bind)?.send_to(b"query", to));
        sent.unwrap_or_else(|error| panic!("send to {to}: {error}"));
        self.watch.next(PATIENCE).map(|seen| seen.at)
    }
}

/// Settings for a run with a back end.
pub(crate) fn settings(backend: Backend, flags: &[&str], env: &[(&str, &str)]) -> Result<Settings, String> {
    let backend: &[&str] = match backend {
        Backend::Nftables => &["--backend", "nftables"],
        Backend::Iptables => &["--backend", "iptables"],
        Backend::IptablesNft => &["--force-iptables-binary", "nft"],
        Backend::IptablesLegacy => &["--force-iptables-binary", "legacy"],
    };
    let all: Vec<&str> = flags.iter().chain(backend).copied().collect();
    let given = parse_argv(&all).map_err(|error| error.to_string())?;
    let environment: Environment = env
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    Settings::read(&given, &environment).map_err(|error| error.to_string())
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

pub(crate) fn any_addresses() -> [IpAddr; 2] {
    [IpAddr::from([0, 0, 0, 0]), IpAddr::from([0u16; 8])]
}

/// Where a connection arrived.
pub(crate) enum Arrival {
    /// Nowhere.
    Failed(io::ErrorKind),
    /// At a listener.
    At {
        name: String,
        original: Option<SocketAddr>,
        from: SocketAddr,
        pair: remora_testkit::Pair,
    },
}

impl Arrival {
    fn at(seen: Seen, client: std::net::TcpStream) -> Self {
        let server = seen.stream.expect("a connection, not a datagram");
        let local = server.local_addr().expect("address");
        // The transparent listener sees the destination as its own address.
        let own_port = [15001, 15006, 15053, WORLD].contains(&local.port());
        let original = if own_port {
            original_destination(&server).ok()
        } else {
            Some(local)
        };
        Self::At {
            name: seen.at,
            original,
            from: seen.from,
            pair: remora_testkit::Pair { client, server },
        }
    }

    /// The name of the listener, or how it failed.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Failed(kind) => format!("{kind:?}"),
            Self::At { name, .. } => name.clone(),
        }
    }

    /// The connection.
    pub(crate) fn pair(self) -> remora_testkit::Pair {
        match self {
            Self::Failed(kind) => panic!("not connected: {kind:?}"),
            Self::At { pair, .. } => pair,
        }
    }
}
