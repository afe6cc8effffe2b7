//! Where the process is, asked in equal parts of its CPU time.

use super::check;
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// As many as are kept; about three minutes of one busy CPU.
const MOST: usize = 1 << 14;

static PLACES: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
/// Samples so far, also those that are not kept; more than there is room for means that nothing is taken.
static COUNT: AtomicUsize = AtomicUsize::new(MOST);

/// Runs in the middle of anything: it only writes to memory that is always there.
extern "C" fn sample(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the state of the interrupted thread to handlers of this kind.
    let place = unsafe { interrupted(&*context.cast::<libc::ucontext_t>()) };
    if COUNT.load(Ordering::Relaxed) < MOST
        && let Some(slot) = PLACES.get(COUNT.fetch_add(1, Ordering::Relaxed))
    {
        slot.store(place, Ordering::Relaxed);
    }
}

#[cfg(target_arch = "x86_64")]
fn interrupted(context: &libc::ucontext_t) -> usize {
    let registers = &context.uc_mcontext.gregs;
    let place = registers.get(usize::try_from(libc::REG_RIP).unwrap_or_default());
    place
        .and_then(|place| usize::try_from(*place).ok())
        .unwrap_or_default()
}

#[cfg(target_arch = "aarch64")]
fn interrupted(context: &libc::ucontext_t) -> usize {
    usize::try_from(context.uc_mcontext.pc).unwrap_or_default()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn interrupted(_: &libc::ucontext_t) -> usize {
    0
}

/// Starts to ask, every time this much CPU time was used.
pub(crate) fn start(every: Duration) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid sigaction: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = sample as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the pointer is to a local that outlives the call; the handler stays valid for the life of the process.
    check(unsafe { libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut()) })?;
    COUNT.store(0, Ordering::Relaxed);
    timer(every)
}

/// Ends it; gives where the process was. The handler stays: a signal that is still on its way would end the process.
pub(crate) fn finish() -> io::Result<Vec<usize>> {
    timer(Duration::ZERO)?;
    let count = COUNT.swap(MOST, Ordering::Relaxed).min(MOST);
    Ok(PLACES[..count]
        .iter()
        .map(|place| place.load(Ordering::Relaxed))
        .collect())
}

fn timer(every: Duration) -> io::Result<()> {
    let every = libc::timeval {
        tv_sec: every.as_secs().try_into().unwrap_or_default(),
        tv_usec: every.subsec_micros().into(),
    };
    let timer = libc::itimerval {
        it_interval: every,
        it_value: every,
    };
    // SAFETY: the pointer is to a local that outlives the call.
    check(unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) }).map(drop)
}
