//! What runs between clone and exec: system calls on prepared data, and nothing else.
//!
//! No allocation, no lock, no libc wrapper that does more than its system call (those for users and groups signal all
//! threads), no panic: indexing is by `get`, arithmetic cannot overflow. An error is an errno.

use super::files;
use super::op::Op;
use std::ffi::{CStr, c_int, c_long, c_uint};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd, RawFd};

pub(super) type Outcome = Result<c_long, c_int>;

/// Room for descriptors that steps leave for later ones.
pub(super) struct Slots<'a>(pub(super) &'a mut [Option<OwnedFd>]);

impl Slots<'_> {
    pub(super) fn put(&mut self, slot: usize, fd: OwnedFd) -> Outcome {
        match self.0.get_mut(slot) {
            Some(place) => {
                *place = Some(fd);
                Ok(0)
            }
            None => Err(libc::EINVAL),
        }
    }

    pub(super) fn get(&self, slot: usize) -> Result<BorrowedFd<'_>, c_int> {
        let found = self.0.get(slot).and_then(Option::as_ref);
        found.map(OwnedFd::as_fd).ok_or(libc::EBADF)
    }
}

macro_rules! call {
    ($number:expr $(, $argument:expr)* $(,)?) => {{
        // SAFETY: the arguments are numbers, or pointers into data that was prepared before the clone or lives on
        // this stack, and that the kernel reads or fills before the call returns.
        let rc = unsafe { libc::syscall($number $(, $argument)*) };
        if rc < 0 {
            // SAFETY: the location of errno is always valid.
            Err(unsafe { *libc::__errno_location() })
        } else {
            Ok(rc)
        }
    }};
}

pub(super) use call;

pub(super) fn unless(outcome: Outcome, accepted: &[c_int]) -> Outcome {
    match outcome {
        Err(e) if accepted.contains(&e) => Ok(0),
        other => other,
    }
}

/// Takes one step.
pub(super) fn take(op: &Op, slots: &mut Slots<'_>) -> Outcome {
    match op {
        Op::ResetSignals => reset_signals(),
        Op::Undumpable => call!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0),
        Op::Await(fd) => await_byte(*fd),
        Op::Join { fd, kinds } => call!(libc::SYS_setns, *fd, *kinds),
        Op::Unshare(kinds) => call!(libc::SYS_unshare, *kinds),
        Op::Hostname(name) => call!(libc::SYS_sethostname, name.as_ptr(), name.len()),
        Op::Write { fd, data } => call!(libc::SYS_write, *fd, data.as_ptr(), data.len()),
        Op::WriteFile { path, data } => write_file(path, data),
        Op::Duplicate { from, to } => call!(libc::SYS_dup3, *from, *to, 0),
        Op::Session => call!(libc::SYS_setsid),
        Op::Terminal => call!(libc::SYS_ioctl, 0, libc::TIOCSCTTY, 0),
        Op::Umask(mask) => call!(libc::SYS_umask, *mask),
        Op::Limit { resource, soft, hard } => limit(*resource, *soft, *hard),
        Op::CloseOthers { faults } => close_others(*faults),
        Op::CloseOnExec => call!(libc::SYS_close_range, 3, c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC),
        Op::Bounding(_)
        | Op::KeepCapabilities
        | Op::Groups(_)
        | Op::Gid(_)
        | Op::Uid(_)
        | Op::Capabilities { .. }
        | Op::NoNewPrivileges
        | Op::Seccomp(_)
        | Op::DieWithParent { .. } => privileges(op),
        Op::Files(op) => files::take(op, slots),
    }
}

