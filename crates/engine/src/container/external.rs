//! Containers by another runtime: `runc`, `crun`, or whatever takes an OCI bundle.
//!
//! A bundle is written from the same [`Spec`]. The runtime is started in a mount namespace of its own, in which the
//! root file system is mounted, so that nothing is left of it afterwards; it stays as our child, ends as the container
//! does, and cleans up behind it. The container's own first process is what signals go to and what the guard knows.
//! What is left all the same, because we were killed before the guard knew it, is found by [`remove`].
//!
//! Slower than the own runner by an order of magnitude; for people who want it, and to compare with.

mod config;
mod remains;

pub use remains::{RemainsError, remove};

use super::plan::{First, Plan, runtime};
use super::process::{self, Child, Output};
use super::{Container, Process, Spec, StartError, Stdio, spawner};
use crate::sys;
use crate::sys::guard::Ticket;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Where a bundle lies in a container's own directory.
pub(crate) const BUNDLE: &str = "bundle";
/// The file in a bundle that names the runtime, for those who find it after our end.
const RUNTIME: &str = "runtime";
/// The runtime's own directory in a bundle.
const STATE: &str = "state";

/// How long a runtime may take, and how often to look.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(2);

/// Where a container of another runtime is kept.
#[derive(Debug)]
pub(super) struct Bundle {
    runtime: PathBuf,
    dir: PathBuf,
    id: String,
    /// Numbers for the files of further processes.
    count: AtomicU32,
}

/// A process that another runtime started for us.
#[derive(Debug)]
pub(super) struct Foreign {
    pub(super) bundle: Arc<Bundle>,
    pub(super) pid: u32,
    /// Before the descriptor it names, so that it goes first.
    _ticket: Option<Ticket>,
    /// `None`: it had ended before we could look.
    pidfd: Option<OwnedFd>,
}

impl Foreign {
    pub(super) fn first(&self) -> Option<First<'_>> {
        let pidfd = self.pidfd.as_ref()?.as_fd();
        Some(First {
            pid: self.pid,
            pidfd,
            group: None,
        })
    }

    pub(super) fn signal(&self, signal: i32) -> io::Result<()> {
        let Some(pidfd) = &self.pidfd else {
            return Ok(());
        };
        match sys::pidfd_signal(pidfd.as_fd(), signal) {
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other,
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // Fails only for a process that is gone already. The runtime notices, and ends.
        let _ = self.signal(libc::SIGKILL);
    }
}

/// A descriptor of a process, if it is still the child of `parent`: a number alone may be somebody else's by now.
fn open_child(pid: u32, parent: u32) -> Option<OwnedFd> {
    let pidfd = sys::pidfd_open(pid.cast_signed()).ok()?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may contain anything, come the state and the parent.
    let (_, rest) = stat.rsplit_once(')')?;
    let above: u32 = rest.split_whitespace().nth(1)?.parse().ok()?;
    (above == parent).then_some(pidfd)
}

/// Starts a container with `runtime`; the bundle and the runtime's state go below `dir`, which is made.
pub async fn start(spec: &Spec, runtime_path: &Path, dir: &Path) -> Result<Container, StartError> {
    let failed = |step: &str| {
        let (id, step) = (spec.id.clone(), format!("{step} in {}", dir.display()));
        move |source| StartError::Step { id, step, source }
    };
    std::fs::create_dir_all(dir.join("rootfs")).map_err(failed("make the bundle"))?;
    let (document, held) = config::container(spec)?;
    std::fs::write(dir.join("config.json"), document.to_string()).map_err(failed("write config.json"))?;
    std::fs::write(dir.join(RUNTIME), runtime_path.as_os_str().as_bytes())
        .map_err(failed("write the runtime's name"))?;
    let bundle = Arc::new(Bundle {
        runtime: runtime_path.to_owned(),
        dir: dir.to_owned(),
        id: spec.id.clone(),
        count: AtomicU32::new(0),
    });
    let words = ["run", "--bundle", &dir.display().to_string()].map(String::from);
    let (child, output, foreign) = bundle.launch(&words, Some(spec), spec.stdio).await?;
    drop(held);
    Ok(Container::new(spec.into(), child, output, Some(foreign)))
}

impl Bundle {
    /// A further process in the container.
    pub(super) async fn exec(
        self: &Arc<Self>,
        process: &Process,
        stdio: Stdio,
    ) -> Result<(Child, Output, Foreign), StartError> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let file = self.dir.join(format!("process-{number}.json"));
        std::fs::write(&file, config::process(process).to_string()).map_err(|source| StartError::Step {
            id: self.id.clone(),
            step: format!("write {}", file.display()),
            source,
        })?;
        let words = ["exec", "--process", &file.display().to_string()].map(String::from);
        self.launch(&words, None, stdio).await
    }

    /// Runs the runtime until it says that the process is there.
    async fn launch(
        self: &Arc<Self>,
        words: &[String],
        root_of: Option<&Spec>,
        stdio: Stdio,
    ) -> Result<(Child, Output, Foreign), StartError> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let (pid_file, log) = (
            self.dir.join(format!("pid-{number}")),
            self.dir.join(format!("log-{number}")),
        );
        let path = |path: &Path| path.display().to_string();
        let mut args = vec![path(&self.runtime), "--root".into(), path(&self.dir.join(STATE))];
        args.extend(["--log".into(), path(&log), "--log-format".into(), "json".into()]);
        args.extend_from_slice(words);
        args.extend(["--pid-file".into(), path(&pid_file), self.id.clone()]);
        let plan: Plan = runtime(
            &self.id,
            root_of.map(|spec| (spec, self.dir.join("rootfs"))),
            args,
        )?;
        let (mut child, output) = process::start(&self.id, plan, stdio).await?;
        child.let_finish();
        let pid = self.first_process(&child, &pid_file, &log).await?;
        let pidfd = open_child(pid, child.pid());
        let foreign = Foreign {
            bundle: Arc::clone(self),
            pid,
            _ticket: pidfd
                .as_ref()
                .and_then(|fd| spawner::guard().map(|guard| guard.watch(fd.as_fd()))),
            pidfd,
        };
        Ok((child, output, foreign))
    }

    async fn first_process(&self, child: &Child, pid_file: &Path, log: &Path) -> Result<u32, StartError> {
        let looked = async {
            loop {
                // Written by a rename: what is there is whole.
                let text = std::fs::read_to_string(pid_file).unwrap_or_default();
                if let Ok(pid) = text.trim().parse() {
                    return Ok(pid);
                }
                if child.has_ended() {
                    return Err(self.refused(log));
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        match tokio::time::timeout(PATIENCE, looked).await {
            Ok(pid) => pid,
            Err(_) => Err(StartError::Timeout {
                id: self.id.clone(),
                seconds: PATIENCE.as_secs(),
            }),
        }
    }

    /// What the runtime wrote into its log.
    fn refused(&self, log: &Path) -> StartError {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let mut messages = text.lines().filter_map(|line| {
            let value: serde_json::Value = serde_json::from_str(line).ok()?;
            let wanted = value.get("level").and_then(|l| l.as_str()) == Some("error");
            let message = value.get("msg").and_then(|m| m.as_str()).map(str::to_owned);
            message.filter(|_| wanted)
        });
        let why = messages
            .next_back()
            .unwrap_or_else(|| "it ended without a word".to_owned());
        StartError::Step {
            id: self.id.clone(),
            step: format!("start with {}", self.runtime.display()),
            source: io::Error::other(why),
        }
    }
}
