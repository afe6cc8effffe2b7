//! What the first process of a container has to do for others: take in orphans, and pass signals on.

use crate::sys;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};

/// Asks a process to end.
pub const TERMINATE: i32 = libc::SIGTERM;
/// Ends it.
pub const KILL: i32 = libc::SIGKILL;

/// A process that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Which.
    pub pid: u32,
    /// How.
    pub status: ExitStatus,
}

/// Takes one process that ended off the kernel's list, if there is one: a child, or an orphan that came to us.
pub fn reap() -> io::Result<Option<Ended>> {
    match sys::wait_any() {
        Ok(None) => Ok(None),
        Ok(Some((pid, status))) => Ok(Some(Ended {
            pid: pid.unsigned_abs(),
            status: ExitStatus::from_raw(status),
        })),
        // No children at all.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Orphans among our descendants become our children, also when we are not the first process of a namespace.
pub fn adopt_orphans() -> io::Result<()> {
    sys::set_child_subreaper()
}

/// What a process is asked to end by.
const STOPS: [i32; 2] = [libc::SIGTERM, libc::SIGINT];

/// Signals that ask for the end wait from now on, until somebody can take them. Called before threads are started.
///
/// The kernel drops signals that the first process of a namespace has no handler for, unless they wait: a pod that is
/// deleted while it starts would never learn of it.
pub fn keep_stops() -> io::Result<()> {
    sys::block_signals(&STOPS, true)
}

/// Somebody takes them now: those that waited come at once, to the calling thread.
pub fn take_stops() -> io::Result<()> {
    sys::block_signals(&STOPS, false)
}

/// Sends a signal to one process. `pid` is one of our children that was not reaped yet.
pub fn signal(pid: u32, number: i32) -> io::Result<()> {
    sys::kill(pid, number)
}

/// Ends the command's process at once when the thread that starts it ends, even by `SIGKILL`.
///
/// So it must be started by a thread that lives as long as the process is wanted.
pub fn end_with_parent(command: &mut Command) {
    sys::end_with_parent(command, KILL);
}
