//! The clone itself, and the pipe on which a child says which step failed.
//!
//! A child that reaches exec closes the pipe by that very act, so the end of the pipe is the moment of the start.

use super::child::{Slots, take};
use super::guard::{Guard, Ticket};
use super::op::{Op, Program};
use super::{check, owned, pidfd_open, pipe};
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd, RawFd};
use std::ptr;

/// Everything a new process does, prepared.
#[derive(Debug, Default)]
pub(crate) struct Launch {
    /// Taken by a process in between, which then makes the real one: a pid namespace that is joined holds only for
    /// children. Empty: there is none in between.
    pub(crate) before: Vec<Op>,
    /// Namespaces made with the process in between.
    pub(crate) between: c_int,
    /// Namespaces made with the process (`CLONE_NEW…`).
    pub(crate) namespaces: c_int,
    /// Taken by the process itself.
    pub(crate) ops: Vec<Op>,
    /// How many descriptors the steps keep.
    pub(crate) slots: usize,
    /// What it becomes. `None`: it stays as the first process of a pid namespace and collects orphans.
    pub(crate) program: Option<Program>,
    /// The guard is not to kill it: it ends by itself.
    pub(crate) unguarded: bool,
    /// Open until the process exists: descriptors that the steps name.
    pub(crate) held: Vec<std::sync::Arc<OwnedFd>>,
}

/// A process that was made and has not said yet whether all went well.
#[derive(Debug)]
pub(crate) struct Born {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    /// Gives eight bytes (step, errno), or the end.
    pub(crate) faults: OwnedFd,
    /// Names it to the guard; let go of it before the descriptor.
    pub(crate) ticket: Option<Ticket>,
}

/// The step number that stands for exec.
pub(crate) const EXEC: u32 = u32::MAX;
/// A step of the process in between has this bit.
pub(crate) const BEFORE: u32 = 1 << 30;
/// Not a fault: the second word is the pid of the process that was made in between.
const PID: u32 = u32::MAX - 1;

/// Fills in the descriptor of the fault pipe where a step needs it.
fn set_fault_pipe(ops: &mut [Op], fd: RawFd) {
    for op in ops {
        if let Op::DieWithParent { faults } | Op::CloseOthers { faults } = op {
            *faults = fd;
        }
    }
}

/// A process that was made, or one in between that is about to make it.
#[derive(Debug)]
pub(crate) struct Begun {
    pid: i32,
    pidfd: Option<OwnedFd>,
    faults: OwnedFd,
    between: bool,
}

/// Makes the process. The calling thread must outlive it: the process dies with the thread.
pub(crate) fn spawn(launch: &mut Launch, guard: Option<&'static Guard>) -> io::Result<Born> {
    let (born, between) = begin(launch)?.settle(guard);
    between.collect()?;
    born
}

/// Makes the first process of a launch, and does not wait for what that one does.
pub(crate) fn begin(launch: &mut Launch) -> io::Result<Begun> {
    let (faults, say) = pipe()?;
    set_fault_pipe(&mut launch.ops, say.as_raw_fd());
    set_fault_pipe(&mut launch.before, say.as_raw_fd());
    let mut slots: Vec<Option<OwnedFd>> = std::iter::repeat_with(|| None).take(launch.slots).collect();
    let exec = launch.program.as_ref().map(Pointers::new);
    let context = Context {
        launch: &*launch,
        exec,
        say: say.as_raw_fd(),
    };
    let between = !launch.before.is_empty();
    let (pid, pidfd) = if between {
        clone(launch.between, true, || context.make_another(&mut slots))?
    } else {
        clone(launch.namespaces, true, || context.become_program(&mut slots))?
    };
    launch.held.clear();
    Ok(Begun {
        pid,
        pidfd,
        faults,
        between,
    })
}

/// The process in between, which ends by itself. It is a zombie until it is collected.
#[derive(Debug)]
pub(crate) struct Between(Option<OwnedFd>);

impl Between {
    /// Waits for its end, which can take a moment: its mounts go with it.
    pub(crate) fn collect(self) -> io::Result<()> {
        match self.0 {
            Some(pidfd) => super::collect(pidfd.as_fd(), true).map(drop),
            None => Ok(()),
        }
    }
}

impl Begun {
    /// Waits for the process itself, if there is one in between, and names it to the guard.
    pub(crate) fn settle(self, guard: Option<&'static Guard>) -> (io::Result<Born>, Between) {
        if !self.between {
            return (born(self.pid, self.pidfd, self.faults, guard), Between(None));
        }
        let made = pid_from_between(&self.faults).and_then(|said| match said {
            Said::Pid(pid) => born(pid, Some(pidfd_open(pid)?), self.faults, guard),
            Said::Fault(bytes) => {
                // The process itself may have failed before the one in between said its pid.
                if let Ok(Said::Pid(pid)) = pid_from_between(&self.faults) {
                    super::collect(pidfd_open(pid)?.as_fd(), true)?;
                }
                Err(early(bytes))
            }
        });
        (made, Between(self.pidfd))
    }
}

fn born(
    pid: i32,
    pidfd: Option<OwnedFd>,
    faults: OwnedFd,
    guard: Option<&'static Guard>,
) -> io::Result<Born> {
    let pidfd = pidfd.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let ticket = guard.map(|guard| guard.watch(pidfd.as_fd()));
    Ok(Born {
        pid,
        pidfd,
        faults,
        ticket,
    })
}

/// A fault of the process in between.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("step {step}")]
pub(crate) struct Early {
    pub(crate) step: u32,
    pub(crate) errno: i32,
}

fn early(bytes: [u8; 8]) -> io::Error {
    let (step, errno) = fault(bytes);
    io::Error::other(Early { step, errno })
}

