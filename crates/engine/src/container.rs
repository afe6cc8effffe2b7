//! Containers: one process in namespaces of its own, started from a [`Spec`].
//!
//! [`start`] prepares every step beforehand, clones, and returns when the program has been executed or a step failed;
//! the error names the step. No thread of this process ever changes its namespaces, root or user, so it works from
//! any runtime with any number of threads. A container ends at the latest when its [`Container`] is dropped, and
//! with this process whatever happens to that.
//!
//! Not here: images (see `image`), restarts.

pub mod capability;
pub mod external;
pub(crate) mod plan;
pub(crate) mod process;
mod spawner;
mod spec;
pub(crate) mod terminal;
mod young;

pub use capability::Capabilities;
pub use process::Exit;
pub use spec::{Mount, MountKind, Process, Resources, Rlimit, RlimitKind, Root, Seccomp, Spec, Stdio};

use crate::sandbox::Sandbox;
use external::Foreign;
use process::Child;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::unix::pipe::{Receiver, Sender};

/// Why a container, or a process in one, did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What is asked for makes no sense.
    #[error("container {id}: {why}")]
    Invalid {
        /// The container.
        id: String,
        /// What is wrong.
        why: String,
    },
    /// A step on the way failed.
    #[error("container {id}: {step}")]
    Step {
        /// The container.
        id: String,
        /// What was being done.
        step: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// No process could be made.
    #[error("container {id}: make a process")]
    Clone {
        /// The container.
        id: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The filter of system calls makes no sense.
    #[error("container {id}: prepare the filter of system calls")]
    Seccomp {
        /// The container.
        id: String,
        /// Why not.
        #[source]
        source: crate::seccomp::SeccompError,
    },
    /// The steps did not come to an end.
    #[error("container {id}: not started after {seconds} s")]
    Timeout {
        /// The container.
        id: String,
        /// How long was waited.
        seconds: u64,
    },
    /// A setting that would hold for the whole machine (k8s: `SysctlForbidden`).
    #[error("sysctl {name} is not a setting of the pod's own namespaces")]
    Sysctl {
        /// Which.
        name: String,
    },
    /// The pod's namespaces could not be made.
    #[error("make the namespaces of a pod")]
    Sandbox {
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl StartError {
    /// A `subPath` of a volume cannot be mounted.
    // k8s: the kubelet reports that as CreateContainerConfigError, before it asks the runtime.
    pub fn is_sub_path(&self) -> bool {
        let wanted = format!(": {} ", plan::files::SUB_PATH);
        matches!(self, Self::Step { step, .. } if step.contains(&wanted))
    }

    /// What a person can do about it, if anything.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Step { step, source, .. } if step.starts_with("execute ") => match source.raw_os_error() {
                Some(libc::ENOENT) => Some("the program, or the interpreter it names, is not in the image"),
                Some(libc::ENOEXEC) => Some("the program is for another machine, or a script without #!"),
                Some(libc::EACCES) => Some("the file is not executable for the container's user"),
                _ => None,
            },
            Self::Step { step, .. } if step.starts_with(plan::kernel::OF_IMAGE) => Some(
                "the image must have a real directory there, or nothing: a link could lead the mount elsewhere",
            ),
            Self::Step { source, .. }
                if self.is_sub_path() && matches!(source.raw_os_error(), Some(libc::EXDEV | libc::ELOOP)) =>
            {
                Some("a link in the volume leads out of the volume")
            }
            Self::Step { step, source, .. }
                if step.starts_with("become ") && source.raw_os_error() == Some(libc::EINVAL) =>
            {
                Some(
                    "this user namespace has no such id: install newuidmap (package uidmap) and list the user in /etc/subuid and /etc/subgid, or run as root",
                )
            }
            Self::Clone { source, .. } | Self::Sandbox { source }
                if source.raw_os_error() == Some(libc::EPERM) =>
            {
                Some("needs root, or a user namespace with subordinate ids")
            }
            _ => None,
        }
    }
}

