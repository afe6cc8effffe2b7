//! What a container is to be, in the vocabulary of OCI's runtime specification.

use super::capability::Capabilities;
use crate::cgroup::Hierarchy;
use crate::sandbox::Sandbox;
use std::path::PathBuf;
use std::sync::Arc;

/// Everything about one container.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Unique on this machine; names directories, so letters, digits, `-`, `_` and `.` only.
    pub id: String,
    /// Its root file system.
    pub root: Root,
    /// Nothing in the root file system can be changed; mounts decide for themselves.
    pub readonly_root: bool,
    /// What is mounted, in order. A target that one of the usual mounts has (`/dev/shm`, say) replaces it.
    pub mounts: Vec<Mount>,
    /// The first process.
    pub process: Process,
    /// What it shares with the other containers of its pod.
    pub sandbox: Arc<Sandbox>,
    /// Limits; they take a place among the control groups.
    pub resources: Resources,
    /// Where control groups are made. `None`: limits are not enforced.
    pub cgroups: Option<Arc<Hierarchy>>,
    /// Which system calls it may make.
    pub seccomp: Seccomp,
    /// No masked paths, no read-only `/proc/sys` and `/sys`, all devices of the machine (k8s: `privileged`).
    pub privileged: bool,
    /// Where output goes.
    pub stdio: Stdio,
}

impl Spec {
    /// A container that runs `args` in `root` with nothing else decided.
    pub fn new(id: impl Into<String>, root: Root, args: &[&str], sandbox: Arc<Sandbox>) -> Self {
        Self {
            id: id.into(),
            root,
            readonly_root: false,
            mounts: Vec::new(),
            process: Process::new(args.iter().map(ToString::to_string).collect()),
            sandbox,
            resources: Resources::default(),
            cgroups: None,
            seccomp: Seccomp::default(),
            privileged: false,
            stdio: Stdio::default(),
        }
    }
}

/// Where the root file system comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// Layers below a directory that takes the changes.
    Overlay {
        /// Read-only directories, the topmost first.
        lower: Vec<PathBuf>,
        /// Takes the changes.
        upper: PathBuf,
        /// Empty, on the same file system as `upper`.
        work: PathBuf,
    },
    /// A directory as it is.
    Bind(PathBuf),
}

/// Something mounted into the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where in the container; made when it is not there. Links in it never lead out of the container.
    pub target: PathBuf,
    /// What.
    pub kind: MountKind,
    /// Nothing below can be changed.
    pub readonly: bool,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountKind {
    /// A file or directory of this machine, with everything mounted below it.
    Bind {
        /// Which.
        source: PathBuf,
        /// A path below `source`, made if it is missing. A link that leads out of `source` is an error (k8s: `subPath`).
        within: Option<PathBuf>,
    },
    /// Memory.
    Tmpfs {
        /// Bytes at most; half of the machine's memory if not given.
        size: Option<u64>,
        /// Permissions of its root.
        mode: u32,
    },
}

impl Mount {
    /// A file or directory of this machine.
    pub fn bind(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        Self {
            target: target.into(),
            kind: MountKind::Bind {
                source: source.into(),
                within: None,
            },
            readonly: false,
        }
    }

    /// Memory.
    pub fn tmpfs(target: impl Into<PathBuf>, size: Option<u64>) -> Self {
        Self {
            target: target.into(),
            kind: MountKind::Tmpfs { size, mode: 0o1777 },
            readonly: false,
        }
    }

    /// The same, read-only.
    #[must_use]
    pub fn readonly(mut self) -> Self {
        self.readonly = true;
        self
    }
}

/// A process to start in a container.
#[derive(Debug, Clone)]
pub struct Process {
    /// Program and arguments. A program without a slash is looked for in the `PATH` of `env`.
    pub args: Vec<String>,
    /// `NAME=value` pairs, in order. `HOME` is added from the container's `/etc/passwd` if it is not among them.
    pub env: Vec<(String, String)>,
    /// Made when it is not there.
    pub cwd: PathBuf,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// What it may do beyond an ordinary user; root without them is an ordinary user too.
    pub capabilities: Capabilities,
    /// No program it executes gains privileges (k8s: `allowPrivilegeEscalation: false`).
    pub no_new_privileges: bool,
    /// Limits of the process.
    pub rlimits: Vec<Rlimit>,
    /// How willingly the kernel kills it when memory is short, -1000 to 1000. Not below our own unless we are privileged.
    pub oom_score_adj: Option<i32>,
}

impl Process {
    /// `args` as root with the usual capabilities.
    pub fn new(args: Vec<String>) -> Self {
        Self {
            args,
            env: Vec::new(),
            cwd: PathBuf::from("/"),
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            capabilities: Capabilities::default(),
            no_new_privileges: false,
            rlimits: Vec::new(),
            oom_score_adj: None,
        }
    }
}

/// A limit of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rlimit {
    /// Of what.
    pub kind: RlimitKind,
    /// In force.
    pub soft: u64,
    /// How far the process may raise it.
    pub hard: u64,
}

/// What a process may use only so much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RlimitKind {
    /// Open files.
    OpenFiles,
    /// Processes of the user.
    Processes,
    /// Bytes of a core dump.
    Core,
    /// Locked memory.
    LockedMemory,
}

/// Limits of a container as a whole. What is not given is not limited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// Bytes of memory; beyond it the kernel kills.
    pub memory: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_limit: Option<u64>,
    /// Weight against others in thousandths of a processor (k8s: `requests.cpu`).
    pub cpu_request: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// Which system calls a container may make.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// All.
    #[default]
    Unconfined,
    /// Those programs normally need (k8s: `RuntimeDefault`).
    RuntimeDefault,
    /// What a profile in the JSON form of container runtimes says (k8s: `Localhost`).
    Profile(String),
}

/// Where the output of a process goes. Input is empty unless it says otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stdio {
    /// Nowhere.
    #[default]
    Null,
    /// To pipes, which the container hands out.
    Pipe,
    /// Where the output of this process goes.
    Inherit,
    /// To pipes, and input comes from one.
    Interactive,
    /// To a terminal of the container's own, from which input comes too. It has its size before the program looks.
    Terminal {
        /// Lines.
        rows: u16,
        /// Characters in a line.
        columns: u16,
    },
}
