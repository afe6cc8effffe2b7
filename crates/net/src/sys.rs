//! System calls. Each function is safe to call with any arguments and owns what it passes to the kernel.
#![allow(unsafe_code, reason = "the one place for system calls that std does not wrap")]

pub(crate) mod memory;
pub(crate) mod profile;

use std::ffi::CString;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

fn check_len(rc: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(rc).map_err(|_| io::Error::last_os_error())
}

fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: every caller passes a descriptor that the kernel has just returned to it alone.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Opens a socket; it is closed on exec.
pub(crate) fn socket(domain: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) })?;
    Ok(owned(fd))
}

/// Moves the calling thread into another namespace.
pub(crate) fn setns(fd: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed for the duration of the call, and no memory is passed.
    check(unsafe { libc::setns(fd.as_raw_fd(), kind) }).map(drop)
}

/// Gives the calling thread namespaces of its own.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Sends one datagram.
pub(crate) fn send(fd: BorrowedFd<'_>, data: &[u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `data`, which outlives the call.
    check_len(unsafe { libc::send(fd.as_raw_fd(), data.as_ptr().cast(), data.len(), 0) })
}

/// Receives one datagram and returns its full length, which may exceed the buffer.
pub(crate) fn receive(fd: BorrowedFd<'_>, data: &mut [u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `data`, which outlives the call and is exclusively ours.
    check_len(unsafe {
        libc::recv(
            fd.as_raw_fd(),
            data.as_mut_ptr().cast(),
            data.len(),
            libc::MSG_TRUNC,
        )
    })
}

/// Opens a pipe whose ends never block; the first is for reading. They are closed on exec.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: the pointer is to two integers, which outlive the call.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
    Ok((owned(ends[0]), owned(ends[1])))
}

/// Requests a pipe capacity in bytes; returns the present capacity.
pub(crate) fn set_pipe_size(fd: BorrowedFd<'_>, bytes: libc::c_int) -> io::Result<usize> {
    // SAFETY: the command takes an integer; no memory is passed.
    check_len(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) } as libc::ssize_t)
}

/// Moves bytes between a pipe and something else inside the kernel, without waiting for either.
pub(crate) fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, length: usize) -> io::Result<usize> {
    let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
    let (none, other) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: both descriptors are borrowed for the duration of the call; without offsets no memory is passed.
    check_len(unsafe { libc::splice(from.as_raw_fd(), none, to.as_raw_fd(), other, length, flags) })
}

/// Sets an integer socket option.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = length_of::<libc::c_int>();
    // SAFETY: the pointer is to `value`, whose size is passed and which outlives the call.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    check(rc).map(drop)
}

/// Reads an integer socket option.
pub(crate) fn option(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = length_of::<libc::c_int>();
    // SAFETY: both pointers are to locals that outlive the call; the size is that of `value`.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    check(rc).map(|_| value)
}

/// Reads a socket option that is an address.
pub(crate) fn address_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<SocketAddr> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = length_of::<libc::sockaddr_storage>();
    // SAFETY: the storage is large enough for every family and its size is passed.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            storage.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    check(rc)?;
    // SAFETY: all-zero bytes are a valid sockaddr_storage, and the kernel only overwrote some of them.
    from_storage(&unsafe { storage.assume_init() })
}

/// Binds a socket to an address.
pub(crate) fn bind(fd: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let (storage, length) = to_storage(address);
    // SAFETY: the pointer is to `storage`, which outlives the call and is at least `length` long.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const storage).cast(), length) }).map(drop)
}

/// Makes a packet socket receive what passes one interface.
pub(crate) fn bind_packet(fd: BorrowedFd<'_>, interface: i32, protocol: u16) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or_default();
    address.sll_protocol = protocol;
    address.sll_ifindex = interface;
    let length = length_of::<libc::sockaddr_ll>();
    // SAFETY: the pointer is to `address`, whose size is passed and which outlives the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) }).map(drop)
}

/// Raises this process's soft limit of open descriptors to the hard limit; returns the limit.
pub(crate) fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a local that outlives the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above; the kernel only reads it.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(limit.rlim_cur)
}

/// Starts or performs a connection.
pub(crate) fn connect(fd: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let (storage, length) = to_storage(address);
    // SAFETY: the pointer is to `storage`, which outlives the call and is at least `length` long.
    check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const storage).cast(), length) }).map(drop)
}

/// Makes a bound socket accept connections.
pub(crate) fn listen(fd: BorrowedFd<'_>, backlog: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// Waits until something of `events` happens on one of the descriptors; 0 means that time ran out.
pub(crate) fn poll(
    fds: &[BorrowedFd<'_>],
    events: libc::c_short,
    millis: libc::c_int,
) -> io::Result<Vec<bool>> {
    let mut set: Vec<libc::pollfd> = fds
        .iter()
        .map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events,
            revents: 0,
        })
        .collect();
    let count =
        libc::nfds_t::try_from(set.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: pointer and count describe `set`, which outlives the call.
    check(unsafe { libc::poll(set.as_mut_ptr(), count, millis) })?;
    Ok(set.iter().map(|item| item.revents != 0).collect())
}

/// The index of an interface in the calling thread's namespace.
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a nul-terminated string that outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Changes user and group of the calling thread only; libc's wrappers would change every thread.
pub(crate) fn set_thread_ids(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: no memory is passed; three equal ids leave no saved id to return to.
    let rc = unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) };
    check(libc::c_int::try_from(rc).unwrap_or(-1))?;
    // SAFETY: as above.
    let rc = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
    check(libc::c_int::try_from(rc).unwrap_or(-1)).map(drop)
}

