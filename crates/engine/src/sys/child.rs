//! What runs between clone and exec: system calls on prepared data, and nothing else.
//!
//! No allocation, no lock, no libc wrapper that does more than its system call (those for users and groups signal all
//! threads), no panic: indexing is by `get`, arithmetic cannot overflow. An error is an errno.

use super::op::Op;
use std::ffi::{CStr, c_char, c_int, c_long, c_uint};
use std::os::fd::RawFd;

type Outcome = Result<c_long, c_int>;

/// Room for the detached copies of mounts, filled by the child.
pub(super) struct Slots<'a>(pub(super) &'a mut [RawFd]);

impl Slots<'_> {
    fn put(&mut self, slot: usize, fd: c_long) -> Outcome {
        match self.0.get_mut(slot) {
            Some(place) => {
                *place = RawFd::try_from(fd).unwrap_or(-1);
                Ok(0)
            }
            None => Err(libc::EINVAL),
        }
    }

    fn get(&self, slot: usize) -> RawFd {
        self.0.get(slot).copied().unwrap_or(-1)
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

const EMPTY: &CStr = c"";

fn unless(outcome: Outcome, accepted: &[c_int]) -> Outcome {
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
        Op::Write { fd, data } => call!(libc::SYS_write, *fd, data.as_ptr(), data.len()),
        Op::WriteFile { path, data } => write_file(path, data),
        Op::Duplicate { from, to } => call!(libc::SYS_dup3, *from, *to, 0),
        Op::Session => call!(libc::SYS_setsid),
        Op::Terminal => call!(libc::SYS_ioctl, 0, libc::TIOCSCTTY, 0),
        Op::Umask(mask) => call!(libc::SYS_umask, *mask),
        Op::Limit { resource, soft, hard } => limit(*resource, *soft, *hard),
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
        _ => files(op, slots),
    }
}

/// Steps that decide what the process sees of the file system.
fn files(op: &Op, slots: &mut Slots<'_>) -> Outcome {
    match op {
        Op::Propagation(flags) => mount(None, c"/", None, *flags, None),
        Op::Mount {
            source,
            target,
            kind,
            flags,
            data,
        } => mount(Some(source), target, Some(kind), *flags, Some(data)),
        Op::Tree {
            source,
            within,
            recursive,
            slot,
        } => tree(source, within.as_deref(), *recursive).and_then(|fd| slots.put(*slot, fd)),
        Op::Attach { slot, target } => attach(slots.get(*slot), target),
        Op::Attributes {
            target,
            set,
            recursive,
        } => attributes(target, *set, *recursive),
        Op::Mask { path } => mask(path),
        Op::Protect { path } => protect(path),
        Op::Directory { path, mode } => unless(
            call!(libc::SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), *mode),
            &[libc::EEXIST],
        ),
        Op::File { path, mode } => {
            let mode = libc::S_IFREG | *mode;
            unless(
                call!(libc::SYS_mknodat, libc::AT_FDCWD, path.as_ptr(), mode, 0),
                &[libc::EEXIST],
            )
        }
        Op::Link { to, path } => unless(
            call!(libc::SYS_symlinkat, to.as_ptr(), libc::AT_FDCWD, path.as_ptr()),
            &[libc::EEXIST],
        ),
        Op::Chdir(path) => call!(libc::SYS_chdir, path.as_ptr()),
        Op::PivotRoot => call!(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()),
        Op::DetachOldRoot => call!(libc::SYS_umount2, c".".as_ptr(), libc::MNT_DETACH),
        _ => Err(libc::EINVAL),
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

fn pointer(text: Option<&CStr>) -> *const c_char {
    text.map_or(std::ptr::null(), CStr::as_ptr)
}

fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    data: Option<&CStr>,
) -> Outcome {
    call!(
        libc::SYS_mount,
        pointer(source),
        target.as_ptr(),
        pointer(kind),
        flags,
        pointer(data)
    )
}

fn tree(source: &CStr, within: Option<&CStr>, recursive: bool) -> Outcome {
    let mut flags = libc::OPEN_TREE_CLONE | c_uint::try_from(libc::O_CLOEXEC).unwrap_or_default();
    if recursive {
        flags |= AT_RECURSIVE;
    }
    let Some(within) = within else {
        return call!(libc::SYS_open_tree, libc::AT_FDCWD, source.as_ptr(), flags);
    };
    let path = libc::O_PATH | libc::O_CLOEXEC;
    let base = call!(libc::SYS_openat, libc::AT_FDCWD, source.as_ptr(), path, 0)?;
    let how: [u64; 3] = [u64::try_from(path).unwrap_or_default(), 0, libc::RESOLVE_IN_ROOT];
    let found = call!(libc::SYS_openat2, base, within.as_ptr(), how.as_ptr(), 24)?;
    let flags = flags | c_uint::try_from(libc::AT_EMPTY_PATH).unwrap_or_default();
    call!(libc::SYS_open_tree, found, EMPTY.as_ptr(), flags)
}

fn attach(fd: RawFd, target: &CStr) -> Outcome {
    call!(
        libc::SYS_move_mount,
        fd,
        EMPTY.as_ptr(),
        libc::AT_FDCWD,
        target.as_ptr(),
        libc::MOVE_MOUNT_F_EMPTY_PATH
    )
}

/// Applies to the whole tree below.
const AT_RECURSIVE: c_uint = 0x8000;

fn attributes(target: &CStr, set: u64, recursive: bool) -> Outcome {
    // The kernel's structure: set, clear, propagation, user namespace.
    let how = [set, 0u64, 0, 0];
    let flags = if recursive { AT_RECURSIVE } else { 0 };
    call!(
        libc::SYS_mount_setattr,
        libc::AT_FDCWD,
        target.as_ptr(),
        flags,
        how.as_ptr(),
        32
    )
}

fn mask(path: &CStr) -> Outcome {
    // A copy can be attached only once, so each path gets its own.
    let copy = tree(c"/dev/null", None, false)?;
    let copy = RawFd::try_from(copy).unwrap_or(-1);
    match attach(copy, path) {
        Err(libc::ENOENT) => Ok(0),
        Err(libc::ENOTDIR | libc::EINVAL) => {
            let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            unless(
                mount(Some(c"tmpfs"), path, Some(c"tmpfs"), flags, Some(c"size=0k")),
                &[libc::ENOENT],
            )
        }
        other => other,
    }
}

fn protect(path: &CStr) -> Outcome {
    match tree(path, None, true) {
        Err(libc::ENOENT) => Ok(0),
        Err(e) => Err(e),
        Ok(fd) => {
            attach(RawFd::try_from(fd).unwrap_or(-1), path)?;
            attributes(path, libc::MOUNT_ATTR_RDONLY, true)
        }
    }
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
