//! Samples of the instruction pointer at equal intervals of CPU time.

use super::check;
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Number of samples that are kept: about three minutes of one busy CPU.
const MAX_SAMPLES: usize = 1 << 14;

static SAMPLES: [AtomicUsize; MAX_SAMPLES] = [const { AtomicUsize::new(0) }; MAX_SAMPLES];
/// Number of samples so far, including those beyond the limit, which are not kept. At the limit or above, the signal
/// handler records nothing.
static COUNT: AtomicUsize = AtomicUsize::new(MAX_SAMPLES);

/// The signal handler. It can interrupt any code, so it only writes to static memory.
extern "C" fn sample(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the state of the interrupted_address thread to handlers of this kind.
    let place = unsafe { interrupted_address(&*context.cast::<libc::ucontext_t>()) };
    if COUNT.load(Ordering::Relaxed) < MAX_SAMPLES
        && let Some(slot) = SAMPLES.get(COUNT.fetch_add(1, Ordering::Relaxed))
    {
        slot.store(place, Ordering::Relaxed);
    }
}

#[cfg(target_arch = "x86_64")]
fn interrupted_address(context: &libc::ucontext_t) -> usize {
    let registers = &context.uc_mcontext.gregs;
    let place = registers.get(usize::try_from(libc::REG_RIP).unwrap_or_default());
    place
        .and_then(|place| usize::try_from(*place).ok())
        .unwrap_or_default()
}

#[cfg(target_arch = "aarch64")]
fn interrupted_address(context: &libc::ucontext_t) -> usize {
    usize::try_from(context.uc_mcontext.pc).unwrap_or_default()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn interrupted_address(_: &libc::ucontext_t) -> usize {
    0
}

/// Starts sampling, once per `every` of CPU time.
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

/// Stops sampling; returns the sampled addresses. The handler stays installed, because a pending signal would
/// otherwise end the process.
pub(crate) fn finish() -> io::Result<Vec<usize>> {
    timer(Duration::ZERO)?;
    let count = COUNT.swap(MAX_SAMPLES, Ordering::Relaxed).min(MAX_SAMPLES);
    Ok(SAMPLES[..count]
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
