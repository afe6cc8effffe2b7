//! From a [`Spec`] to the steps the new process takes.
//!
//! Pure but for the control group, and for looking which processors this machine has.

pub(super) mod files;
pub(super) mod kernel;
mod rights;
mod root;

use super::{Process, Resources, Root, Seccomp, Spec, StartError};
use crate::cgroup::Group;
use crate::image::user::resolve;
use crate::sandbox::{Processes, Sandbox, sysctl_path};
use crate::sys::op::{Program, Slot};
use crate::sys::walk::Walk;
use crate::sys::{Launch, Op, c_path};
use crate::users::UserNamespace;
use std::ffi::CString;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Where programs are looked for when the environment does not say.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Steps with what to call them when they fail.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub(super) ops: Vec<Op>,
    pub(super) names: Vec<String>,
    pub(super) slots: usize,
}

impl Steps {
    pub(super) fn push(&mut self, name: impl Into<String>, op: impl Into<Op>) {
        self.names.push(name.into());
        self.ops.push(op.into());
    }

    /// Room for one more descriptor.
    pub(super) fn slot(&mut self) -> Slot {
        self.slots += 1;
        self.slots - 1
    }

    /// Right after the step of that name.
    pub(super) fn after(&mut self, other: &str, name: impl Into<String>, op: Op) {
        let place = self.names.iter().position(|n| n == other);
        let place = place.map_or(self.names.len(), |place| place + 1);
        self.names.insert(place, name.into());
        self.ops.insert(place, op);
    }

    /// Before all others.
    pub(super) fn insert(&mut self, name: impl Into<String>, op: Op) {
        self.names.insert(0, name.into());
        self.ops.insert(0, op);
    }
}

/// Everything decided about a process that is to be.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Of a process in between, see [`Launch::before`].
    pub(super) before: Steps,
    pub(super) steps: Steps,
    /// Namespaces of the process in between.
    pub(super) between: i32,
    pub(super) namespaces: i32,
    pub(super) program: Option<Program>,
    pub(super) held: Vec<Arc<OwnedFd>>,
    pub(super) group: Option<Arc<Group>>,
    pub(super) unguarded: bool,
    /// The root directory below which a terminal is made.
    pub(super) terminals: PathBuf,
    /// User and group of this machine whose terminal it is.
    pub(super) owner: (u32, u32),
    /// The user namespace the process joins; what it takes of this machine is then taken by the process in between,
    /// which is still root.
    pub(super) users: Option<RawFd>,
}

impl Plan {
    /// What is executed.
    pub(super) fn into_launch(self) -> Launch {
        Launch {
            before: self.before.ops,
            between: self.between,
            namespaces: self.namespaces,
            ops: self.steps.ops,
            slots: self.steps.slots,
            program: self.program,
            unguarded: self.unguarded,
            held: self.held,
        }
    }

    /// The first process of a pid namespace that the containers of a pod share.
    pub(super) fn init(users: Option<&UserNamespace>) -> Self {
        let mut plan = Self {
            namespaces: libc::CLONE_NEWPID,
            ..Self::default()
        };
        if let Some(users) = users {
            begin(&mut plan.before);
            join_users(users.raw(), &mut plan.before);
        }
        begin(&mut plan.steps);
        plan.steps
            .push("bind to the parent", Op::DieWithParent { faults: -1 });
        plan
    }

