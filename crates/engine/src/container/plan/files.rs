//! The steps that build what the container sees of files.
//!
//! Sources are taken as detached copies while this machine's root is still there; targets are made and attached after
//! the container's root has become the root. So a link in an image or a volume cannot lead a mount out of it.

use super::{Checked, Steps, root};
use crate::container::{Mount, MountKind, Spec, StartError};
use crate::sandbox::Processes;
use crate::sys::{Op, in_user_namespace, open_within};
use std::ffi::CString;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Devices every program may expect.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Links in `/dev`.
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("pts/ptmx", "/dev/ptmx"),
];
/// Parts of `/proc` and `/sys` that tell about, or act on, the whole machine.
pub(in crate::container) const MASKED: [&str; 11] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
/// Parts of `/proc` that change the whole machine when written to.
pub(in crate::container) const PROTECTED: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// A file system of the kernel that containers usually have.
pub(in crate::container) struct Usual {
    pub(in crate::container) target: &'static str,
    pub(in crate::container) kind: &'static str,
    pub(in crate::container) flags: libc::c_ulong,
    pub(in crate::container) data: &'static str,
}

const QUIET: libc::c_ulong = libc::MS_NOSUID | libc::MS_NOEXEC | libc::MS_NODEV;

pub(in crate::container) const USUAL: [Usual; 6] = [
    usual("/proc", "proc", QUIET, ""),
    usual(
        "/dev",
        "tmpfs",
        libc::MS_NOSUID | libc::MS_NODEV,
        "mode=755,size=65536k",
    ),
    usual(
        "/dev/pts",
        "devpts",
        libc::MS_NOSUID | libc::MS_NOEXEC,
        "newinstance,ptmxmode=0666,mode=0620",
    ),
    usual("/dev/shm", "tmpfs", QUIET, "mode=1777,size=65536k"),
    usual("/dev/mqueue", "mqueue", QUIET, ""),
    usual("/sys", "sysfs", QUIET | libc::MS_RDONLY, ""),
];

const fn usual(target: &'static str, kind: &'static str, flags: libc::c_ulong, data: &'static str) -> Usual {
    Usual {
        target,
        kind,
        flags,
        data,
    }
}

/// What a mount becomes after its source was looked at.
struct Prepared<'a> {
    mount: &'a Mount,
    directory: bool,
    /// Devices in it can be used: it is one, or the container is privileged.
    devices: bool,
    slot: Option<usize>,
}

pub(super) fn plan(check: &Checked<'_>, spec: &Spec, steps: &mut Steps) -> Result<(), StartError> {
    steps.push(
        "make mounts private",
        Op::Propagation(libc::MS_REC | libc::MS_PRIVATE),
    );
    let mut prepared = Vec::new();
    for mount in &spec.mounts {
        prepared.push(take(check, mount, spec.privileged, steps)?);
    }
    let devices = take_devices(check, steps)?;
    let taken = take_whole(check, spec, steps)?;
    root::mount(check, &spec.root, None, steps)?;
    steps.push("enter the root", Op::PivotRoot);
    let replaced = |target: &str| spec.mounts.iter().any(|m| m.target == Path::new(target));
    for item in USUAL.iter().filter(|item| !replaced(item.target)) {
        match taken.iter().find(|(target, _)| *target == item.target) {
            Some((target, slot)) => attach_whole(check, target, *slot, spec.privileged, steps)?,
            // This machine's devices come with everything below them.
            None if item.target.starts_with("/dev/") && spec.privileged => {}
            None if item.target == "/dev/mqueue" && !spec.sandbox.has_own_ipc() => {}
            None => mount_usual(check, item, spec.privileged, steps)?,
        }
        if item.target == "/dev" && !spec.privileged {
            place_devices(check, &devices, steps)?;
        }
    }
    for item in &prepared {
        place(check, item, steps)?;
    }
    steps.push("let go of the old root", Op::DetachOldRoot);
    steps.push("change to /", Op::Chdir(check.text("/", "/")?));
    if !spec.privileged {
        guard(check, steps)?;
    }
    let mut set = 0;
    if spec.readonly_root {
        set |= libc::MOUNT_ATTR_RDONLY;
    }
    if !spec.privileged {
        // Whoever may make device files may not use them: nothing else stands between root and the disks here.
        set |= libc::MOUNT_ATTR_NODEV;
    }
    if set != 0 {
        let op = Op::Attributes {
            target: check.text("/", "/")?,
            set,
            recursive: false,
        };
        steps.push("protect the root", op);
    }
    Ok(())
}

