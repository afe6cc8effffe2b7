//! The steps that build what the container sees of files.
//!
//! Sources are taken as detached copies while this machine's root is still there; targets are opened below the
//! container's root after it has become the root, and mounts are attached to those descriptors. The image decides what
//! lies at a path, so no path of the container is used twice: see [`FileOp`].
//!
//! With users of its own a container gets copies that show its ids in place of those on disk. They are taken by the
//! process in between, which is root of this machine; the rest is done by root of the pod, who owns what is made.

use super::{Checked, Plan, Steps, kernel, root};
use crate::container::{Mount, MountKind, Spec, StartError};
use crate::sys::FileOp;
use crate::sys::op::Slot;
use crate::sys::walk::Links;
use std::path::Path;

/// A mount whose source was taken.
struct Taken<'a> {
    mount: &'a Mount,
    slot: Slot,
}

pub(super) fn plan(check: &Checked<'_>, spec: &Spec, plan: &mut Plan) -> Result<(), StartError> {
    plan.outer().push(
        "make mounts private",
        FileOp::Propagation(libc::MS_REC | libc::MS_PRIVATE),
    );
    let mut taken = Vec::new();
    for mount in &spec.mounts {
        taken.push(take(check, mount, spec.privileged, plan)?);
    }
    let kernel = kernel::take(check, spec, plan)?;
    match spec.sandbox.users() {
        None => root::mount(check, &spec.root, None, &mut plan.steps)?,
        Some(users) => root::mapped(check, &spec.root, users, plan)?,
    }
    let steps = &mut plan.steps;
    steps.push("enter the root", FileOp::PivotRoot);
    kernel.mount(check, spec, steps)?;
    for item in &taken {
        place(check, item, steps)?;
        kernel.guard_mount(check, item.mount, item.slot, steps)?;
    }
    steps.push("let go of the old root", FileOp::DetachOldRoot);
    steps.push("change to /", FileOp::Chdir(check.text("/", "/")?));
    let mut attributes = 0;
    if spec.readonly_root {
        attributes |= libc::MOUNT_ATTR_RDONLY;
    }
    if !spec.privileged {
        // A container that may make device files may not use them: nothing else protects the disks from its root.
        attributes |= libc::MOUNT_ATTR_NODEV;
    }
    if attributes != 0 {
        steps.push("protect the root", FileOp::ProtectRoot { attributes });
    }
    Ok(())
}

fn take<'a>(
    check: &Checked<'_>,
    mount: &'a Mount,
    privileged: bool,
    plan: &mut Plan,
) -> Result<Taken<'a>, StartError> {
    check.inside("mount target", &mount.target)?;
    kernel::refuse_proc(check, &mount.target)?;
    let target = mount.target.display();
    let slot = plan.steps.slot();
    let mut attributes = if mount.readonly {
        libc::MOUNT_ATTR_RDONLY
    } else {
        0
    };
    match &mount.kind {
        MountKind::Bind { source, within } => {
            let name = match within {
                None => format!("mount {target}: take {}", source.display()),
                Some(part) => {
                    let part = part.display().to_string();
                    format!("mount {target}: {SUB_PATH} {part:?} of {}", source.display())
                }
            };
            let part = within.as_ref().map(|part| check.walk("mount source", part));
            let op = FileOp::Tree {
                source: check.path("mount source", source)?,
                within: part.transpose()?,
                recursive: true,
                attributes,
                no_devices: !privileged,
                users: plan.users,
                slot,
            };
            plan.outer().push(name, op);
        }
        MountKind::Tmpfs { size, mode } => {
            attributes |= libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
            let mut options = vec![("mode".to_owned(), Some(format!("{mode:o}")))];
            options.extend(size.map(|bytes| ("size".to_owned(), Some(bytes.to_string()))));
            let op = FileOp::New {
                kind: check.text("a mount", "tmpfs")?,
                options: check.options(options)?,
                attributes,
                slot,
            };
            // Belongs to the root of the pod.
            plan.steps.push(format!("mount {target}: make a tmpfs"), op);
        }
    }
    Ok(Taken { mount, slot })
}

/// Begins the description of the step that resolves a `subPath`.
pub(in crate::container) const SUB_PATH: &str = "find subPath";

fn place(check: &Checked<'_>, item: &Taken<'_>, steps: &mut Steps) -> Result<(), StartError> {
    let path = item.mount.target.as_path();
    let target = steps.slot();
    let op = FileOp::Target {
        below: None,
        path: check.walk("mount target", path)?,
        links: Links::InRoot,
        like: Some(item.slot),
        slot: target,
    };
    steps.push(format!("mount {}: open the mount point", path.display()), op);
    if !kernel::may_cover(path) {
        let op = FileOp::Avoid {
            slot: target,
            magic: kernel::PROC_MAGIC,
        };
        steps.push(
            format!("mount {}: the mount point is in /proc", path.display()),
            op,
        );
    }
    let slot = item.slot;
    steps.push(
        format!("mount {}", path.display()),
        FileOp::Attach { slot, target },
    );
    Ok(())
}

/// The steps to the working directory. Descriptors are closed first: `/proc/self/fd/N` would lead to them.
pub(super) fn working_directory(
    check: &Checked<'_>,
    path: &Path,
    steps: &mut Steps,
) -> Result<(), StartError> {
    check.inside("working directory", path)?;
    steps.push(
        "close files of the parent",
        crate::sys::Op::CloseOthers { faults: -1 },
    );
    let walk = check.walk("working directory", path)?;
    let name = format!("change to {}", path.display());
    steps.push(name, FileOp::WorkingDirectory(walk));
    Ok(())
}