    /// A process in a new user namespace, which waits for its ids and then makes what belongs to it.
    pub(crate) fn users<'a>(
        hostname: &str,
        sysctls: impl Iterator<Item = &'a (String, String)>,
        wait: Arc<OwnedFd>,
    ) -> Result<Self, StartError> {
        let mut plan = Self {
            namespaces: libc::CLONE_NEWUSER,
            ..Self::default()
        };
        let steps = &mut plan.steps;
        steps.push("reset signals", Op::ResetSignals);
        steps.push("wait for the ids", Op::Await(wait.as_raw_fd()));
        become_root(steps);
        steps.push("bind to the parent", Op::DieWithParent { faults: -1 });
        let kinds = libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        steps.push("make the pod's namespaces", Op::Unshare(kinds));
        steps.push("set the host name", Op::Hostname(hostname.as_bytes().to_vec()));
        let check = Checked { id: "sandbox" };
        for (name, value) in sysctls {
            let op = Op::WriteFile {
                path: check.path("a sysctl", &sysctl_path(name))?,
                data: value.clone().into_bytes(),
            };
            plan.steps.push(format!("set {name} to {value}"), op);
        }
        plan.held.push(wait);
        Ok(plan)
    }

    /// The steps that take what is this machine's, while the process may.
    pub(super) fn outer(&mut self) -> &mut Steps {
        if self.users.is_some() {
            &mut self.before
        } else {
            &mut self.steps
        }
    }

    /// A pipe of a process with users of its own: it would not be allowed to open `/dev/stdout` otherwise.
    pub(super) fn give(&self, pipe: BorrowedFd<'_>) -> std::io::Result<()> {
        match self.users {
            Some(_) => crate::sys::give(pipe, self.owner),
            None => Ok(()),
        }
    }
}

/// Collects complaints about a spec.
struct Checked<'a> {
    id: &'a str,
}

impl Checked<'_> {
    fn wrong(&self, why: impl Into<String>) -> StartError {
        StartError::Invalid {
            id: self.id.to_owned(),
            why: why.into(),
        }
    }

    fn step(&self, step: &str, source: std::io::Error) -> StartError {
        StartError::Step {
            id: self.id.to_owned(),
            step: step.to_owned(),
            source,
        }
    }

    fn text(&self, what: &str, text: impl Into<Vec<u8>>) -> Result<CString, StartError> {
        CString::new(text).map_err(|_| self.wrong(format!("{what} contains a zero byte")))
    }

    fn path(&self, what: &str, path: &Path) -> Result<CString, StartError> {
        c_path(path).map_err(|_| self.wrong(format!("{what} contains a zero byte")))
    }

    /// A path to be resolved below a descriptor.
    fn walk(&self, what: &str, path: &Path) -> Result<Walk, StartError> {
        Walk::new(path).map_err(|_| self.wrong(format!("{what} {} is no plain path", path.display())))
    }

    /// Options of a file system: names, and values of those that have one.
    fn options(
        &self,
        pairs: impl IntoIterator<Item = (String, Option<String>)>,
    ) -> Result<Vec<(CString, Option<CString>)>, StartError> {
        let text = |text: String| self.text("an option", text);
        pairs
            .into_iter()
            .map(|(name, value)| Ok((text(name)?, value.map(text).transpose()?)))
            .collect()
    }

    /// A path in the container without `..`.
    fn inside(&self, what: &str, path: &Path) -> Result<(), StartError> {
        if !path.is_absolute() {
            return Err(self.wrong(format!("{what} {} is not absolute", path.display())));
        }
        if path.components().any(|c| matches!(c, Component::ParentDir)) {
            return Err(self.wrong(format!("{what} {} contains ..", path.display())));
        }
        Ok(())
    }
}

