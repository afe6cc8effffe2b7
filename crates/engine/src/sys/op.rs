//! One step a new process takes on its way to becoming a container, as plain data.
//!
//! Everything is prepared before the process exists: between clone and exec the child may neither allocate nor take
//! a lock, because another thread may have held it at the moment of the clone.

use super::walk::{Links, Walk};
use std::ffi::{CString, c_int, c_ulong};
use std::os::fd::RawFd;

/// The place of a descriptor that one step leaves for later ones.
pub(crate) type Slot = usize;

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
    /// Makes namespaces (`CLONE_NEW…`), which belong to the user namespace of the process.
    Unshare(c_int),
    /// Names the machine in the UTS namespace of the process.
    Hostname(Vec<u8>),
    /// Writes to a descriptor opened beforehand.
    Write { fd: RawFd, data: &'static [u8] },
    /// Writes a file in the namespace of the container.
    WriteFile { path: CString, data: Vec<u8> },
    /// A step of the file system.
    Files(FileOp),
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
    /// Closes everything but the standard streams and the pipe for faults.
    CloseOthers { faults: RawFd },
    /// Nothing but the standard streams survives the exec.
    CloseOnExec,
}

/// What a part of procfs or sysfs is covered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cover {
    /// Hides it: a file by the null device in this slot, a directory by an empty one; both read-only.
    Hidden { null: Slot },
    /// The same again, read-only.
    ReadOnly,
}

/// A step that decides what the process sees of the file system.
///
/// Mounts are made detached, have all their attributes before they are attached, and are attached to a descriptor. A
/// path of the container is resolved once, by [`Target`](FileOp::Target) or below a descriptor whose file system was
/// [checked](FileOp::Expect).
#[derive(Debug)]
pub(crate) enum FileOp {
    /// Changes mount propagation below `/`.
    Propagation(c_ulong),
    /// Mounts a file system at a path of this machine.
    Mount {
        source: CString,
        target: CString,
        kind: CString,
        flags: c_ulong,
        data: CString,
    },
    /// Makes a detached file system of the kernel.
    New {
        kind: CString,
        /// Names and values; a name without a value is a flag.
        options: Vec<(CString, Option<CString>)>,
        /// `MOUNT_ATTR_…`
        attributes: u64,
        slot: Slot,
    },
    /// Takes a detached copy of a mounted tree of this machine; `within` never leaves `source`, and is made if missing.
    Tree {
        source: CString,
        within: Option<Walk>,
        recursive: bool,
        /// `MOUNT_ATTR_…`
        attributes: u64,
        /// Device files in it cannot be used, unless it is a device itself.
        no_devices: bool,
        /// A user namespace whose ids stand for the ids on disk.
        users: Option<RawFd>,
        slot: Slot,
    },
    /// Gives a directory of this machine to a user and the group with the same id.
    Own { path: CString, id: u32 },
    /// Takes a descriptor of this machine's null device.
    Null { slot: Slot },
    /// Fails unless the file system behind a slot is of this kind.
    Expect { slot: Slot, magic: i64 },
    /// Fails if it is.
    Avoid { slot: Slot, magic: i64 },
    /// Opens a place to mount at, below the root of the container or another slot. It is made if it is missing: a
    /// directory, unless what is in the slot `like` is none.
    Target {
        below: Option<Slot>,
        path: Walk,
        links: Links,
        like: Option<Slot>,
        slot: Slot,
    },
    /// Attaches a detached mount.
    Attach { slot: Slot, target: Slot },
    /// Attaches a detached mount at a path of this machine.
    AttachAt { slot: Slot, target: CString },
    /// Sets mount attributes of the root.
    ProtectRoot { attributes: u64 },
    /// Covers a part of a file system of this kind. A part that does not exist needs no cover, and neither does any part
    /// of a file system of another kind.
    Cover {
        below: Slot,
        magic: i64,
        part: Walk,
        by: Cover,
    },
    /// Makes a symbolic link in a directory unless there is something.
    Link { to: CString, below: Slot, name: CString },
    /// Changes the working directory to a path of this machine.
    Chdir(CString),
    /// Changes the working directory to what is in a slot.
    Enter { slot: Slot },
    /// Changes the working directory to one below the root of the container, which is made if it is missing.
    WorkingDirectory(Walk),
    /// Makes the working directory the root; the old root stays mounted on top, out of sight.
    PivotRoot,
    /// Lets go of the old root.
    DetachOldRoot,
}

impl From<FileOp> for Op {
    fn from(op: FileOp) -> Self {
        Self::Files(op)
    }
}

/// What is executed in the end.
#[derive(Debug)]
pub(crate) struct Program {
    /// Where to look, in order.
    pub(crate) candidates: Vec<CString>,
    pub(crate) args: Vec<CString>,
    pub(crate) env: Vec<CString>,
}