fn take<'a>(
    check: &Checked<'_>,
    mount: &'a Mount,
    privileged: bool,
    steps: &mut Steps,
) -> Result<Prepared<'a>, StartError> {
    check.inside("mount target", &mount.target)?;
    let MountKind::Bind { source, within } = &mount.kind else {
        return Ok(Prepared {
            mount,
            directory: true,
            devices: true,
            slot: None,
        });
    };
    let name = format!("mount {}: take {}", mount.target.display(), source.display());
    let meta = match within {
        None => std::fs::metadata(source),
        Some(part) => open_within(source, part).and_then(|file| file.metadata()),
    };
    let meta = meta.map_err(|source| check.step(&name, source))?;
    let slot = steps.slot();
    let within = within
        .as_ref()
        .map(|part| check.path("mount source", part))
        .transpose()?;
    let source = check.path("mount source", source)?;
    let op = Op::Tree {
        source,
        within,
        recursive: true,
        slot,
    };
    steps.push(name, op);
    Ok(Prepared {
        mount,
        directory: meta.is_dir(),
        devices: privileged || meta.file_type().is_char_device() || meta.file_type().is_block_device(),
        slot: Some(slot),
    })
}

/// Kernel file systems that are this machine's own, because what they show is: a new one would not be allowed, or
/// would show the same.
fn take_whole(
    check: &Checked<'_>,
    spec: &Spec,
    steps: &mut Steps,
) -> Result<Vec<(&'static str, usize)>, StartError> {
    let mut wanted = Vec::new();
    if spec.sandbox.processes() == Processes::Host {
        wanted.push("/proc");
    }
    if spec.sandbox.network().is_none() && in_user_namespace() {
        wanted.push("/sys");
    }
    if spec.privileged {
        wanted.push("/dev");
    }
    let mut taken = Vec::new();
    for target in wanted {
        let slot = steps.slot();
        let op = Op::Tree {
            source: check.text("a mount", target)?,
            within: None,
            recursive: true,
            slot,
        };
        steps.push(format!("take {target}"), op);
        taken.push((target, slot));
    }
    Ok(taken)
}

fn attach_whole(
    check: &Checked<'_>,
    target: &str,
    slot: usize,
    privileged: bool,
    steps: &mut Steps,
) -> Result<(), StartError> {
    directories(check, Path::new(target), steps)?;
    let path = check.text("a mount", target)?;
    let op = Op::Attach {
        slot,
        target: path.clone(),
    };
    steps.push(format!("mount {target}"), op);
    if target == "/sys" && !privileged {
        let op = Op::Attributes {
            target: path,
            set: libc::MOUNT_ATTR_RDONLY,
            recursive: true,
        };
        steps.push("make /sys read-only", op);
    }
    Ok(())
}

fn take_devices(check: &Checked<'_>, steps: &mut Steps) -> Result<Vec<(&'static str, usize)>, StartError> {
    let mut taken = Vec::new();
    for name in DEVICES {
        let path = format!("/dev/{name}");
        let slot = steps.slot();
        let op = Op::Tree {
            source: check.text("a device", path.as_str())?,
            within: None,
            recursive: false,
            slot,
        };
        steps.push(format!("take {path}"), op);
        taken.push((name, slot));
    }
    Ok(taken)
}

