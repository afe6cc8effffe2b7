//! Containers without root: a user namespace for this whole process.
//!
//! [`acquire`] is called once, before any thread is started. Root stays root, with mounts of its own that nobody else
//! sees. Everybody else becomes root of a user namespace, with the ids `/etc/subuid` and `/etc/subgid` give to the user
//! where `newuidmap` is installed, with the user's own id alone otherwise. From then on the rest of this crate works as
//! it does for root; what it mounts is seen by nobody else.

mod ranges;

use crate::sys::{self, Launch, Op, op::Program};
use ranges::Range;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What this process may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privileges {
    /// Everything.
    Root,
    /// What a user namespace allows.
    UserNamespace {
        /// How many user ids it has. With one, containers can run as root of the namespace only.
        ids: u32,
    },
}

/// Why there are neither root nor user namespaces.
#[derive(Debug, thiserror::Error)]
pub enum RootlessError {
    /// The kernel says no.
    #[error("make a user namespace")]
    Unshare(#[source] io::Error),
    /// Ids could not be given to it.
    #[error("give ids to the user namespace: {what}")]
    Map {
        /// What was being done.
        what: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It is there but has no power.
    #[error("use the user namespace")]
    Powerless(#[source] io::Error),
}

impl RootlessError {
    /// What a person can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unshare(_) => {
                "run as root, or allow user namespaces: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1"
            }
            Self::Map { .. } => "check the user's lines in /etc/subuid and /etc/subgid, or run as root",
            Self::Powerless(_) => "run as root, or sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        }
    }
}

/// Where programs are looked for: they have the set-user-id bit, so no other place is to be trusted.
const PLACES: [&str; 3] = ["/usr/bin", "/bin", "/usr/local/bin"];

/// Has the power to run containers, by being root already or in a user namespace.
pub fn acquire() -> Result<Privileges, RootlessError> {
    if rustix::process::geteuid().is_root() && sys::own_capabilities() & SYS_ADMIN != 0 {
        sys::mount::keep_private().map_err(RootlessError::Powerless)?;
        return Ok(Privileges::Root);
    }
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mapped = match (find("newuidmap"), find("newgidmap")) {
        (Some(users), Some(groups)) => {
            let users = (users, range("/etc/subuid", &passwd, uid));
            let groups = (groups, range("/etc/subgid", &passwd, uid));
            Some((users, groups))
        }
        _ => None,
    };
    if let Some(((users, Some(user_range)), (groups, Some(group_range)))) = mapped {
        let users = Mapper::prepare(&users, uid, user_range)?;
        let groups = Mapper::prepare(&groups, gid, group_range)?;
        sys::unshare(libc::CLONE_NEWUSER).map_err(RootlessError::Unshare)?;
        users.run()?;
        groups.run()?;
        prove()?;
        return Ok(Privileges::UserNamespace {
            ids: user_range.count.saturating_add(1),
        });
    }
    sys::unshare(libc::CLONE_NEWUSER).map_err(RootlessError::Unshare)?;
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &format!("0 {uid} 1"))?;
    write("/proc/self/gid_map", &format!("0 {gid} 1"))?;
    prove()?;
    Ok(Privileges::UserNamespace { ids: 1 })
}

/// The capability everything here needs.
const SYS_ADMIN: u64 = 1 << 21;

fn find(name: &str) -> Option<PathBuf> {
    PLACES
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.is_file())
}

fn range(file: &str, passwd: &str, uid: u32) -> Option<Range> {
    let text = std::fs::read_to_string(file).ok()?;
    ranges::of_user(&text, passwd, uid)
}

fn write(path: &str, text: &str) -> Result<(), RootlessError> {
    std::fs::write(path, text).map_err(|source| RootlessError::Map {
        what: format!("write {path}"),
        source,
    })
}

/// Some systems let everybody make user namespaces and take their power away. A mount namespace of our own is
/// useful in any case: nothing we mount is seen outside.
fn prove() -> Result<(), RootlessError> {
    sys::unshare(libc::CLONE_NEWNS).map_err(RootlessError::Powerless)
}

/// A `newuidmap` or `newgidmap` outside of the namespace, waiting for its moment: inside, it would have no power.
struct Mapper {
    name: String,
    pidfd: OwnedFd,
    go: OwnedFd,
}

impl Mapper {
    fn prepare(program: &Path, own: u32, range: Range) -> Result<Self, RootlessError> {
        let name = program.display().to_string();
        let failed = |source| RootlessError::Map {
            what: format!("start {name}"),
            source,
        };
        let (wait, go) = sys::pipe().map_err(failed)?;
        let wait = Arc::new(wait);
        let pid = std::process::id();
        let words = format!("{pid} 0 {own} 1 1 {} {}", range.first, range.count);
        let words = words.split(' ').map(|w| CString::new(w).unwrap_or_default());
        let path = CString::new(program.as_os_str().as_bytes()).unwrap_or_default();
        let mut launch = Launch {
            // It holds a copy of the writing end, so nothing but our end can end its waiting.
            ops: vec![
                Op::ResetSignals,
                Op::DieWithParent { faults: -1 },
                Op::Await(wait.as_raw_fd()),
            ],
            program: Some(Program {
                candidates: vec![path.clone()],
                args: std::iter::once(path).chain(words).collect(),
                env: Vec::new(),
            }),
            held: vec![wait],
            ..Launch::default()
        };
        let born = sys::spawn(&mut launch, None).map_err(failed)?;
        Ok(Self {
            name: name.clone(),
            pidfd: born.pidfd,
            go,
        })
    }

    fn run(&self) -> Result<(), RootlessError> {
        let failed = |source| RootlessError::Map {
            what: format!("run {}", self.name),
            source,
        };
        sys::write(&self.go, b"x").map_err(failed)?;
        match sys::collect(self.pidfd.as_fd(), true).map_err(failed)? {
            Some(sys::Ended::Code(0)) => Ok(()),
            other => Err(failed(io::Error::other(format!("it ended with {other:?}")))),
        }
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        // Both fail only for a process that has ended already.
        let _ = sys::pidfd_signal(self.pidfd.as_fd(), libc::SIGKILL);
        let _ = sys::collect(self.pidfd.as_fd(), true);
    }
}
