//! The steps that take power away, in the one order that works.
//!
//! Bounding set and groups need the power that goes next; the change of user clears capabilities unless they are
//! kept; the parent-death signal is forgotten by the kernel at a change of user, so it comes after it.

use super::Steps;
use crate::container::{Process, Rlimit, RlimitKind};
use crate::seccomp::Filters;
use crate::sys::Op;

/// What only root of this machine may do: for processes that will be root of a pod only.
pub(super) fn outer(process: &Process, steps: &mut Steps) {
    let raised = |limit: &&Rlimit| {
        let own = crate::sys::hard_limit(resource(limit.kind).0);
        own.is_ok_and(|own| limit.hard > own)
    };
    limits(process.rlimits.iter().filter(raised), steps);
    score(process, steps);
}

fn resource(kind: RlimitKind) -> (i32, &'static str) {
    let (resource, name) = match kind {
        RlimitKind::OpenFiles => (libc::RLIMIT_NOFILE, "open files"),
        RlimitKind::Processes => (libc::RLIMIT_NPROC, "processes"),
        RlimitKind::Core => (libc::RLIMIT_CORE, "core dumps"),
        RlimitKind::LockedMemory => (libc::RLIMIT_MEMLOCK, "locked memory"),
    };
    (resource.cast_signed(), name)
}

fn limits<'a>(limits: impl Iterator<Item = &'a Rlimit>, steps: &mut Steps) {
    for limit in limits {
        let (resource, name) = resource(limit.kind);
        let op = Op::Limit {
            resource,
            soft: limit.soft,
            hard: limit.hard,
        };
        steps.push(format!("limit {name}"), op);
    }
}

fn score(process: &Process, steps: &mut Steps) {
    if let Some(score) = process.oom_score_adj {
        let op = Op::WriteFile {
            path: c"/proc/self/oom_score_adj".into(),
            data: score.max(crate::sys::least_oom_score()).to_string().into_bytes(),
        };
        steps.push("set oom_score_adj", op);
    }
}

/// `own`: the process has users of its own, and [`outer`] did its part.
pub(super) fn plan(process: &Process, filters: Filters, own: bool, steps: &mut Steps) {
    limits(process.rlimits.iter(), steps);
    if !own {
        score(process, steps);
    }
    // Nobody can give what he does not have himself.
    let capabilities = process.capabilities.bits() & crate::sys::own_capabilities();
    steps.push("start a session", Op::Session);
    steps.push("set the umask", Op::Umask(0o022));
    steps.push("limit capabilities", Op::Bounding(capabilities));
    // Installing a filter takes privileges, unless new ones are forbidden: then it comes last and sees only the exec.
    let mut filters = Some(filters);
    if !process.no_new_privileges {
        install(filters.take(), steps);
    }
    steps.push("keep capabilities", Op::KeepCapabilities);
    if crate::sys::may_set_groups() {
        steps.push("set groups", Op::Groups(process.groups.clone()));
    }
    steps.push(format!("become group {}", process.gid), Op::Gid(process.gid));
    steps.push(format!("become user {}", process.uid), Op::Uid(process.uid));
    let op = Op::Capabilities {
        permitted: capabilities,
        inheritable: 0,
    };
    steps.push("set capabilities", op);
    if process.no_new_privileges {
        steps.push("forbid new privileges", Op::NoNewPrivileges);
    }
    steps.push("bind to the parent", Op::DieWithParent { faults: -1 });
    steps.push("close files", Op::CloseOnExec);
    install(filters, steps);
}

fn install(filters: Option<Filters>, steps: &mut Steps) {
    for filter in filters.into_iter().flatten() {
        steps.push("filter system calls", Op::Seccomp(filter));
    }
}
