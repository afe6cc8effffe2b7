//! One step a new process takes on its way to becoming a container, as plain data.
//!
//! Everything is prepared before the process exists: between clone and exec the child may neither allocate nor take
//! a lock, because another thread may have held it at the moment of the clone.

use std::ffi::{CString, c_int, c_ulong};
use std::os::fd::RawFd;

/// A step. The child executes them in order; [`child`](super::child) says how.
#[derive(Debug)]
pub(crate) enum Op {
    /// Default action for every signal: Rust ignores SIGPIPE, and that would survive the exec.
    ResetSignals,
    /// Hides the copy of our memory and descriptors from whoever is already in the namespaces that are joined.
    Undumpable,
    /// Waits for a byte; the end of the pipe means that the parent is gone.
    Await(RawFd),
    /// Joins the namespaces behind a descriptor.
    Join { fd: RawFd, kinds: c_int },
    /// Writes to a descriptor opened beforehand.
    Write { fd: RawFd, data: &'static [u8] },
    /// Writes a file in the namespace of the container.
    WriteFile { path: CString, data: Vec<u8> },
    /// Changes mount propagation below `/`.
    Propagation(c_ulong),
    /// Mounts a file system.
    Mount {
        source: CString,
        target: CString,
        kind: CString,
        flags: c_ulong,
        data: CString,
    },
    /// Takes a detached copy of a mounted tree; `within` is resolved without ever leaving `source`.
    Tree {
        source: CString,
        within: Option<CString>,
        recursive: bool,
        slot: usize,
    },
    /// Attaches a copy.
    Attach { slot: usize, target: CString },
    /// Sets mount attributes.
    Attributes {
        target: CString,
        set: u64,
        recursive: bool,
    },
    /// Covers a path if it exists: a file by the null device, a directory by an empty one.
    Mask { path: CString },
    /// Makes a path read-only if it exists.
    Protect { path: CString },
    /// Makes a directory unless there is one.
    Directory { path: CString, mode: libc::mode_t },
    /// Makes an empty file unless there is something.
    File { path: CString, mode: libc::mode_t },
    /// Makes a symbolic link unless there is something.
    Link { to: CString, path: CString },
    /// Changes the working directory.
    Chdir(CString),
    /// Makes the working directory the root; the old root stays mounted on top, out of sight.
    PivotRoot,
    /// Lets go of the old root.
    DetachOldRoot,
    /// Puts a descriptor in place of another.
    Duplicate { from: RawFd, to: RawFd },
    /// A new session without a terminal.
    Session,
    /// Makes standard input the terminal of the session.
    Terminal,
    /// The mode bits that new files do not get.
    Umask(libc::mode_t),
    /// A limit of resources.
    Limit { resource: c_int, soft: u64, hard: u64 },
    /// Removes capabilities that are not in the set from the bounding set.
    Bounding(u64),
    /// Keeps capabilities over the change of user.
    KeepCapabilities,
    /// The supplementary groups.
    Groups(Vec<libc::gid_t>),
    /// The group.
    Gid(libc::gid_t),
    /// The user.
    Uid(libc::uid_t),
    /// Capabilities in force, and those a program inherits.
    Capabilities { permitted: u64, inheritable: u64 },
    /// No program gains privileges by being executed.
    NoNewPrivileges,
    /// Filters system calls from here on.
    Seccomp(Vec<libc::sock_filter>),
    /// Dies with the thread that started it; a parent that is gone already counts.
    DieWithParent { faults: RawFd },
    /// Nothing but the standard streams survives the exec.
    CloseOnExec,
}

/// What is executed in the end.
#[derive(Debug)]
pub(crate) struct Program {
    /// Where to look, in order.
    pub(crate) candidates: Vec<CString>,
    pub(crate) args: Vec<CString>,
    pub(crate) env: Vec<CString>,
}
