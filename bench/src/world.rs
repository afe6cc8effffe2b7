//! Two pods with Istio's capture rules, a place for a control plane, and the application.

use crate::{origin, place};
use remora_net::Namespace;
use remora_testkit::{Actor, Lab};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;

/// The user whose traffic is not captured.
pub const PROXY: u32 = 1337;
/// The user of applications.
pub const APP: u32 = 1000;
/// The client's address.
pub const CLIENT: &str = "10.1.0.2";
/// The server's.
pub const SERVER: &str = "10.1.0.1";
/// The control plane's.
pub const CONTROL: &str = "10.2.0.1";

/// Everything that stays between measurements.
pub struct World {
    /// The namespaces: `pod` is the client's, `peer` the server's.
    pub lab: Lab,
    /// Where a control plane may run.
    pub elsewhere: Namespace,
    /// Files of the run.
    pub directory: tempfile::TempDir,
    /// Bytes the application swallowed.
    pub swallowed: Arc<AtomicU64>,
    /// Whether everything goes ahead of other programs.
    pub realtime: bool,
}

impl World {
    /// Makes it. `remora` writes the capture rules.
    pub fn new(remora: &Path, realtime: bool) -> Self {
        let lab = Lab::new();
        let (elsewhere, _) = lab.attach("eth1", 2);
        remora_testkit::forwarding(&lab.pod);
        for namespace in [&lab.pod, &lab.peer] {
            capture(namespace, remora);
            tune(namespace);
        }
        tune(&elsewhere);
        let directory = tempfile::tempdir().expect("temporary directory");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).expect("permissions");
        let world = Self {
            lab,
            elsewhere,
            directory,
            swallowed: Arc::default(),
            realtime,
        };
        world.application();
        world
    }

    fn application(&self) {
        let (ready, started) = channel();
        let (namespace, swallowed, realtime) =
            (self.lab.peer.clone(), Arc::clone(&self.swallowed), self.realtime);
        std::thread::spawn(move || {
            namespace.enter().expect("enter a namespace");
            place::here(place::LOAD, realtime);
            remora_net::privilege::become_user(APP, APP).expect("become another user");
            origin::serve(swallowed, || ready.send(()).expect("started"));
        });
        started.recv().expect("the application starts");
    }

    /// Runs a load in the client's pod.
    pub fn load<T: Send + 'static>(&self, uid: u32, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (namespace, realtime) = (self.lab.pod.clone(), self.realtime);
        let thread = std::thread::spawn(move || {
            prepare(&namespace, uid, realtime);
            work()
        });
        thread.join().expect("the load ends")
    }

    /// What a thread of a load does first.
    pub fn preparation(&self, uid: u32) -> impl Fn() + Send + Sync + Clone + use<> + 'static {
        let (namespace, realtime) = (self.lab.pod.clone(), self.realtime);
        move || prepare(&namespace, uid, realtime)
    }

    /// What the programs said.
    pub fn words(&self) -> String {
        let files = std::fs::read_dir(self.directory.path())
            .into_iter()
            .flatten()
            .flatten();
        let logs = files.filter(|file| file.path().extension().is_some_and(|end| end == "log"));
        logs.map(|log| {
            let text = std::fs::read_to_string(log.path()).unwrap_or_default();
            format!("{}:\n{text}\n", log.path().display())
        })
        .collect()
    }

    /// A path for files of the run.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file of the run and gives its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).expect("directory");
        }
        // At once: whoever reads it meanwhile must not see half of it.
        let fresh = path.with_added_extension("new");
        std::fs::write(&fresh, text).expect("file");
        std::fs::rename(&fresh, &path).expect("file");
        path
    }
}

fn prepare(namespace: &Namespace, uid: u32, realtime: bool) {
    namespace.enter().expect("enter a namespace");
    place::here(place::LOAD, realtime);
    remora_net::privilege::become_user(uid, uid).expect("become another user");
}

/// An address of the server.
pub fn server(port: u16) -> SocketAddr {
    SocketAddr::new(SERVER.parse().expect("address"), port)
}

/// As in a pod; the ports without a proxy are left out on the way in.
fn capture(namespace: &Namespace, remora: &Path) {
    let remora = remora.to_owned();
    Actor::root(namespace).run(move || {
        let done = Command::new(&remora)
            .args([
                "istio-iptables",
                "-p",
                "15001",
                "-z",
                "15006",
                "-u",
                "1337",
                "-g",
                "1337",
            ])
            .args(["-m", "REDIRECT", "-i", "*", "-b", "*"])
            .args(["-d", "15012,15020,15021,15090,8081,5202,17000,17001"])
            .stdout(Stdio::null())
            .status();
        assert!(
            done.is_ok_and(|status| status.success()),
            "{} istio-iptables failed",
            remora.display()
        );
    });
}

/// The same for everybody: no pacing, and enough ports for one connection after the other.
fn tune(namespace: &Namespace) {
    Actor::root(namespace).run(|| {
        for (name, value) in [
            ("tcp_congestion_control", "reno"),
            ("ip_local_port_range", "20000 65000"),
            ("tcp_tw_reuse", "1"),
        ] {
            let path = format!("/proc/sys/net/ipv4/{name}");
            std::fs::write(&path, value).unwrap_or_else(|error| panic!("write {path}: {error}"));
        }
    });
}