/// A running, or ended, process in namespaces. Dropping it kills it.
#[derive(Debug)]
pub struct Container {
    id: String,
    /// Goes before the child: then another runtime sees its process end, and can clean up.
    foreign: Option<Foreign>,
    child: Child,
    started: Instant,
    sandbox: Arc<Sandbox>,
    seccomp: Seccomp,
    /// What the process writes, when [`Stdio::Pipe`] was asked for; yours to take.
    pub stdout: Option<Receiver>,
    /// What the process complains about; yours to take.
    pub stderr: Option<Receiver>,
    /// Where the process reads from, when [`Stdio::Interactive`] was asked for; yours to take.
    pub stdin: Option<Sender>,
    /// The other side of the process's terminal, when [`Stdio::Terminal`] was asked for; yours to take.
    pub terminal: Option<OwnedFd>,
}

/// Starts a container; returns when its program has been executed.
pub async fn start(spec: &Spec) -> Result<Container, StartError> {
    let plan = plan::container(spec)?;
    let (child, output) = process::start(&spec.id, plan, spec.stdio).await?;
    Ok(Container::new(spec.into(), child, output, None))
}

/// What a process has in common with its container.
#[derive(Clone, Copy)]
struct Kin<'a> {
    id: &'a str,
    sandbox: &'a Arc<Sandbox>,
    seccomp: &'a Seccomp,
}

impl<'a> From<&'a Spec> for Kin<'a> {
    fn from(spec: &'a Spec) -> Self {
        Self {
            id: &spec.id,
            sandbox: &spec.sandbox,
            seccomp: &spec.seccomp,
        }
    }
}

impl Container {
    /// As in the spec.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The pid of its first process as this process sees it.
    pub fn pid(&self) -> u32 {
        self.foreign
            .as_ref()
            .map_or(self.child.pid(), |foreign| foreign.pid)
    }

    /// Waits for the end; may be called again and from several places.
    pub async fn wait(&self) -> io::Result<Exit> {
        self.child.wait().await
    }

    /// Sends a signal to the first process. It is no error if that has ended.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        match &self.foreign {
            Some(foreign) => foreign.signal(signal),
            None => self.child.signal(signal),
        }
    }

    /// A process that was just started; `foreign` if another runtime did it.
    fn new(kin: Kin<'_>, child: Child, output: process::Output, foreign: Option<Foreign>) -> Self {
        Self {
            id: kin.id.to_owned(),
            foreign,
            child,
            started: Instant::now(),
            sandbox: Arc::clone(kin.sandbox),
            seccomp: kin.seccomp.clone(),
            stdout: output.stdout,
            stderr: output.stderr,
            stdin: output.stdin,
            terminal: output.terminal,
        }
    }

    /// The first process, by whomever it was started.
    fn first(&self) -> Result<plan::First<'_>, StartError> {
        let own = plan::First {
            pid: self.child.pid(),
            pidfd: self.child.fd(),
            group: self.child.group(),
        };
        let ended = || StartError::Invalid {
            id: self.id.clone(),
            why: "its first process has ended".to_owned(),
        };
        match &self.foreign {
            Some(foreign) => foreign.first().ok_or_else(ended),
            None => Ok(own),
        }
    }

    /// Starts a further process in the container; it has the container's namespaces, limits and filters.
    pub async fn exec(&self, process: &Process, stdio: Stdio) -> Result<Container, StartError> {
        let (child, output, foreign) = match &self.foreign {
            // A terminal is our own work: a runtime would make one and hand it over on a socket.
            Some(known) if !matches!(stdio, Stdio::Terminal { .. }) => {
                let (child, output, foreign) = known.bundle.exec(process, stdio).await?;
                (child, output, Some(foreign))
            }
            _ => {
                let plan = plan::further(&self.id, self.first()?, &self.sandbox, process, &self.seccomp)?;
                let (child, output) = process::start(&self.id, plan, stdio).await?;
                (child, output, None)
            }
        };
        let kin = Kin {
            id: &self.id,
            sandbox: &self.sandbox,
            seccomp: &self.seccomp,
        };
        Ok(Self::new(kin, child, output, foreign))
    }
}
