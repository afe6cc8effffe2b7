//! File systems of the kernel in a container, and which parts of them it does not get.
//!
//! An image cannot decide where these go: a place that is a link or a file is an error. What is hidden or read-only in
//! procfs and sysfs is covered relative to the descriptor of the mount itself, whose kind was checked.

use super::{Checked, Plan, Steps};
use crate::container::{Mount, Spec, StartError};
use crate::sandbox::Processes;
use crate::sys::op::{Cover, Slot};
use crate::sys::walk::Links;
use crate::sys::{FileOp, in_user_namespace};
use std::path::Path;

/// What `fstatfs` says of procfs and sysfs.
pub(super) const PROC_MAGIC: i64 = 0x9fa0;
const SYSFS_MAGIC: i64 = 0x6265_6572;

/// Devices every program may expect.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Links in `/dev`.
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];
/// Parts of `/proc` and `/sys` that tell about, or act on, the whole machine: the list of containerd and Docker.
const MASKED: [&str; 12] = [
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
    "/sys/devices/virtual/powercap",
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
/// Files of `/proc` that something may be mounted over, as LXCFS does; the list of runc.
const COVERABLE: [&str; 9] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/net/dev",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
];
/// Where each processor has a directory.
const PROCESSORS: &str = "/sys/devices/system/cpu";

/// A file system of the kernel that containers usually have.
pub(in crate::container) struct Usual {
    pub(in crate::container) target: &'static str,
    pub(in crate::container) kind: &'static str,
    /// `MOUNT_ATTR_…`
    pub(in crate::container) attributes: u64,
    /// `NAME=VALUE`, or flags.
    pub(in crate::container) options: &'static [&'static str],
}

const QUIET: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC | libc::MOUNT_ATTR_NODEV;

pub(in crate::container) const USUAL: [Usual; 6] = [
    usual("/proc", "proc", QUIET, &[]),
    usual(
        "/dev",
        "tmpfs",
        libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        &["mode=755", "size=65536k"],
    ),
    usual(
        "/dev/pts",
        "devpts",
        libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
        &["newinstance", "ptmxmode=0666", "mode=0620"],
    ),
    usual("/dev/shm", "tmpfs", QUIET, &["mode=1777", "size=65536k"]),
    usual("/dev/mqueue", "mqueue", QUIET, &[]),
    usual("/sys", "sysfs", QUIET | libc::MOUNT_ATTR_RDONLY, &[]),
];

const fn usual(
    target: &'static str,
    kind: &'static str,
    attributes: u64,
    options: &'static [&'static str],
) -> Usual {
    Usual {
        target,
        kind,
        attributes,
        options,
    }
}

/// All paths that are hidden: the fixed ones, and what each processor tells of its temperature.
pub(in crate::container) fn masked() -> Vec<String> {
    let mut all: Vec<String> = MASKED.map(str::to_owned).into();
    let processors = std::fs::read_dir(PROCESSORS).into_iter().flatten().flatten();
    let counters = processors.map(|entry| entry.path().join("thermal_throttle"));
    let mut counters: Vec<String> = counters
        .filter(|path| path.exists())
        .map(|path| path.display().to_string())
        .collect();
    counters.sort_unstable();
    all.extend(counters);
    all
}

/// Whether something may be mounted there although it is in `/proc`.
pub(super) fn may_cover(target: &Path) -> bool {
    COVERABLE.iter().any(|path| target == Path::new(path))
}

/// A mount over a part of procfs would hide from programs what the kernel says, and from us what we protect.
pub(super) fn refuse_proc(check: &Checked<'_>, target: &Path) -> Result<(), StartError> {
    if target.starts_with("/proc") && !may_cover(target) {
        return Err(check.wrong(format!("nothing can be mounted at {}", target.display())));
    }
    Ok(())
}

