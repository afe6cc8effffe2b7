//! The thread that makes processes.
//!
//! A process that is to die with us is bound by the kernel to the *thread* that made it, so all are made by one
//! thread that never ends. Signals are blocked there, so that no handler of ours ever runs in a child. Before the
//! first process it starts the guard, because that binding is lost when a program changes its user.

use crate::sys::guard::Guard;
use crate::sys::spawn::Between;
use crate::sys::{self, Born, Launch};
use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use tokio::sync::oneshot;

type Order = (Launch, oneshot::Sender<io::Result<Born>>);

static GUARD: OnceLock<&'static Guard> = OnceLock::new();
static SPAWNER: OnceLock<Option<Sender<Order>>> = OnceLock::new();

/// Makes a process.
pub(super) async fn make(launch: Launch) -> io::Result<Born> {
    let gone = || io::Error::other("the thread that makes processes is gone");
    let spawner = SPAWNER.get_or_init(begin).as_ref().ok_or_else(gone)?;
    let (reply, answer) = oneshot::channel();
    spawner.send((launch, reply)).map_err(|_| gone())?;
    answer.await.map_err(|_| gone())?
}

/// The guard, once the first process was made.
pub(super) fn guard() -> Option<&'static Guard> {
    GUARD.get().copied()
}

fn begin() -> Option<Sender<Order>> {
    let (orders, inbox) = channel::<Order>();
    let work = move || {
        sys::block_signals();
        let Ok(guard) = Guard::begin() else {
            return;
        };
        let guard = *GUARD.get_or_init(|| guard);
        let Some(settler) = settler() else {
            return;
        };
        for (mut launch, reply) in inbox {
            let guard = (!launch.unguarded).then_some(guard);
            match sys::begin(&mut launch) {
                Ok(begun) => {
                    // It ends with this process only.
                    let _ = settler.send((begun, guard, reply));
                }
                // The one who asked may be gone by now.
                Err(error) => drop(reply.send(Err(error))),
            }
        }
    };
    let thread = std::thread::Builder::new().name("spawn".into());
    thread.spawn(work).ok().map(|_| orders)
}

type Begun = (
    sys::Begun,
    Option<&'static Guard>,
    oneshot::Sender<io::Result<Born>>,
);

/// The thread that waits for processes in between, so that the work of one does not hold up the next.
fn settler() -> Option<Sender<Begun>> {
    let ended = collector()?;
    let (begun, inbox) = channel::<Begun>();
    let work = move || {
        for (begun, guard, reply) in inbox {
            let (born, between) = begun.settle(guard);
            // If nobody waits any more the process is killed: `Born` that comes back is dropped by its owner.
            if let Err(Ok(born)) = reply.send(born) {
                abandon(&born);
            }
            // It ends with this process only.
            let _ = ended.send(between);
        }
    };
    let thread = std::thread::Builder::new().name("settle".into());
    thread.spawn(work).ok().map(|_| begun)
}

/// The thread that collects processes in between: nothing has to wait until their mounts are gone.
fn collector() -> Option<Sender<Between>> {
    let (ended, inbox) = channel::<Between>();
    let work = move || {
        for between in inbox {
            // Fails only for a process that is gone already.
            let _ = between.collect();
        }
    };
    let thread = std::thread::Builder::new().name("collect".into());
    thread.spawn(work).ok().map(|_| ended)
}

/// Ends a process nobody knows of.
pub(super) fn abandon(born: &Born) {
    use std::os::fd::AsFd as _;
    // Both fail only for a process that is gone already.
    let _ = sys::pidfd_signal(born.pidfd.as_fd(), libc::SIGKILL);
    let _ = sys::collect(born.pidfd.as_fd(), true);
}