fn place_devices(
    check: &Checked<'_>,
    devices: &[(&str, usize)],
    steps: &mut Steps,
) -> Result<(), StartError> {
    for (name, slot) in devices {
        let target = check.text("a device", format!("/dev/{name}"))?;
        let file = Op::File {
            path: target.clone(),
            mode: 0o666,
        };
        steps.push(format!("make /dev/{name}"), file);
        let slot = *slot;
        steps.push(format!("mount /dev/{name}"), Op::Attach { slot, target });
    }
    for (to, path) in LINKS {
        let op = Op::Link {
            to: check.text("a link", to)?,
            path: check.text("a link", path)?,
        };
        steps.push(format!("link {path}"), op);
    }
    Ok(())
}

fn mount_usual(
    check: &Checked<'_>,
    item: &Usual,
    privileged: bool,
    steps: &mut Steps,
) -> Result<(), StartError> {
    directories(check, Path::new(item.target), steps)?;
    let flags = if privileged {
        item.flags & !libc::MS_RDONLY
    } else {
        item.flags
    };
    let op = Op::Mount {
        source: check.text("a mount", item.kind)?,
        target: check.text("a mount", item.target)?,
        kind: check.text("a mount", item.kind)?,
        flags,
        data: check.text("a mount", item.data)?,
    };
    steps.push(format!("mount {} on {}", item.kind, item.target), op);
    Ok(())
}

/// Makes a directory and those above it.
pub(super) fn directories(check: &Checked<'_>, path: &Path, steps: &mut Steps) -> Result<(), StartError> {
    let mut all: Vec<&Path> = path.ancestors().filter(|p| p.parent().is_some()).collect();
    all.reverse();
    for dir in all {
        let op = Op::Directory {
            path: check.path("a directory", dir)?,
            mode: 0o755,
        };
        steps.push(format!("make {}", dir.display()), op);
    }
    Ok(())
}

fn place(check: &Checked<'_>, item: &Prepared<'_>, steps: &mut Steps) -> Result<(), StartError> {
    let target = &item.mount.target;
    let name = format!("mount {}", target.display());
    let path = check.path("mount target", target)?;
    if item.directory {
        directories(check, target, steps)?;
    } else {
        directories(check, target.parent().unwrap_or(Path::new("/")), steps)?;
        let op = Op::File {
            path: path.clone(),
            mode: 0o644,
        };
        steps.push(format!("make {}", target.display()), op);
    }
    let op = match (&item.mount.kind, item.slot) {
        (MountKind::Bind { .. }, Some(slot)) => Op::Attach {
            slot,
            target: path.clone(),
        },
        (kind, _) => tmpfs(check, kind, path.clone())?,
    };
    steps.push(name, op);
    let mut set = 0;
    if item.mount.readonly {
        set |= libc::MOUNT_ATTR_RDONLY;
    }
    if !item.devices {
        set |= libc::MOUNT_ATTR_NODEV;
    }
    if set != 0 {
        let op = Op::Attributes {
            target: path,
            set,
            recursive: true,
        };
        steps.push(format!("protect {}", target.display()), op);
    }
    Ok(())
}

fn tmpfs(check: &Checked<'_>, kind: &MountKind, target: CString) -> Result<Op, StartError> {
    let data = match kind {
        MountKind::Tmpfs { size, mode } => {
            let size = size.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
            format!("mode={mode:o}{size}")
        }
        MountKind::Bind { .. } => String::new(),
    };
    Ok(Op::Mount {
        source: check.text("a mount", "tmpfs")?,
        target,
        kind: check.text("a mount", "tmpfs")?,
        flags: libc::MS_NOSUID | libc::MS_NODEV,
        data: check.text("a mount", data)?,
    })
}

fn guard(check: &Checked<'_>, steps: &mut Steps) -> Result<(), StartError> {
    for path in MASKED {
        let op = Op::Mask {
            path: check.text("a path", path)?,
        };
        steps.push(format!("hide {path}"), op);
    }
    for path in PROTECTED {
        let op = Op::Protect {
            path: check.text("a path", path)?,
        };
        steps.push(format!("make {path} read-only"), op);
    }
    Ok(())
}