/// A container's first process.
pub(super) fn container(spec: &Spec) -> Result<Plan, StartError> {
    let check = Checked { id: &spec.id };
    let mut plan = Plan {
        terminals: PathBuf::from("/"),
        ..Plan::default()
    };
    let shared = spec.sandbox.pid_namespace();
    let users = spec.sandbox.users().map(|users| &**users);
    plan.namespaces = libc::CLONE_NEWNS;
    if users.is_some() || shared.is_some() {
        begin(&mut plan.before);
    }
    if let Some(users) = users {
        if spec.privileged {
            return Err(check.wrong("a privileged container cannot have users of its own"));
        }
        plan.users = Some(users.raw());
        plan.between = libc::CLONE_NEWNS;
        rights::outer(&spec.process, &mut plan.before);
    }
    if shared.is_none() && spec.sandbox.processes() == Processes::Container {
        plan.namespaces |= libc::CLONE_NEWPID;
    }
    begin(&mut plan.steps);
    if let Some(hierarchy) = spec
        .cgroups
        .as_ref()
        .filter(|place| place.is_pod() || spec.resources != Resources::default())
    {
        let group = hierarchy.group(&spec.id, &spec.resources);
        let group = group.map_err(|source| check.step("make the control group", source))?;
        join_group(&check, Arc::new(group), &mut plan)?;
    }
    for (kinds, fd) in spec.sandbox.joined() {
        plan.steps
            .push("join the pod's namespaces", Op::Join { fd, kinds });
    }
    files::plan(&check, spec, &mut plan)?;
    if let Some(fd) = shared {
        let kinds = libc::CLONE_NEWPID;
        plan.before
            .push("join the pod's processes", Op::Join { fd, kinds });
    }
    if let Some(users) = users {
        join_users(users.raw(), &mut plan.before);
    }
    let roots = match &spec.root {
        Root::Bind(path) => vec![path.clone()],
        Root::Overlay { lower, upper, .. } => std::iter::once(upper).chain(lower).cloned().collect(),
    };
    finish(
        &check,
        &with_home(&spec.process, &roots),
        (&spec.seccomp, users),
        &mut plan,
    )?;
    Ok(plan)
}

/// The first process of a container that runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct First<'a> {
    pub(super) pid: u32,
    pub(super) pidfd: BorrowedFd<'a>,
    pub(super) group: Option<&'a Arc<Group>>,
}

/// A further process in a running container.
pub(super) fn further(
    id: &str,
    first: First<'_>,
    sandbox: &Sandbox,
    process: &Process,
    seccomp: &Seccomp,
) -> Result<Plan, StartError> {
    let check = Checked { id };
    let mut plan = Plan::default();
    let mut kinds = libc::CLONE_NEWNS | libc::CLONE_NEWPID;
    for (kind, _) in sandbox.joined() {
        kinds |= kind;
    }
    begin(&mut plan.before);
    let fd = first.pidfd.as_raw_fd();
    let users = sandbox.users().map(|users| &**users);
    if let Some(users) = users {
        plan.users = Some(users.raw());
        rights::outer(process, &mut plan.before);
        kinds |= libc::CLONE_NEWUSER;
    }
    plan.before.push("join the container", Op::Join { fd, kinds });
    if users.is_some() {
        become_root(&mut plan.before);
    }
    begin(&mut plan.steps);
    if let Some(group) = first.group {
        join_group(&check, Arc::clone(group), &mut plan)?;
    }
    let root = PathBuf::from(format!("/proc/{}/root", first.pid));
    plan.terminals.clone_from(&root);
    finish(&check, &with_home(process, &[root]), (seccomp, users), &mut plan)?;
    Ok(plan)
}

/// Another runtime: our root file system is mounted for it where it looks for one.
pub(super) fn runtime(
    id: &str,
    root: Option<(&Spec, PathBuf)>,
    args: Vec<String>,
) -> Result<Plan, StartError> {
    let check = Checked { id };
    let mut plan = Plan {
        unguarded: true,
        ..Plan::default()
    };
    begin(&mut plan.steps);
    if let Some((spec, at)) = root {
        plan.namespaces = libc::CLONE_NEWNS;
        root::for_runtime(&check, &spec.root, &at, &mut plan.steps)?;
    }
    plan.steps.push("start a session", Op::Session);
    plan.steps.push("close files", Op::CloseOnExec);
    let mut process = Process::new(args);
    // It looks for programs of its own.
    process.env = vec![("PATH".to_owned(), PATH.to_owned())];
    plan.program = Some(program(&check, &process)?);
    Ok(plan)
}

/// The process puts itself into the group, so that it never does anything outside.
fn join_group(check: &Checked<'_>, group: Arc<Group>, plan: &mut Plan) -> Result<(), StartError> {
    let name = "join the control group";
    for door in group.doors().map_err(|source| check.step(name, source))? {
        let fd = door.as_raw_fd();
        plan.steps.push(name, Op::Write { fd, data: b"0" });
        plan.held.push(Arc::new(door));
    }
    plan.group = Some(group);
    Ok(())
}

