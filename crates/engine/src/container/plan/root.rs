//! The root file system: layers, or a directory as it is.

use super::{Checked, Plan, Steps};
use crate::container::{Root, StartError};
use crate::sys::FileOp;
use crate::sys::op::Slot;
use crate::users::UserNamespace;
use std::ffi::OsStr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

/// Mounts the root file system at a place of this machine, in a mount namespace of the process's own.
pub(super) fn for_runtime(
    check: &Checked<'_>,
    from: &Root,
    at: &Path,
    steps: &mut Steps,
) -> Result<(), StartError> {
    steps.push(
        "make mounts private",
        FileOp::Propagation(libc::MS_REC | libc::MS_SLAVE),
    );
    mount(check, from, Some(at), steps)?;
    steps.push("change to /", FileOp::Chdir(check.text("/", "/")?));
    Ok(())
}

/// Mounts the root file system `at` a place, or on top of itself, and goes there.
pub(super) fn mount(
    check: &Checked<'_>,
    root: &Root,
    at: Option<&Path>,
    steps: &mut Steps,
) -> Result<(), StartError> {
    let path = match root {
        Root::Bind(path) => path,
        Root::Overlay { lower, upper, work } => {
            return overlay(check, (lower, upper, work), at.unwrap_or(upper), steps);
        }
    };
    let name = format!("take the root {}", path.display());
    let slot = steps.slot();
    steps.push(name, tree(check, path, true, None, slot)?);
    let target = check.path("the root", at.unwrap_or(path))?;
    let op = FileOp::AttachAt {
        slot,
        target: target.clone(),
    };
    steps.push("mount the root", op);
    steps.push("change to the root", FileOp::Chdir(target));
    Ok(())
}

/// Mounts the root file system with the ids of a user namespace in place of those on disk, and goes there.
///
/// The process in between puts copies with other ids over the layers, each at its own place in a mount namespace that
/// nothing else sees, and takes a detached copy of the overlay made of them. Only what is attached later is not locked,
/// and can become the root. The directory for changes belongs to the pod instead: the kernel makes files of its own
/// there as root of this machine, which is no user of the pod.
pub(super) fn mapped(
    check: &Checked<'_>,
    root: &Root,
    users: &UserNamespace,
    plan: &mut Plan,
) -> Result<(), StartError> {
    let slot = plan.steps.slot();
    let fd = Some(users.raw());
    let whole = match root {
        Root::Bind(path) => (path, fd),
        Root::Overlay { lower, upper, work } => {
            for path in lower {
                let copy = plan.steps.slot();
                let op = tree(check, path, false, fd, copy)?;
                plan.before.push(format!("map the ids of {}", path.display()), op);
                let target = check.path("a layer", path)?;
                let op = FileOp::AttachAt { slot: copy, target };
                plan.before.push(format!("mount {}", path.display()), op);
            }
            let op = FileOp::Own {
                path: check.path("the root", upper)?,
                id: users.ids().first(),
            };
            plan.before
                .push(format!("give {} to the pod", upper.display()), op);
            overlay(check, (lower, upper, work), upper, &mut plan.before)?;
            (upper, None)
        }
    };
    let op = tree(check, whole.0, whole.1.is_some(), whole.1, slot)?;
    plan.before
        .push(format!("take the root {}", whole.0.display()), op);
    let target = check.text("the root", "/")?;
    let steps = &mut plan.steps;
    steps.push("mount the root", FileOp::AttachAt { slot, target });
    steps.push("change to the root", FileOp::Enter { slot });
    Ok(())
}

fn tree(
    check: &Checked<'_>,
    path: &Path,
    recursive: bool,
    users: Option<RawFd>,
    slot: Slot,
) -> Result<FileOp, StartError> {
    Ok(FileOp::Tree {
        source: check.path("the root", path)?,
        within: None,
        recursive,
        attributes: 0,
        no_devices: false,
        users,
        slot,
    })
}

/// The kernel takes one page of options.
const OPTIONS_MAX: usize = 4095;

fn overlay(
    check: &Checked<'_>,
    (lower, upper, work): (&[PathBuf], &Path, &Path),
    at: &Path,
    steps: &mut Steps,
) -> Result<(), StartError> {
    // Relative to a directory above them all: an image can have many layers, and room is short.
    let base = common(lower).ok_or_else(|| check.wrong("an overlay needs absolute layers"))?;
    let layers: Vec<&Path> = lower
        .iter()
        .map(|path| path.strip_prefix(&base).unwrap_or(path))
        .map(|path| {
            if path == Path::new("") {
                Path::new(".")
            } else {
                path
            }
        })
        .collect();
    let mut data = b"userxattr,lowerdir=".to_vec();
    for (index, layer) in layers.iter().enumerate() {
        if index > 0 {
            data.push(b':');
        }
        escape(layer.as_os_str(), &mut data);
    }
    data.extend(b",upperdir=");
    escape(upper.as_os_str(), &mut data);
    data.extend(b",workdir=");
    escape(work.as_os_str(), &mut data);
    if data.len() > OPTIONS_MAX {
        return Err(check.wrong(format!("{} layers are too many for the kernel", lower.len())));
    }
    let name = format!("change to {}", base.display());
    steps.push(name, FileOp::Chdir(check.path("a layer", &base)?));
    // Usually on top of the directory for changes: it exists, and nobody else in this mount namespace looks at it.
    let target = check.path("the root", at)?;
    let op = FileOp::Mount {
        source: check.text("the root", "overlay")?,
        target: target.clone(),
        kind: check.text("the root", "overlay")?,
        flags: 0,
        data: check.text("a layer", data)?,
    };
    steps.push("mount the layers of the root", op);
    steps.push("change to the root", FileOp::Chdir(target));
    Ok(())
}

/// The kernel splits at commas and colons.
fn escape(path: &OsStr, data: &mut Vec<u8>) {
    for byte in path.as_encoded_bytes() {
        if matches!(byte, b':' | b',' | b'\\') {
            data.push(b'\\');
        }
        data.push(*byte);
    }
}

/// The longest path above all.
fn common(paths: &[PathBuf]) -> Option<PathBuf> {
    let mut base = paths.first()?.parent()?;
    while !paths.iter().all(|path| path.starts_with(base)) {
        base = base.parent()?;
    }
    base.is_absolute().then(|| base.to_owned())
}
