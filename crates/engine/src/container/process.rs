//! A process of ours in a container: started, waited for, signalled, collected.

use super::plan::Plan;
use super::{Spec, StartError, Stdio, spawner, terminal};
use crate::cgroup::Group;
use crate::sys::guard::Ticket;
use crate::sys::spawn::{BEFORE, EXEC, Early, fault};
use crate::sys::{self, Born, Ended, Op};
use crate::users::UserNamespace;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe::{Receiver, Sender};

/// How long the steps before exec may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; 128 + the signal for a process that was killed.
    pub code: i32,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// The kernel killed something in the container because memory ran out.
    pub oom_killed: bool,
}

/// A process we started and are the parent of.
#[derive(Debug)]
pub(crate) struct Child {
    pid: u32,
    /// Before the descriptor it names, so that it goes first.
    ticket: Option<Ticket>,
    pidfd: AsyncFd<OwnedFd>,
    ended: Mutex<Option<Ended>>,
    /// Is not killed when we let go of it: it ends by itself.
    finishes: bool,
    /// The control group, and how many kills it had counted at the start.
    group: Option<(Arc<Group>, u64)>,
}

/// Our ends of a process's streams.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) stdout: Option<Receiver>,
    pub(super) stderr: Option<Receiver>,
    pub(super) stdin: Option<Sender>,
    pub(super) terminal: Option<OwnedFd>,
}

impl Child {
    fn new(born: Born, group: Option<Arc<Group>>) -> io::Result<(Self, OwnedFd)> {
        let Born {
            pid,
            pidfd,
            faults,
            ticket,
        } = born;
        let child = Self {
            pid: u32::try_from(pid).unwrap_or_default(),
            ticket,
            pidfd: sys::watch(pidfd)?,
            ended: Mutex::new(None),
            finishes: false,
            group: group.map(|group| {
                let kills = group.oom_kills();
                (group, kills)
            }),
        };
        Ok((child, faults))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    pub(super) async fn wait(&self) -> io::Result<Exit> {
        loop {
            let mut ready = self.pidfd.readable().await?;
            if let Some(ended) = self.look()? {
                return Ok(self.exit(ended));
            }
            ready.clear_ready();
        }
    }

    /// Collects the process if it has ended.
    fn look(&self) -> io::Result<Option<Ended>> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.is_none() {
            *ended = sys::collect(self.pidfd.as_fd(), false)?;
        }
        Ok(*ended)
    }

    /// From now on it is left to end by itself.
    pub(super) fn let_finish(&mut self) {
        self.finishes = true;
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        !matches!(self.look(), Ok(None))
    }

    /// The control group.
    pub(super) fn group(&self) -> Option<&Arc<Group>> {
        self.group.as_ref().map(|(group, _)| group)
    }

    fn exit(&self, ended: Ended) -> Exit {
        let killed = self
            .group
            .as_ref()
            .is_some_and(|(group, before)| group.oom_kills() > *before);
        let (code, signal) = match ended {
            Ended::Code(code) => (code, None),
            Ended::Signal(signal) => (128 + signal, Some(signal)),
        };
        Exit {
            code,
            signal,
            oom_killed: killed,
        }
    }

    pub(super) fn signal(&self, signal: i32) -> io::Result<()> {
        match sys::pidfd_signal(self.pidfd.as_fd(), signal) {
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other,
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !matches!(self.look(), Ok(None)) {
            return;
        }
        self.ticket = None;
        let Ok(pidfd) = self.pidfd.get_ref().try_clone() else {
            return;
        };
        if !self.finishes {
            // Fails only for a process that is gone already.
            let _ = sys::pidfd_signal(pidfd.as_fd(), libc::SIGKILL);
        }
        // On a thread of its own: the end of a whole pid namespace can take a moment.
        let group = self.group.take();
        let collect = move || {
            let ended = sys::collect(pidfd.as_fd(), true);
            // Only now it is empty and can be removed.
            drop(group);
            ended
        };
        let _ = std::thread::Builder::new().name("collect".into()).spawn(collect);
    }
}

/// Makes the process and waits until it has executed its program.
pub(super) async fn start(id: &str, plan: Plan, stdio: Stdio) -> Result<(Child, Output), StartError> {
    let clone = |source| StartError::Clone {
        id: id.to_owned(),
        source,
    };
    let mut plan = plan;
    let output = connect(&mut plan, stdio).map_err(clone)?;
    let child = Starting::begin(id, plan).await?.finish().await?;
    Ok((child, output))
}

/// A process on its way to executing its program.
pub(crate) struct Starting {
    id: String,
    names: Names,
    child: Child,
    faults: OwnedFd,
}

impl Starting {
    /// Makes the process.
    pub(crate) async fn begin(id: &str, mut plan: Plan) -> Result<Self, StartError> {
        let names = Names::of(&plan);
        let clone = |source| StartError::Clone {
            id: id.to_owned(),
            source,
        };
        let group = plan.group.take();
        let launch = plan.into_launch();
        let born = spawner::make(launch).await.map_err(|source| {
            match source.get_ref().and_then(|e| e.downcast_ref::<Early>()) {
                Some(early) => names.failed(id, early.step, early.errno),
                None => clone(source),
            }
        })?;
        let (child, faults) = Child::new(born, group).map_err(clone)?;
        Ok(Self {
            id: id.to_owned(),
            names,
            child,
            faults,
        })
    }