fn begin(steps: &mut Steps) {
    steps.push("reset signals", Op::ResetSignals);
    steps.push("hide from others", Op::Undumpable);
}

/// From here on root is root of the pod only.
fn join_users(fd: RawFd, steps: &mut Steps) {
    let kinds = libc::CLONE_NEWUSER;
    steps.push("join the pod's users", Op::Join { fd, kinds });
    become_root(steps);
}

/// In a user namespace that was just joined no id is the process's own.
fn become_root(steps: &mut Steps) {
    steps.push("leave the groups of the machine", Op::Groups(Vec::new()));
    steps.push("become the root group of the pod", Op::Gid(0));
    steps.push("become the root of the pod", Op::Uid(0));
    // The kernel decides anew at a change of user, by fs.suid_dumpable.
    steps.push("hide from others", Op::Undumpable);
}

/// The ids of this machine that stand for the user and the group of a process.
fn owner(
    check: &Checked<'_>,
    process: &Process,
    users: Option<&UserNamespace>,
) -> Result<(u32, u32), StartError> {
    let Some(users) = users else {
        return Ok((process.uid, process.gid));
    };
    let outside = |what: &str, id: u32| {
        users.ids().outside(id).ok_or_else(|| {
            check.wrong(format!(
                "{what} {id} is not below {}, and the pod has no others (hostUsers: true gives it the machine's)",
                crate::users::IDS
            ))
        })
    };
    for group in &process.groups {
        outside("group", *group)?;
    }
    Ok((outside("user", process.uid)?, outside("group", process.gid)?))
}

/// As other runtimes do: a process that is not told its home directory has the one its root file system lists.
fn with_home(process: &Process, roots: &[PathBuf]) -> Process {
    let mut process = process.clone();
    if !process.env.iter().any(|(key, _)| key == "HOME") {
        let home = resolve(&process.uid.to_string(), roots).map(|identity| identity.home);
        let home = home
            .ok()
            .filter(|home| !home.is_empty())
            .unwrap_or_else(|| "/".to_owned());
        process.env.push(("HOME".to_owned(), home));
    }
    process
}

/// What every process does after it has its file system.
fn finish(
    check: &Checked<'_>,
    process: &Process,
    (seccomp, users): (&Seccomp, Option<&UserNamespace>),
    plan: &mut Plan,
) -> Result<(), StartError> {
    plan.owner = owner(check, process, users)?;
    let filters = crate::seccomp::filters(seccomp, process.capabilities);
    let filters = filters.map_err(|source| StartError::Seccomp {
        id: check.id.to_owned(),
        source,
    })?;
    files::working_directory(check, &process.cwd, &mut plan.steps)?;
    rights::plan(process, filters, users.is_some(), &mut plan.steps);
    plan.program = Some(program(check, process)?);
    Ok(())
}

fn program(check: &Checked<'_>, process: &Process) -> Result<Program, StartError> {
    let name = process.args.first().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| check.wrong("no program given"))?;
    let candidates = if name.contains('/') {
        vec![name.clone()]
    } else {
        let path = process.env.iter().rev().find(|(key, _)| key == "PATH");
        let path = path.map_or(PATH, |(_, value)| value);
        path.split(':')
            .map(|dir| if dir.is_empty() { "." } else { dir })
            .map(|dir| format!("{dir}/{name}"))
            .collect()
    };
    let all = |what: &str, list: Vec<String>| -> Result<Vec<CString>, StartError> {
        list.into_iter().map(|text| check.text(what, text)).collect()
    };
    let pairs = process.env.iter().map(|(key, value)| format!("{key}={value}"));
    Ok(Program {
        candidates: all("the program", candidates)?,
        args: all("an argument", process.args.clone())?,
        env: all("the environment", pairs.collect())?,
    })
}

#[cfg(test)]
mod tests;
