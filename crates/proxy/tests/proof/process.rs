//! A proxy in a process of its own: it can be killed, starved and measured.

use crate::peer::Server;
use crate::scene::{Lessons, MESH, PATIENCE, PROXY, Sockets, capture, identity_files};
use remora_mtls::{Authority, Chain, Credentials, Identity, PrivateKey, Roots, SpiffeId, TrustDomains};
use remora_net::{Namespace, privilege};
use remora_proxy::{Context, Limits, Settings, serve};
use remora_testkit::Lab;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// Begins the lines the process says, between those of the test harness.
const MARK: &str = "@ ";

/// A running proxy; killed with the value.
pub(crate) struct Process {
    child: Child,
    orders: ChildStdin,
    said: Mutex<Receiver<String>>,
    directory: TempDir,
}

impl Process {
    /// In a pod, as an account. `limits` is what the shell is told first, such as `ulimit -n 64`.
    pub(crate) fn start(namespace: &Namespace, authority: &Authority, account: &str, limits: &str) -> Self {
        let directory = identity_files(authority, account);
        let inside = namespace.clone();
        let script = format!(r#"{limits} exec "$0" "$@""#);
        let child = std::thread::spawn(move || {
            inside.enter().unwrap();
            Command::new("sh")
                .args(["-c", &script])
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", "process::serve_until_told", "--ignored", "--nocapture"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        });
        let mut child = child.join().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (say, said) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The harness does not end its line before a test's output.
                if let Some((_, word)) = line.split_once(MARK) {
                    let _ = say.send(word.to_owned());
                }
            }
        });
        let orders = child.stdin.take().unwrap();
        let mut process = Self {
            child,
            orders,
            said: Mutex::new(said),
            directory,
        };
        let path = process.directory.path().display().to_string();
        process.order(&path, "serving");
        process
    }

    fn order(&mut self, order: &str, answer: &str) {
        writeln!(self.orders, "{order}").unwrap();
        assert_eq!(
            self.said.get_mut().unwrap().recv_timeout(PATIENCE).unwrap(),
            answer
        );
    }

    pub(crate) fn learn(&mut self, mesh: &str) {
        std::fs::write(self.directory.path().join("mesh.yaml"), mesh).unwrap();
        self.order("learn", "learned");
    }

    /// As `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Bytes of its own that are in memory.
    pub(crate) fn memory(&self) -> usize {
        let status = self.proc("status");
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        let kilobytes = line.split_whitespace().nth(1).unwrap();
        kilobytes.parse::<usize>().unwrap() << 10
    }

    /// The processor time it has used.
    pub(crate) fn busy(&self) -> Duration {
        let stat = self.proc("stat");
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let field = |number: usize| {
            fields
                .split_whitespace()
                .nth(number)
                .unwrap()
                .parse::<u64>()
                .unwrap()
        };
        // Hundredths of a second in the program and in the kernel.
        Duration::from_millis(10 * (field(11) + field(12)))
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two pods whose proxies are processes.
pub(crate) struct Pods {
    pub(crate) lab: Lab,
    pub(crate) authority: Authority,
    pub(crate) client: Process,
    pub(crate) server: Process,
}

impl Pods {
    pub(crate) fn new() -> Self {
        Self::limited("", "")
    }

    /// The shell is told these before the proxies start.
    pub(crate) fn limited(client: &str, server: &str) -> Self {
        privilege::raise_descriptor_limit().unwrap();
        let lab = Lab::new();
        capture(&lab.pod);
        capture(&lab.peer);
        let authority = Authority::generate("test", SystemTime::now(), Duration::from_hours(10)).unwrap();
        let mut pods = Self {
            client: Process::start(&lab.pod, &authority, "web", client),
            server: Process::start(&lab.peer, &authority, "cart", server),
            lab,
            authority,
        };
        pods.client.learn(MESH);
        pods.server.learn(MESH);
        pods
    }

    /// The server's application, on port 8080 of both families.
    pub(crate) fn serve<F: Future<Output = ()> + 'static>(
        &self,
        behaviour: impl Fn(TcpStream) -> F + Send + Clone + 'static,
    ) -> [Server; 2] {
        ["0.0.0.0:8080", "[::]:8080"]
            .map(|at| Server::start(&self.lab.peer, at.parse().unwrap(), behaviour.clone()))
    }
}

fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{word}").unwrap();
    out.flush().unwrap();
}

fn read_identity(directory: &Path) -> Identity {
    let text = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    let key = PrivateKey::from_pem(&text("key.pem")).unwrap();
    let chain = Chain::from_pem(&text("chain.pem")).unwrap();
    let id: SpiffeId = chain.id().clone();
    let roots = Roots::from_pem(&text("roots.pem")).unwrap();
    let credentials = Credentials::new(&key, chain, roots, &id, SystemTime::now()).unwrap();
    Identity::new(TrustDomains::new::<&str>("td", &[]).unwrap(), credentials).unwrap()
}

#[test]
#[ignore = "not a test but the proxy that tests start as a process of its own"]
fn serve_until_told() {
    let mut orders = BufReader::new(std::io::stdin()).lines().map_while(Result::ok);
    let Some(directory) = orders.next() else { return };
    let identity = Arc::new(read_identity(Path::new(&directory)));
    let sockets = Sockets::bind(&Namespace::current().unwrap());
    privilege::become_user(PROXY, PROXY).unwrap();
    let lessons = Lessons::new();
    let settings = Settings {
        limits: Limits {
            discovery: Duration::from_millis(300),
            ..Limits::default()
        },
        ..Settings::default()
    };
    let ctx = Arc::new(Context::new(
        identity,
        Arc::clone(&lessons.mesh),
        settings,
        |_| (),
    ));
    let (stop, told) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        say("serving");
        for order in orders {
            assert_eq!(order, "learn");
            lessons.learn(&std::fs::read_to_string(format!("{directory}/mesh.yaml")).unwrap());
            say("learned");
        }
        drop(stop);
    });
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        serve(ctx, sockets.listeners(), async { drop(told.await) }).await;
    });
}