/// Drops the supplementary groups of the calling thread only.
pub(crate) fn clear_thread_groups() -> io::Result<()> {
    // SAFETY: a count of 0 makes the kernel ignore the pointer.
    let rc = unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) };
    check(libc::c_int::try_from(rc).unwrap_or(-1)).map(drop)
}

/// Sets `no_new_privs`: neither the calling thread nor a program it executes can gain privileges.
pub(crate) fn set_no_new_privileges() -> io::Result<()> {
    let on: libc::c_ulong = 1;
    // SAFETY: no memory is passed.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, on, 0, 0, 0) }).map(drop)
}

/// Empties the capability sets of the calling thread.
pub(crate) fn clear_thread_capabilities() -> io::Result<()> {
    // Version 3, which has two words for each of three sets; 0 is the calling thread.
    let header: [u32; 2] = [0x2008_0522, 0];
    let sets = [0_u32; 6];
    // SAFETY: header and sets have the sizes this version prescribes and outlive the call.
    let rc = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    check(libc::c_int::try_from(rc).unwrap_or(-1)).map(drop)
}

/// Effective user and group of the calling thread.
pub(crate) fn ids() -> (u32, u32) {
    // SAFETY: these calls have no arguments and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Reaps one ended child without waiting: its id and raw status.
pub(crate) fn wait_any() -> io::Result<Option<(libc::pid_t, libc::c_int)>> {
    let mut status = 0;
    // SAFETY: the pointer is to a local that outlives the call.
    match check(unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) })? {
        0 => Ok(None),
        pid => Ok(Some((pid, status))),
    }
}

/// Orphaned descendants become children of the calling process.
pub(crate) fn set_child_subreaper() -> io::Result<()> {
    let on: libc::c_ulong = 1;
    // SAFETY: no memory is passed.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, on, 0, 0, 0) }).map(drop)
}

/// Blocks signals for the calling thread and the threads it starts, or unblocks them.
pub(crate) fn block_signals(numbers: &[libc::c_int], block: bool) -> io::Result<()> {
    let how = if block { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set lives until it is used and is written before it is read; the old mask is not wanted.
    let result = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in numbers {
            libc::sigaddset(set.as_mut_ptr(), *number);
        }
        libc::pthread_sigmask(how, set.as_ptr(), std::ptr::null_mut())
    };
    match result {
        0 => Ok(()),
        // pthread_sigmask returns the error number instead of setting errno.
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Sends a signal to one process, never to a process group or to all processes.
pub(crate) fn kill(pid: u32, signal: libc::c_int) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid)
        .ok()
        .filter(|pid| *pid > 0)
        .ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// The kernel sends this signal to the child when the thread that starts it ends, for any reason.
pub(crate) fn kill_with_parent(command: &mut std::process::Command, signal: libc::c_int) {
    use std::os::unix::process::CommandExt;
    let parent = libc::pid_t::try_from(std::process::id()).unwrap_or_default();
    let before_exec = move || {
        // SAFETY: no memory is passed.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) })?;
        // SAFETY: it has no arguments and cannot fail. A parent that ended in between sends no signal any more.
        if unsafe { libc::getppid() } == parent {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::ESRCH))
        }
    };
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(before_exec) };
}

fn length_of<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(libc::socklen_t::MAX)
}

fn family_of(family: libc::c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or_default()
}

fn to_storage(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let length = match address {
        SocketAddr::V4(v4) => {
            let value = libc::sockaddr_in {
                sin_family: family_of(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is large and aligned enough for any socket address.
            unsafe { storage.as_mut_ptr().cast::<libc::sockaddr_in>().write(value) };
            length_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let value = libc::sockaddr_in6 {
                sin6_family: family_of(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: sockaddr_storage is large and aligned enough for any socket address.
            unsafe { storage.as_mut_ptr().cast::<libc::sockaddr_in6>().write(value) };
            length_of::<libc::sockaddr_in6>()
        }
    };
    // SAFETY: it was zeroed, and all-zero bytes are valid; then a valid address was written into it.
    (unsafe { storage.assume_init() }, length)
}

fn from_storage(storage: &libc::sockaddr_storage) -> io::Result<SocketAddr> {
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is what the storage holds, and it is aligned for it.
            let v4 = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is what the storage holds, and it is aligned for it.
            let v6 = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Ok(SocketAddr::new(IpAddr::V6(ip), u16::from_be(v6.sin6_port)))
        }
        _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}
