//! What the containers of a pod share: a network, IPC and UTS namespace, and if wanted the processes.
//!
//! Namespaces are held by descriptors, so that no process has to wait in them. Only shared processes need one: the
//! first of a pid namespace, which collects orphans and whose end is the end of all.

use crate::container::StartError;
use crate::container::process::{Child, start_init};
use crate::sys;
use crate::users::UserNamespace;
use remora_net::Namespace;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which namespaces a pod has of its own.
#[derive(Debug, Clone, Default)]
pub struct SandboxSpec {
    /// Name of the machine as the pod sees it. `None` leaves the machine's own name (k8s: `hostNetwork`).
    pub hostname: Option<String>,
    /// The network. `None` is this machine's.
    pub network: Option<Namespace>,
    /// Shares System V IPC and message queues with this machine (k8s: `hostIPC`).
    pub host_ipc: bool,
    /// Whose processes the containers see.
    pub processes: Processes,
    /// Settings of the pod's own namespaces, like `net.ipv4.ip_unprivileged_port_start`. Others are refused.
    pub sysctls: Vec<(String, String)>,
    /// Users of its own, which have the name and the settings of the ipc namespace already. `network` is then theirs.
    pub users: Option<Arc<UserNamespace>>,
}

/// Whose processes a container sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Processes {
    /// Its own.
    #[default]
    Container,
    /// Those of its pod (k8s: `shareProcessNamespace`).
    Pod,
    /// Those of this machine (k8s: `hostPID`).
    Host,
}

/// Namespaces made for a pod. They live as long as this value or a process in them.
#[derive(Debug)]
pub struct Sandbox {
    network: Option<Namespace>,
    host_ipc: bool,
    /// (kind, descriptor) of what is joined besides the network.
    others: Vec<(i32, Arc<OwnedFd>)>,
    processes: Processes,
    init: Option<(Child, Arc<OwnedFd>)>,
    users: Option<Arc<UserNamespace>>,
}

impl Sandbox {
    /// Makes what `spec` asks for.
    pub async fn create(spec: &SandboxSpec) -> Result<Arc<Self>, StartError> {
        for (name, _) in &spec.sysctls {
            if !is_of_pod(name, spec) {
                return Err(StartError::Sysctl { name: name.clone() });
            }
        }
        if spec.users.is_some()
            && (spec.host_ipc || spec.network.is_none() || spec.processes == Processes::Host)
        {
            let why = "a pod with users of its own has no namespace of the machine";
            let source = io::Error::new(io::ErrorKind::InvalidInput, why);
            return Err(StartError::Sandbox { source });
        }
        let others = make_namespaces(spec).map_err(|source| StartError::Sandbox { source })?;
        let init = if spec.processes == Processes::Pod {
            let child = start_init(spec.users.as_deref()).await?;
            let namespace = File::open(format!("/proc/{}/ns/pid", child.pid()))
                .map_err(|source| StartError::Sandbox { source })?;
            Some((child, Arc::new(namespace.into())))
        } else {
            None
        };
        Ok(Arc::new(Self {
            network: spec.network.clone(),
            host_ipc: spec.host_ipc,
            others,
            processes: spec.processes,
            init,
            users: spec.users.clone(),
        }))
    }

    /// The network of the pod; `None` is this machine's.
    pub fn network(&self) -> Option<&Namespace> {
        self.network.as_ref()
    }

    /// Users of its own; `None`: the machine's, or those of this process.
    pub fn users(&self) -> Option<&Arc<UserNamespace>> {
        self.users.as_ref()
    }

    pub(crate) fn has_own_ipc(&self) -> bool {
        !self.host_ipc
    }

    pub(crate) fn processes(&self) -> Processes {
        self.processes
    }

    /// What a process joins: (kind, descriptor).
    pub(crate) fn joined(&self) -> Vec<(i32, RawFd)> {
        let network = self.network.iter();
        let network = network.map(|n| (libc::CLONE_NEWNET, n.as_fd().as_raw_fd()));
        let others = self.others.iter().map(|(kind, fd)| (*kind, fd.as_raw_fd()));
        network.chain(others).collect()
    }

    /// The pid namespace of the pod, if its containers share one.
    pub(crate) fn pid_namespace(&self) -> Option<RawFd> {
        self.init.as_ref().map(|(_, fd)| fd.as_raw_fd())
    }
}

/// Whether a setting belongs to a namespace the pod has of its own; any other would change the whole machine.
fn is_of_pod(name: &str, spec: &SandboxSpec) -> bool {
    let plain = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/'));
    if !plain || name.contains("..") {
        return false;
    }
    let network = name.starts_with("net.") && spec.network.is_some();
    network || (is_of_ipc(name) && !spec.host_ipc)
}

/// Whether a setting is one of the ipc namespace.
pub(crate) fn is_of_ipc(name: &str) -> bool {
    let prefixes = ["kernel.shm", "kernel.msg", "fs.mqueue."];
    let plain = !name.contains("..") && !name.contains('/');
    plain && (prefixes.iter().any(|prefix| name.starts_with(prefix)) || name == "kernel.sem")
}

/// Where a setting is.
pub(crate) fn sysctl_path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name.replace('.', "/"))
}

/// Sets one, in the namespaces of the calling thread and the pod's network.
fn set_sysctl(spec: &SandboxSpec, name: &str, value: &str) -> io::Result<()> {
    let path = sysctl_path(name);
    let write = || {
        let done = std::fs::write(&path, value);
        done.map_err(|e| io::Error::new(e.kind(), format!("set {name} to {value}: {e}")))
    };
    match &spec.network {
        Some(network) if name.starts_with("net.") => network.run(write)?,
        _ => write(),
    }
}

/// On a thread of its own, which ends with the work: namespaces belong to threads.
fn make_namespaces(spec: &SandboxSpec) -> io::Result<Vec<(i32, Arc<OwnedFd>)>> {
    if let Some(users) = &spec.users {
        for (name, value) in spec.sysctls.iter().filter(|(name, _)| !is_of_ipc(name)) {
            set_sysctl(spec, name, value)?;
        }
        return Ok(users.others());
    }
    let mut kinds = Vec::new();
    if spec.hostname.is_some() {
        kinds.push((libc::CLONE_NEWUTS, "uts"));
    }
    if !spec.host_ipc {
        kinds.push((libc::CLONE_NEWIPC, "ipc"));
    }
    let work = || {
        sys::unshare(kinds.iter().fold(0, |all, (kind, _)| all | kind))?;
        if let Some(name) = &spec.hostname {
            sys::set_hostname(name)?;
        }
        for (name, value) in &spec.sysctls {
            set_sysctl(spec, name, value)?;
        }
        let open = |(kind, name): &(i32, &str)| {
            let file = File::open(format!("/proc/thread-self/ns/{name}"))?;
            Ok((*kind, Arc::new(OwnedFd::from(file))))
        };
        kinds.iter().map(open).collect()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("sandbox".into());
        let done = thread.spawn_scoped(scope, work)?.join();
        done.map_err(|_| io::Error::other("the thread that makes namespaces died"))?
    })
}