/// What the eight bytes say.
pub(crate) fn fault(bytes: [u8; 8]) -> (u32, i32) {
    let word = |at: usize| std::array::from_fn(|i| bytes.get(at + i).copied().unwrap_or_default());
    (u32::from_ne_bytes(word(0)), i32::from_ne_bytes(word(4)))
}

enum Said {
    Pid(i32),
    Fault([u8; 8]),
}

fn pid_from_between(faults: &OwnedFd) -> io::Result<Said> {
    let mut bytes = [0; 8];
    if super::read(faults, &mut bytes)? != bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(match fault(bytes) {
        (PID, pid) => Said::Pid(pid),
        _ => Said::Fault(bytes),
    })
}

/// Pointers to prepared strings, ended by a null as exec wants them.
struct Pointers {
    args: Vec<*const c_char>,
    env: Vec<*const c_char>,
}

impl Pointers {
    fn new(program: &Program) -> Self {
        let list = |strings: &[CString]| {
            let pointers = strings.iter().map(|s| s.as_ptr());
            pointers.chain([ptr::null()]).collect()
        };
        Self {
            args: list(&program.args),
            env: list(&program.env),
        }
    }
}

struct Context<'a> {
    launch: &'a Launch,
    exec: Option<Pointers>,
    say: RawFd,
}

impl Context<'_> {
    fn say(&self, step: u32, value: i32) {
        let mut bytes = [0; 8];
        let (left, right) = bytes.split_at_mut(4);
        left.copy_from_slice(&step.to_ne_bytes());
        right.copy_from_slice(&value.to_ne_bytes());
        // SAFETY: the bytes live on this stack. If nobody listens any more, nothing is lost.
        unsafe { libc::syscall(libc::SYS_write, self.say, bytes.as_ptr(), bytes.len()) };
    }

    fn steps(&self, ops: &[Op], bit: u32, slots: &mut [Option<OwnedFd>]) {
        let mut slots = Slots(slots);
        let mut step = 0u32;
        for op in ops {
            if let Err(errno) = take(op, &mut slots) {
                self.say(step | bit, errno);
                leave();
            }
            step = step.wrapping_add(1);
        }
    }

    /// The process in between: joins, makes the real one as a sibling of its own, says its pid, and is done.
    fn make_another(&self, slots: &mut [Option<OwnedFd>]) -> ! {
        self.steps(&self.launch.before, BEFORE, slots);
        let flags = libc::CLONE_PARENT | self.launch.namespaces;
        match clone(flags, false, || self.become_program(slots)) {
            Ok((pid, _)) => self.say(PID, pid),
            Err(e) => self.say(EXEC | BEFORE, e.raw_os_error().unwrap_or(libc::EIO)),
        }
        leave()
    }

    fn become_program(&self, slots: &mut [Option<OwnedFd>]) -> ! {
        self.steps(&self.launch.ops, 0, slots);
        let (Some(program), Some(pointers)) = (&self.launch.program, &self.exec) else {
            rest()
        };
        let mut errno = libc::ENOENT;
        for path in &program.candidates {
            let (args, env) = (pointers.args.as_ptr(), pointers.env.as_ptr());
            // SAFETY: the strings and the null-ended arrays were prepared before the clone and are still there.
            unsafe { libc::syscall(libc::SYS_execve, path.as_ptr(), args, env) };
            // SAFETY: the location of errno is always valid.
            let why = unsafe { *libc::__errno_location() };
            // As a shell looks: something that may not be executed is worth telling, but the search goes on.
            match why {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => errno = why,
                _ => {
                    errno = why;
                    break;
                }
            }
        }
        self.say(EXEC, errno);
        leave()
    }
}

pub(super) fn leave() -> ! {
    loop {
        // SAFETY: the call does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, 127) };
    }
}

/// Closes what was inherited (which tells the parent that all is well) and collects orphans for ever.
fn rest() -> ! {
    // SAFETY: only numbers and null pointers are passed; the descriptors closed are this process's own copies.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
        loop {
            let status = ptr::null_mut::<c_int>();
            let usage = ptr::null_mut::<libc::rusage>();
            if libc::syscall(libc::SYS_wait4, -1, status, libc::__WALL, usage) < 0 {
                // No children yet: a new one does not wake this process, so look again in a while.
                let pause = [1i64, 0];
                libc::syscall(libc::SYS_nanosleep, pause.as_ptr(), ptr::null_mut::<i64>());
            }
        }
    }
}

/// Clones the calling process; `work` runs in the child. With `pidfd` the result holds a descriptor of the child.
pub(super) fn clone(flags: c_int, pidfd: bool, work: impl FnOnce()) -> io::Result<(i32, Option<OwnedFd>)> {
    let mut fd: RawFd = -1;
    let bits = |flag: c_int| u64::from(flag.cast_unsigned());
    let sibling = flags & libc::CLONE_PARENT != 0;
    let arguments = libc::clone_args {
        flags: bits(flags) | if pidfd { bits(libc::CLONE_PIDFD) } else { 0 },
        pidfd: if pidfd { (&raw mut fd) as u64 } else { 0 },
        child_tid: 0,
        parent_tid: 0,
        // A sibling inherits the signal of whoever makes it; the kernel wants to see none.
        exit_signal: if sibling { 0 } else { bits(libc::SIGCHLD) },
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    };
    let size = std::mem::size_of::<libc::clone_args>();
    // SAFETY: without CLONE_VM the child has a copy of everything and shares no memory. It runs `work`, which by the
    // contract of this module takes no lock and does not allocate, and never comes back.
    let rc = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size) };
    if rc == 0 {
        work();
        leave();
    }
    let pid = i32::try_from(check(rc)?).unwrap_or(-1);
    Ok((pid, pidfd.then(|| owned(fd))))
}