    /// Its number, as this process sees it.
    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Waits until all steps are done.
    pub(crate) async fn finish(self) -> Result<Child, StartError> {
        match tokio::time::timeout(PATIENCE, first_fault(self.faults)).await {
            Err(_) => Err(StartError::Timeout {
                id: self.id,
                seconds: PATIENCE.as_secs(),
            }),
            Ok(Err(source)) => Err(StartError::Clone { id: self.id, source }),
            Ok(Ok(Some((step, errno)))) => {
                // Collected here, so that no zombie is left when the error is handed on.
                let _ = self.child.wait().await;
                Err(self.names.failed(&self.id, step, errno))
            }
            Ok(Ok(None)) => Ok(self.child),
        }
    }
}

/// The step that failed; `None` when the program has been executed.
async fn first_fault(faults: OwnedFd) -> io::Result<Option<(u32, i32)>> {
    sys::set_nonblocking(faults.as_fd())?;
    let faults = sys::watch(faults)?;
    let mut bytes = [0; 8];
    loop {
        let mut ready = faults.readable().await?;
        match ready.try_io(|fd| sys::read(fd.get_ref(), &mut bytes)) {
            Err(_) => {}
            Ok(Ok(0)) => return Ok(None),
            Ok(Ok(8)) => return Ok(Some(fault(bytes))),
            Ok(Ok(_)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(Err(e)) => return Err(e),
        }
    }
}

/// What the steps of a process are called.
struct Names {
    before: Vec<String>,
    steps: Vec<String>,
    program: String,
}

impl Names {
    fn of(plan: &Plan) -> Self {
        let program = plan.program.as_ref().and_then(|p| p.args.first());
        Self {
            before: plan.before.names.clone(),
            steps: plan.steps.names.clone(),
            program: program
                .map(|p| p.to_string_lossy().into_owned())
                .unwrap_or_default(),
        }
    }

    fn failed(&self, id: &str, step: u32, errno: i32) -> StartError {
        StartError::Step {
            id: id.to_owned(),
            step: self.of_step(step),
            source: io::Error::from_raw_os_error(errno),
        }
    }

    fn of_step(&self, step: u32) -> String {
        if step == EXEC {
            return format!("execute {}", self.program);
        }
        let (list, index) = if step & BEFORE == 0 {
            (&self.steps, step)
        } else {
            (&self.before, step & !BEFORE)
        };
        let known = usize::try_from(index).ok().and_then(|i| list.get(i));
        known
            .cloned()
            .unwrap_or_else(|| "make a process in the container".into())
    }
}

/// Adds the steps that connect the standard streams.
fn connect(plan: &mut Plan, stdio: Stdio) -> io::Result<Output> {
    let mut output = Output::default();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let null = Arc::new(OwnedFd::from(null));
    let mut streams = vec![(Arc::clone(&null), 0)];
    match stdio {
        Stdio::Inherit => {}
        Stdio::Null => streams.extend([(Arc::clone(&null), 1), (null, 2)]),
        Stdio::Pipe | Stdio::Interactive => {
            for (to, place) in [(1, &mut output.stdout), (2, &mut output.stderr)] {
                let (reader, writer) = sys::pipe()?;
                sys::set_nonblocking(reader.as_fd())?;
                *place = Some(Receiver::from_owned_fd(reader)?);
                plan.give(writer.as_fd())?;
                streams.push((Arc::new(writer), to));
            }
            if stdio == Stdio::Interactive {
                let (reader, writer) = sys::pipe()?;
                sys::set_nonblocking(writer.as_fd())?;
                output.stdin = Some(Sender::from_owned_fd(writer)?);
                plan.give(reader.as_fd())?;
                streams[0].0 = Arc::new(reader);
            }
        }
        Stdio::Terminal { rows, columns } => {
            let (ours, theirs) = terminal::open(&plan.terminals, plan.owner)?;
            terminal::resize(&ours, rows, columns);
            output.terminal = Some(ours);
            let theirs = Arc::new(theirs);
            streams = (0..3).map(|to| (Arc::clone(&theirs), to)).collect();
            plan.steps
                .after("start a session", "take the terminal", Op::Terminal);
        }
    }
    // First of all: after the filter of system calls nothing but the exec is to come.
    for (fd, to) in streams {
        let from = fd.as_raw_fd();
        let op = Op::Duplicate { from, to };
        plan.steps.insert("connect standard streams", op);
        plan.held.push(fd);
    }
    Ok(output)
}

/// The first process of a pid namespace that containers share, with these users if they are not the machine's.
pub(crate) async fn start_init(users: Option<&UserNamespace>) -> Result<Child, StartError> {
    Ok(start("sandbox", Plan::init(users), Stdio::Null).await?.0)
}

/// Everything that a container is, but for its program.
pub(crate) async fn start_without_program(spec: &Spec) -> Result<Child, StartError> {
    let mut plan = super::plan::container(spec)?;
    plan.program = None;
    Ok(start(&spec.id, plan, Stdio::Null).await?.0)
}
