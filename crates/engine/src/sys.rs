//! System calls of the runner. Each function outside [`child`] is safe to call with any arguments.
#![allow(unsafe_code, reason = "the one place for system calls that std does not wrap")]

pub(crate) mod child;
mod files;
pub(crate) mod guard;
pub(crate) mod mount;
pub(crate) mod op;
pub(crate) mod spawn;
pub(crate) mod walk;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use tokio::io::unix::AsyncFd;

pub(crate) use files::can_map;
pub(crate) use op::{FileOp, Op};
pub(crate) use spawn::{Begun, Born, Launch, begin, spawn};

/// How a process ended, as the kernel says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    Signal(i32),
}

fn check(rc: libc::c_long) -> io::Result<libc::c_long> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: every caller passes a descriptor that the kernel has just returned to it alone.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A path as the kernel wants it.
pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt as _;
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// A pipe whose ends close on exec: (read, write).
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: the array has room for the two descriptors and outlives the call.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }.into())?;
    Ok((owned(ends[0]), owned(ends[1])))
}

/// Makes reads and writes return at once when they would wait.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) }.into())?;
    let flags = libc::c_int::try_from(flags).unwrap_or_default() | libc::O_NONBLOCK;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) }.into()).map(drop)
}

/// A descriptor for a process that cannot be mistaken for a later one with the same number.
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    Ok(owned(RawFd::try_from(fd).unwrap_or(-1)))
}

/// Sends a signal to the process behind a descriptor.
pub(crate) fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a null pointer asks for the usual signal information.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    check(rc).map(drop)
}

/// Collects a child. `None`: it is still running and the call was not to wait.
pub(crate) fn collect(pidfd: BorrowedFd<'_>, wait: bool) -> io::Result<Option<Ended>> {
    let nohang = if wait { 0 } else { libc::WNOHANG };
    let id = libc::id_t::try_from(pidfd.as_raw_fd()).unwrap_or_default();
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    loop {
        // SAFETY: the structure is ours and outlives the call; P_PIDFD says that the id is a descriptor.
        let rc = unsafe {
            libc::waitid(
                libc::P_PIDFD,
                id,
                info.as_mut_ptr(),
                libc::WEXITED | libc::__WALL | nohang,
            )
        };
        match check(rc.into()) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            Ok(_) => break,
        }
    }
    // SAFETY: all-zero bytes are a valid siginfo_t, and the kernel only overwrote some of them.
    let info = unsafe { info.assume_init() };
    // SAFETY: waitid fills in the fields of a child, or leaves the zeroes.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok((pid != 0).then_some(if info.si_code == libc::CLD_EXITED {
        Ended::Code(status)
    } else {
        Ended::Signal(status)
    }))
}

/// Keeps every signal away from the calling thread.
pub(crate) fn block_signals() {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is ours; all-zero bytes are a valid set, which sigfillset fills.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Gives the calling thread namespaces of its own.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// Names the machine in the calling thread's UTS namespace.
pub(crate) fn set_hostname(name: &str) -> io::Result<()> {
    // SAFETY: pointer and length describe `name`, which outlives the call.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }.into()).map(drop)
}

/// Reads once; 0 is the end.
pub(crate) fn read(fd: impl AsFd, data: &mut [u8]) -> io::Result<usize> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: pointer and length describe `data`, which is exclusively ours during the call.
    let got = unsafe { libc::read(fd, data.as_mut_ptr().cast(), data.len()) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Gives a file behind a descriptor to a user and a group.
pub(crate) fn give(fd: BorrowedFd<'_>, (user, group): (u32, u32)) -> io::Result<()> {
    let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
    Ok(rustix::fs::fchown(fd, Some(user), Some(group))?)
}

/// How far the calling process may raise a limit of its own without privileges.
pub(crate) fn hard_limit(resource: libc::c_int) -> io::Result<u64> {
    let mut value = [0u64; 2];
    let none = std::ptr::null::<u64>();
    // SAFETY: the array has the size of the kernel's structure and outlives the call.
    check(unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, none, value.as_mut_ptr()) })?;
    Ok(value[1])
}

/// Lets the runtime say when a descriptor is ready.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by the value that is returned, which gives it out for reading only: it stays
    // open, and the same, as long as it is registered.
    unsafe { AsyncFd::register(fd) }.map_err(Into::into)
}

/// The capabilities of the calling thread that it may hand on.
pub(crate) fn own_capabilities() -> u64 {
    let header = [child::CAPABILITY_VERSION_3, 0];
    // Effective, permitted, inheritable: first the low words, then the high ones.
    let mut data = [0u32; 6];
    // SAFETY: both arrays have the size that this version of the structures has, and outlive the call.
    let rc = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) };
    let [_, low, _, _, high, _] = data;
    if rc < 0 {
        0
    } else {
        u64::from(high) << 32 | u64::from(low)
    }
}

/// Opens a path below a directory as if that were the root; only to look at.
pub(crate) fn open_within(base: &Path, part: &Path) -> io::Result<File> {
    let base = walk::refer(&c_path(base)?)?;
    let found = walk::reach(base.as_fd(), &c_path(part)?, walk::Links::InRoot)?;
    Ok(found.into())
}

/// A part of a volume, as [`walk::sub_path`] finds it.
pub(crate) fn sub_path(volume: &Path, part: &Path) -> io::Result<OwnedFd> {
    let part = walk::Walk::new(part)?;
    let volume = walk::refer(&c_path(volume)?)?;
    Ok(walk::sub_path(volume.as_fd(), &part)?)
}

/// Opens a regular file below a directory; links must not lead out of it.
pub(crate) fn read_beneath(base: &Path, part: &Path) -> io::Result<File> {
    let base = walk::refer(&c_path(base)?)?;
    let found = walk::Walk::new(part)?.open(base.as_fd(), walk::Links::Beneath, walk::Missing::Error)?;
    if walk::kind(found.as_fd())? != rustix::fs::FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
    }
    // Through /proc, because the descriptor only refers to it.
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Writes once.
pub(crate) fn write(fd: impl AsFd, data: &[u8]) -> io::Result<usize> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: pointer and length describe `data`, which outlives the call.
    let put = unsafe { libc::write(fd, data.as_ptr().cast(), data.len()) };
    usize::try_from(put).map_err(|_| io::Error::last_os_error())
}

/// Whether groups can be chosen: not in a user namespace with the user's own ids alone.
pub(crate) fn may_set_groups() -> bool {
    std::fs::read_to_string("/proc/self/setgroups").map_or(true, |text| text.trim() != "deny")
}

/// Whether root here is somebody else outside.
pub(crate) fn in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let words: Vec<&str> = map.split_whitespace().collect();
    !map.is_empty() && words != ["0", "0", "4294967295"]
}

/// The least `oom_score_adj` that a process of ours may have: lowering it takes a capability of the whole machine.
pub(crate) fn least_oom_score() -> i32 {
    const SYS_RESOURCE: u64 = 1 << 24;
    if own_capabilities() & SYS_RESOURCE != 0 && !in_user_namespace() {
        return -1000;
    }
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    own.trim().parse().unwrap_or(0)
}