/// What was taken of this machine for the kernel's file systems of a container.
pub(super) struct Kernel {
    /// Devices, by name.
    devices: Vec<(&'static str, Slot)>,
    /// Whole file systems of this machine, by target.
    whole: Vec<(&'static str, Slot)>,
    /// The null device; none: nothing is hidden or protected.
    null: Option<Slot>,
}

/// Takes what comes from this machine.
pub(super) fn take(check: &Checked<'_>, spec: &Spec, plan: &mut Plan) -> Result<Kernel, StartError> {
    let mut devices = Vec::new();
    for name in DEVICES {
        let slot = plan.steps.slot();
        let op = tree(check, &format!("/dev/{name}"), 0, slot, false)?;
        plan.outer().push(format!("take /dev/{name}"), op);
        devices.push((name, slot));
    }
    let mut whole = Vec::new();
    for (target, attributes) in whole_targets(spec) {
        let slot = plan.steps.slot();
        let op = tree(check, target, attributes, slot, true)?;
        plan.outer().push(format!("take {target}"), op);
        whole.push((target, slot));
    }
    let mut null = None;
    if !spec.privileged {
        // Not in between: it is copied, which works in the mount namespace of its descriptor only.
        let slot = plan.steps.slot();
        plan.steps.push("take the null device", FileOp::Null { slot });
        null = Some(slot);
    }
    Ok(Kernel { devices, whole, null })
}

fn tree(
    check: &Checked<'_>,
    source: &str,
    attributes: u64,
    slot: Slot,
    recursive: bool,
) -> Result<FileOp, StartError> {
    Ok(FileOp::Tree {
        source: check.text("a mount", source)?,
        within: None,
        recursive,
        attributes,
        no_devices: false,
        users: None,
        slot,
    })
}

/// Kernel file systems that are this machine's own, because what they show is: a new one would not be allowed, or
/// would show the same.
fn whole_targets(spec: &Spec) -> Vec<(&'static str, u64)> {
    let mut wanted = Vec::new();
    if spec.sandbox.processes() == Processes::Host {
        wanted.push(("/proc", 0));
    }
    if spec.sandbox.network().is_none() && in_user_namespace() {
        let attributes = if spec.privileged {
            0
        } else {
            libc::MOUNT_ATTR_RDONLY
        };
        wanted.push(("/sys", attributes));
    }
    if spec.privileged {
        wanted.push(("/dev", 0));
    }
    wanted
}

impl Kernel {
    /// Mounts all that the container does not replace by mounts of its own.
    pub(super) fn mount(
        &self,
        check: &Checked<'_>,
        spec: &Spec,
        steps: &mut Steps,
    ) -> Result<(), StartError> {
        let replaced = |target: &str| spec.mounts.iter().any(|m| m.target == Path::new(target));
        let mut dev = None;
        for item in USUAL.iter().filter(|item| !replaced(item.target)) {
            let slot = match self.whole.iter().find(|(target, _)| *target == item.target) {
                Some((_, slot)) => *slot,
                // This machine's devices come with everything below them.
                None if item.target.starts_with("/dev/") && spec.privileged => continue,
                None if item.target == "/dev/mqueue" && !spec.sandbox.has_own_ipc() => continue,
                None => new(check, item, spec.privileged, steps)?,
            };
            attach(check, item.target, slot, dev, steps)?;
            match item.target {
                "/dev" if !spec.privileged => {
                    dev = Some(slot);
                    self.place_devices(check, slot, steps)?;
                }
                "/proc" | "/sys" => self.guard(check, item.target, slot, steps)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn place_devices(&self, check: &Checked<'_>, dev: Slot, steps: &mut Steps) -> Result<(), StartError> {
        for (name, slot) in &self.devices {
            let target = steps.slot();
            let op = FileOp::Target {
                below: Some(dev),
                path: check.walk("a device", Path::new(name))?,
                links: Links::Refused,
                like: Some(*slot),
                slot: target,
            };
            steps.push(format!("make /dev/{name}"), op);
            let op = FileOp::Attach { slot: *slot, target };
            steps.push(format!("mount /dev/{name}"), op);
        }
        for (to, name) in LINKS {
            let op = FileOp::Link {
                to: check.text("a link", to)?,
                below: dev,
                name: check.text("a link", name)?,
            };
            steps.push(format!("link /dev/{name}"), op);
        }
        Ok(())
    }

    /// Hides and protects parts of procfs or sysfs.
    fn guard(
        &self,
        check: &Checked<'_>,
        root: &'static str,
        slot: Slot,
        steps: &mut Steps,
    ) -> Result<(), StartError> {
        let magic = magic_of(root);
        let op = FileOp::Expect { slot, magic };
        steps.push(format!("check what is mounted at {root}"), op);
        self.cover(check, root, slot, steps)
    }

    /// The same for a mount of the pod's own at `/sys`: if it is sysfs, parts of it are hidden all the same.
    pub(super) fn guard_mount(
        &self,
        check: &Checked<'_>,
        mount: &Mount,
        slot: Slot,
        steps: &mut Steps,
    ) -> Result<(), StartError> {
        if mount.target == Path::new("/sys") {
            self.cover(check, "/sys", slot, steps)?;
        }
        Ok(())
    }

    fn cover(
        &self,
        check: &Checked<'_>,
        root: &str,
        slot: Slot,
        steps: &mut Steps,
    ) -> Result<(), StartError> {
        let Some(null) = self.null else {
            return Ok(());
        };
        let hidden = masked().into_iter().map(|path| (path, Cover::Hidden { null }));
        let protected = PROTECTED.map(|path| (path.to_owned(), Cover::ReadOnly));
        for (path, by) in hidden.chain(protected) {
            let Ok(part) = Path::new(&path).strip_prefix(root) else {
                continue;
            };
            let op = FileOp::Cover {
                below: slot,
                magic: magic_of(root),
                part: check.walk("a path", part)?,
                by,
            };
            let what = match by {
                Cover::Hidden { .. } => format!("hide {path}"),
                Cover::ReadOnly => format!("make {path} read-only"),
            };
            steps.push(what, op);
        }
        Ok(())
    }
}

fn magic_of(root: &str) -> i64 {
    if root == "/proc" { PROC_MAGIC } else { SYSFS_MAGIC }
}

fn new(check: &Checked<'_>, item: &Usual, privileged: bool, steps: &mut Steps) -> Result<Slot, StartError> {
    let attributes = if privileged {
        item.attributes & !libc::MOUNT_ATTR_RDONLY
    } else {
        item.attributes
    };
    let options = item.options.iter().map(|text| match text.split_once('=') {
        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
        None => ((*text).to_owned(), None),
    });
    let slot = steps.slot();
    let op = FileOp::New {
        kind: check.text("a mount", item.kind)?,
        options: check.options(options)?,
        attributes,
        slot,
    };
    steps.push(format!("make a {} for {}", item.kind, item.target), op);
    Ok(slot)
}

/// Begins the description of the step that opens a special directory.
pub(in crate::container) const OF_IMAGE: &str = "use the directory";

/// Attaches a file system of the kernel: in `/dev` if that is ours, to a real directory of the image otherwise.
fn attach(
    check: &Checked<'_>,
    target: &'static str,
    slot: Slot,
    dev: Option<Slot>,
    steps: &mut Steps,
) -> Result<(), StartError> {
    let below = dev.and_then(|dev| Some((dev, target.strip_prefix("/dev/")?)));
    let path = below.map_or(target, |(_, name)| name);
    let place = steps.slot();
    let op = FileOp::Target {
        below: below.map(|(dev, _)| dev),
        path: check.walk("a mount", Path::new(path))?,
        links: Links::Refused,
        like: None,
        slot: place,
    };
    steps.push(format!("{OF_IMAGE} {target} of the image"), op);
    let op = FileOp::Attach { slot, target: place };
    steps.push(format!("mount {target}"), op);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{COVERABLE, MASKED, PROTECTED, USUAL, may_cover};
    use std::path::Path;

    #[test]
    fn everything_covered_is_below_a_file_system_of_the_kernel() {
        let checked = |path: &str| path.starts_with("/proc/") || path.starts_with("/sys/");
        assert!(MASKED.iter().chain(&PROTECTED).all(|path| checked(path)));
        let roots = ["/proc", "/sys"];
        let mounted = |root: &&str| USUAL.iter().any(|item| item.target == *root);
        assert!(roots.iter().all(mounted));
    }

    #[test]
    fn nothing_that_is_protected_can_be_mounted_over() {
        for path in MASKED.iter().chain(&PROTECTED) {
            assert!(!may_cover(Path::new(path)), "{path}");
            assert!(!COVERABLE.iter().any(|over| path.starts_with(over)), "{path}");
        }
    }

    /// Only `/dev` runs programs, only `/dev/pts` has devices, and only `/sys` is read-only from the start.
    #[test]
    fn file_systems_of_the_kernel_have_as_few_rights_as_programs_can_do_with() {
        let [rdonly, nosuid, nodev, noexec] = [1, 2, 4, 8];
        let found = USUAL.map(|item| (item.target, item.attributes));
        assert_eq!(
            found,
            [
                ("/proc", nosuid + nodev + noexec),
                ("/dev", nosuid + nodev),
                ("/dev/pts", nosuid + noexec),
                ("/dev/shm", nosuid + nodev + noexec),
                ("/dev/mqueue", nosuid + nodev + noexec),
                ("/sys", rdonly + nosuid + nodev + noexec),
            ]
        );
    }
}