/// Steps that decide what the process may do.
fn privileges(op: &Op) -> Outcome {
    match op {
        Op::Bounding(keep) => bounding(*keep),
        Op::KeepCapabilities => call!(libc::SYS_prctl, libc::PR_SET_KEEPCAPS, 1, 0, 0, 0),
        Op::Groups(groups) => call!(libc::SYS_setgroups, groups.len(), groups.as_ptr()),
        Op::Gid(gid) => call!(libc::SYS_setresgid, *gid, *gid, *gid),
        Op::Uid(uid) => call!(libc::SYS_setresuid, *uid, *uid, *uid),
        Op::Capabilities {
            permitted,
            inheritable,
        } => capabilities(*permitted, *inheritable),
        Op::NoNewPrivileges => call!(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        Op::Seccomp(filter) => seccomp(filter),
        Op::DieWithParent { faults } => die_with_parent(*faults),
        _ => Err(libc::EINVAL),
    }
}

fn reset_signals() -> Outcome {
    // The kernel's structure: handler, flags, restorer, mask. All zero is the default action.
    let default = [0u64; 4];
    for signal in 1..=64 {
        if signal != libc::SIGKILL && signal != libc::SIGSTOP {
            let none = std::ptr::null_mut::<u64>();
            call!(libc::SYS_rt_sigaction, signal, default.as_ptr(), none, 8)?;
        }
    }
    let empty = 0u64;
    let none = std::ptr::null_mut::<u64>();
    call!(
        libc::SYS_rt_sigprocmask,
        libc::SIG_SETMASK,
        &raw const empty,
        none,
        8
    )
}

fn await_byte(fd: RawFd) -> Outcome {
    let mut byte = 0u8;
    match call!(libc::SYS_read, fd, &raw mut byte, 1)? {
        1 => Ok(0),
        _ => Err(libc::ESRCH),
    }
}

fn write_file(path: &CStr, data: &[u8]) -> Outcome {
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    let fd = call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0)?;
    let wrote = call!(libc::SYS_write, fd, data.as_ptr(), data.len());
    call!(libc::SYS_close, fd)?;
    wrote
}

/// The standard streams and the pipe stay.
fn close_others(faults: RawFd) -> Outcome {
    let Ok(pipe) = c_uint::try_from(faults) else {
        return call!(libc::SYS_close_range, 3, c_uint::MAX, 0);
    };
    if pipe > 3 {
        call!(libc::SYS_close_range, 3, pipe.saturating_sub(1), 0)?;
    }
    call!(
        libc::SYS_close_range,
        pipe.saturating_add(1).max(3),
        c_uint::MAX,
        0
    )
}

fn limit(resource: c_int, soft: u64, hard: u64) -> Outcome {
    let value = [soft, hard];
    let none = std::ptr::null_mut::<u64>();
    call!(libc::SYS_prlimit64, 0, resource, value.as_ptr(), none)
}

/// The kernel knows fewer; it says EINVAL at the first it does not know.
const CAPABILITIES: u32 = 64;

fn bounding(keep: u64) -> Outcome {
    for capability in 0..CAPABILITIES {
        if keep >> capability & 1 == 0 {
            match call!(libc::SYS_prctl, libc::PR_CAPBSET_DROP, capability, 0, 0, 0) {
                Err(libc::EINVAL) => break,
                other => other?,
            };
        }
    }
    Ok(0)
}

pub(super) const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

fn capabilities(permitted: u64, inheritable: u64) -> Outcome {
    let header = [CAPABILITY_VERSION_3, 0];
    let half = |set: u64, shift: u32| u32::try_from(set >> shift & 0xffff_ffff).unwrap_or_default();
    let (low, high) = (half(permitted, 0), half(permitted, 32));
    // Effective, permitted, inheritable: first the low words, then the high ones.
    let data = [low, low, half(inheritable, 0), high, high, half(inheritable, 32)];
    call!(libc::SYS_capset, header.as_ptr(), data.as_ptr())
}

fn seccomp(filter: &[libc::sock_filter]) -> Outcome {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap_or_default(),
        filter: filter.as_ptr().cast_mut(),
    };
    call!(
        libc::SYS_seccomp,
        libc::SECCOMP_SET_MODE_FILTER,
        0,
        &raw const program
    )
}

fn die_with_parent(faults: RawFd) -> Outcome {
    let signal = libc::SIGKILL;
    call!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, signal, 0, 0, 0)?;
    // If the parent died before that, nobody reads the pipe any more.
    let mut set = libc::pollfd {
        fd: faults,
        events: 0,
        revents: 0,
    };
    let now = [0i64; 2];
    let none = std::ptr::null::<u64>();
    call!(libc::SYS_ppoll, &raw mut set, 1, now.as_ptr(), none, 8)?;
    if set.revents & libc::POLLERR != 0 {
        return Err(libc::ESRCH);
    }
    Ok(0)
}
