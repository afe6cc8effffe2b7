//! The duties of the init process of a container: reap orphans and forward signals.

use crate::sys;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};

/// Requests a graceful end.
pub const TERMINATE: i32 = libc::SIGTERM;
/// Ends the process; it cannot be handled.
pub const KILL: i32 = libc::SIGKILL;

/// A reaped process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaped {
    /// The process id.
    pub pid: u32,
    /// Its exit status.
    pub status: ExitStatus,
}

/// Reaps one process that has ended, if there is one: a child, or an orphan that this process adopted.
pub fn reap() -> io::Result<Option<Reaped>> {
    match sys::wait_any() {
        Ok(None) => Ok(None),
        Ok(Some((pid, status))) => Ok(Some(Reaped {
            pid: pid.unsigned_abs(),
            status: ExitStatus::from_raw(status),
        })),
        // No children at all.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes this process a child subreaper: it adopts orphaned descendants even if it is not pid 1 of its namespace.
pub fn become_subreaper() -> io::Result<()> {
    sys::set_child_subreaper()
}

/// The signals that request a graceful end.
const STOP_SIGNALS: [i32; 2] = [libc::SIGTERM, libc::SIGINT];

/// Blocks the stop signals until [`unblock_stop_signals`], so that they stay pending until a handler is installed.
/// Must be called before threads are started.
///
/// The kernel discards signals that pid 1 of a namespace has no handler for, unless they are blocked: a container of a
/// pod that is deleted while it starts would miss its stop signal.
pub fn block_stop_signals() -> io::Result<()> {
    sys::block_signals(&STOP_SIGNALS, true)
}

/// Unblocks the stop signals, once their handlers are installed. Pending ones are delivered to the calling thread.
pub fn unblock_stop_signals() -> io::Result<()> {
    sys::block_signals(&STOP_SIGNALS, false)
}

/// Sends a signal to one process. `pid` is one of our children that was not reaped yet.
pub fn signal(pid: u32, number: i32) -> io::Result<()> {
    sys::kill(pid, number)
}

/// The kernel kills the command's process when the thread that starts it ends, even if `SIGKILL` ends that thread
/// (`PR_SET_PDEATHSIG`).
///
/// So the thread that starts the process must live as long as the process is needed.
pub fn kill_with_parent(command: &mut Command) {
    sys::kill_with_parent(command, KILL);
}
