//! A process that waits for our end and then kills what we started.
//!
//! The kernel's own binding of child to parent is lost when a program changes its user, as many images do at start.
//! The guard shares our table of descriptors and reads from shared memory which of them are processes; when we are
//! gone, however that came about, it kills those and ends. Like any child between clone and exec it uses nothing but
//! system calls on prepared data.

use super::pidfd_open;
use super::spawn::{clone, leave};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// How many processes can be watched at a time.
const SLOTS: usize = 1 << 16;

/// The guard of this process.
#[derive(Debug)]
pub(crate) struct Guard {
    slots: &'static [AtomicI32],
    /// Ours; kept open because the guard waits on it.
    _own: OwnedFd,
}

/// A place in the guard's list. It must go before the descriptor it names is closed.
#[derive(Debug)]
pub(crate) struct Ticket(Option<&'static AtomicI32>);

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.store(0, Ordering::Release);
        }
    }
}

impl Guard {
    /// Starts the guard, once a process.
    pub(crate) fn begin() -> io::Result<&'static Self> {
        let slots = shared()?;
        let own = pidfd_open(std::process::id().cast_signed())?;
        let fd = own.as_raw_fd();
        clone(libc::CLONE_FILES, false, || wait_and_kill(fd, slots))?;
        Ok(Box::leak(Box::new(Self { slots, _own: own })))
    }

    /// Has a process killed when we end. If there is no place left, the kernel's binding must do.
    pub(crate) fn watch(&self, pidfd: BorrowedFd<'_>) -> Ticket {
        // Zero stands for a free place; descriptor 0 is standard input.
        let free = self.slots.iter().find(|slot| {
            let fd = pidfd.as_raw_fd();
            slot.compare_exchange(0, fd, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        Ticket(free)
    }
}

/// Memory that the guard will see us change.
fn shared() -> io::Result<&'static [AtomicI32]> {
    let size = SLOTS * std::mem::size_of::<AtomicI32>();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at a place the kernel chooses touches no memory of ours.
    let at = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is that large, aligned to a page, zeroed (a valid AtomicI32) and never unmapped.
    Ok(unsafe { std::slice::from_raw_parts(at.cast::<AtomicI32>(), SLOTS) })
}

fn wait_and_kill(engine: RawFd, slots: &[AtomicI32]) {
    // SAFETY: numbers, pointers to this stack, and a static string. Signals stay blocked, as in the thread that made
    // this process; a session of its own keeps it out of reach of the terminal's.
    unsafe {
        libc::syscall(libc::SYS_setsid);
        libc::syscall(
            libc::SYS_prctl,
            libc::PR_SET_NAME,
            c"remora-guard".as_ptr(),
            0,
            0,
            0,
        );
        loop {
            let mut set = libc::pollfd {
                fd: engine,
                events: libc::POLLIN,
                revents: 0,
            };
            let forever = ptr::null::<i64>();
            let rc = libc::syscall(libc::SYS_ppoll, &raw mut set, 1, forever, ptr::null::<u64>(), 8);
            if rc == 1 {
                break;
            }
        }
        for slot in slots {
            let fd = slot.load(Ordering::Acquire);
            if fd > 0 {
                let none = ptr::null::<libc::siginfo_t>();
                libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, none, 0);
            }
        }
    }
    leave();
}
