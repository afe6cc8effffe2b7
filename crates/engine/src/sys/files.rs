//! The steps that decide what a new process sees of files, between clone and exec.

use super::child::{Outcome, Slots, call, unless};
use super::op::{Cover, FileOp};
use super::owned;
use super::walk::{Links, Missing, Walk, kind, refer, sub_path};
use rustix::fs::{CWD, FileType};
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};

const EMPTY: &CStr = c"";
/// Applies to the whole tree below.
const AT_RECURSIVE: c_uint = 0x8000;
/// Commands of `fsconfig`.
const FSCONFIG_SET_FLAG: c_uint = 0;
const FSCONFIG_SET_STRING: c_uint = 1;
const FSCONFIG_CMD_CREATE: c_uint = 6;
/// The null device.
const NULL_DEVICE: (u32, u32) = (1, 3);

fn errno(error: Errno) -> c_int {
    error.raw_os_error()
}

/// A descriptor that the kernel has just returned.
fn new_fd(rc: c_long) -> Result<OwnedFd, c_int> {
    RawFd::try_from(rc).map(owned).map_err(|_| libc::EBADF)
}

pub(super) fn take(op: &FileOp, slots: &mut Slots<'_>) -> Outcome {
    match op {
        FileOp::Propagation(flags) => mount(None, c"/", None, *flags, None),
        FileOp::Mount {
            source,
            target,
            kind,
            flags,
            data,
        } => mount(Some(source), target, Some(kind), *flags, Some(data)),
        FileOp::AttachAt { slot, target } => attach_at(slots.get(*slot)?, target),
        FileOp::ProtectRoot { attributes } => set_attributes(CWD, c"/", (*attributes, None), 0),
        FileOp::Own { path, id } => {
            let (at, links) = (libc::AT_FDCWD, libc::AT_SYMLINK_NOFOLLOW);
            call!(libc::SYS_fchownat, at, path.as_ptr(), *id, *id, links)
        }
        FileOp::Chdir(path) => call!(libc::SYS_chdir, path.as_ptr()),
        FileOp::PivotRoot => call!(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()),
        FileOp::DetachOldRoot => call!(libc::SYS_umount2, c".".as_ptr(), libc::MNT_DETACH),
        FileOp::WorkingDirectory(path) => working_directory(path),
        other => on_descriptors(other, slots),
    }
}

/// Steps that work on descriptors in slots.
fn on_descriptors(op: &FileOp, slots: &mut Slots<'_>) -> Outcome {
    match op {
        FileOp::New {
            kind,
            options,
            attributes,
            slot,
        } => file_system(kind, options, *attributes).and_then(|fd| slots.put(*slot, fd)),
        FileOp::Tree {
            source,
            within,
            recursive,
            attributes,
            no_devices,
            users,
            slot,
        } => {
            let copy = tree(source, within.as_ref(), *recursive)?;
            let attributes = attributes | device_attributes(copy.as_fd(), *no_devices)?;
            set_attributes_of(copy.as_fd(), attributes, *users)?;
            slots.put(*slot, copy)
        }
        FileOp::Enter { slot } => call!(libc::SYS_fchdir, slots.get(*slot)?.as_raw_fd()),
        FileOp::Null { slot } => null_device().and_then(|fd| slots.put(*slot, fd)),
        FileOp::Expect { slot, magic } => {
            let expected = is_kind(slots.get(*slot)?, *magic)?;
            if expected { Ok(0) } else { Err(libc::EINVAL) }
        }
        FileOp::Avoid { slot, magic } => {
            let wrong = is_kind(slots.get(*slot)?, *magic)?;
            if wrong { Err(libc::EPERM) } else { Ok(0) }
        }
        FileOp::Target {
            below,
            path,
            links,
            like,
            slot,
        } => target(*below, path, *links, *like, slots).and_then(|fd| slots.put(*slot, fd)),
        FileOp::Attach { slot, target } => attach(slots.get(*slot)?, slots.get(*target)?),
        FileOp::Cover {
            below,
            magic,
            part,
            by,
        } => cover(slots.get(*below)?, *magic, part, *by, slots),
        FileOp::Link { to, below, name } => {
            let below = slots.get(*below)?.as_raw_fd();
            let made = call!(libc::SYS_symlinkat, to.as_ptr(), below, name.as_ptr());
            unless(made, &[libc::EEXIST])
        }
        _ => Err(libc::EINVAL),
    }
}

fn pointer(text: Option<&CStr>) -> *const c_char {
    text.map_or(std::ptr::null(), CStr::as_ptr)
}

fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    data: Option<&CStr>,
) -> Outcome {
    call!(
        libc::SYS_mount,
        pointer(source),
        target.as_ptr(),
        pointer(kind),
        flags,
        pointer(data)
    )
}

/// A new file system that is not attached anywhere: its descriptor cannot be anything else.
fn file_system(
    kind: &CStr,
    options: &[(CString, Option<CString>)],
    attributes: u64,
) -> Result<OwnedFd, c_int> {
    let context = new_fd(call!(libc::SYS_fsopen, kind.as_ptr(), libc::FSOPEN_CLOEXEC)?)?;
    configure(context.as_fd(), FSCONFIG_SET_STRING, Some(c"source"), Some(kind))?;
    for (name, value) in options {
        let command = if value.is_some() {
            FSCONFIG_SET_STRING
        } else {
            FSCONFIG_SET_FLAG
        };
        configure(context.as_fd(), command, Some(name), value.as_deref())?;
    }
    configure(context.as_fd(), FSCONFIG_CMD_CREATE, None, None)?;
    let (fd, flags) = (context.as_raw_fd(), libc::FSMOUNT_CLOEXEC);
    new_fd(call!(libc::SYS_fsmount, fd, flags, attributes)?)
}

fn configure(context: BorrowedFd<'_>, command: c_uint, name: Option<&CStr>, value: Option<&CStr>) -> Outcome {
    call!(
        libc::SYS_fsconfig,
        context.as_raw_fd(),
        command,
        pointer(name),
        pointer(value),
        0
    )
}

fn tree(source: &CStr, within: Option<&Walk>, recursive: bool) -> Result<OwnedFd, c_int> {
    let source = refer(source).map_err(errno)?;
    let part = within.map(|part| sub_path(source.as_fd(), part)).transpose();
    let part = part.map_err(errno)?;
    copy(part.as_ref().unwrap_or(&source).as_fd(), recursive)
}

/// A detached copy of what is mounted at a descriptor.
fn copy(of: BorrowedFd<'_>, recursive: bool) -> Result<OwnedFd, c_int> {
    let mut flags =
        libc::OPEN_TREE_CLONE | libc::O_CLOEXEC.cast_unsigned() | libc::AT_EMPTY_PATH.cast_unsigned();
    if recursive {
        flags |= AT_RECURSIVE;
    }
    new_fd(call!(libc::SYS_open_tree, of.as_raw_fd(), EMPTY.as_ptr(), flags)?)
}

fn device_attributes(copy: BorrowedFd<'_>, no_devices: bool) -> Result<u64, c_int> {
    let device = matches!(
        kind(copy).map_err(errno)?,
        FileType::CharacterDevice | FileType::BlockDevice
    );
    Ok(if no_devices && !device {
        libc::MOUNT_ATTR_NODEV
    } else {
        0
    })
}

fn null_device() -> Result<OwnedFd, c_int> {
    let null = refer(c"/dev/null").map_err(errno)?;
    let found = rustix::fs::fstat(&null).map_err(errno)?;
    let device = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev));
    if is_null(FileType::from_raw_mode(found.st_mode), device) {
        Ok(null)
    } else {
        Err(libc::ENODEV)
    }
}

fn is_null(kind: FileType, device: (u32, u32)) -> bool {
    kind == FileType::CharacterDevice && device == NULL_DEVICE
}

fn is_kind(fd: BorrowedFd<'_>, magic: i64) -> Result<bool, c_int> {
    let found = rustix::fs::fstatfs(fd).map_err(errno)?;
    Ok(found.f_type == magic)
}

fn target(
    below: Option<usize>,
    path: &Walk,
    links: Links,
    like: Option<usize>,
    slots: &Slots<'_>,
) -> Result<OwnedFd, c_int> {
    let base = below.map_or(Ok(CWD), |slot| slots.get(slot))?;
    let directory = match like {
        None => true,
        Some(slot) => kind(slots.get(slot)?).map_err(errno)? == FileType::Directory,
    };
    let missing = if directory {
        Missing::Directory(0o755)
    } else {
        Missing::File
    };
    let found = path.open(base, links, missing).map_err(errno)?;
    if directory && kind(found.as_fd()).map_err(errno)? != FileType::Directory {
        return Err(libc::ENOTDIR);
    }
    Ok(found)
}

fn attach(what: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Outcome {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    let (from, to) = (what.as_raw_fd(), target.as_raw_fd());
    call!(
        libc::SYS_move_mount,
        from,
        EMPTY.as_ptr(),
        to,
        EMPTY.as_ptr(),
        flags
    )
}

fn attach_at(what: BorrowedFd<'_>, target: &CStr) -> Outcome {
    call!(
        libc::SYS_move_mount,
        what.as_raw_fd(),
        EMPTY.as_ptr(),
        libc::AT_FDCWD,
        target.as_ptr(),
        libc::MOVE_MOUNT_F_EMPTY_PATH
    )
}

fn set_attributes(
    base: BorrowedFd<'_>,
    path: &CStr,
    (set, users): (u64, Option<RawFd>),
    flags: c_uint,
) -> Outcome {
    // The kernel's structure: set, clear, propagation, user namespace.
    let how = match users.map(u64::try_from) {
        None => [set, 0u64, 0, 0],
        Some(Ok(users)) => [set | libc::MOUNT_ATTR_IDMAP, 0, 0, users],
        Some(Err(_)) => return Err(libc::EBADF),
    };
    call!(
        libc::SYS_mount_setattr,
        base.as_raw_fd(),
        path.as_ptr(),
        flags,
        how.as_ptr(),
        32
    )
}

/// Of a detached tree and all mounts in it.
fn set_attributes_of(tree: BorrowedFd<'_>, set: u64, users: Option<RawFd>) -> Outcome {
    if set == 0 && users.is_none() {
        return Ok(0);
    }
    let flags = libc::AT_EMPTY_PATH.cast_unsigned() | AT_RECURSIVE;
    set_attributes(tree, EMPTY, (set, users), flags)
}

/// Whether everything mounted at a path of this machine can show the ids of a user namespace in place of those on disk.
pub(crate) fn can_map(path: &std::path::Path, users: BorrowedFd<'_>) -> std::io::Result<()> {
    let path = super::c_path(path)?;
    let mapped = tree(&path, None, true).and_then(|copy| {
        let users = Some(users.as_raw_fd());
        set_attributes_of(copy.as_fd(), 0, users)
    });
    mapped.map(drop).map_err(std::io::Error::from_raw_os_error)
}

/// The attributes of an empty directory in which nothing can be done.
fn nothing_works() -> u64 {
    libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC
}

/// A part that does not exist is fine only because `below` was checked to be procfs or sysfs.
fn cover(below: BorrowedFd<'_>, magic: i64, part: &Walk, by: Cover, slots: &Slots<'_>) -> Outcome {
    if !is_kind(below, magic)? {
        return Ok(0);
    }
    let found = match part.open(below, Links::Refused, Missing::Error) {
        Err(Errno::NOENT) => return Ok(0),
        other => other.map_err(errno)?,
    };
    let found = found.as_fd();
    let cover = match by {
        Cover::ReadOnly => copy(found, true)?,
        Cover::Hidden { .. } if kind(found).map_err(errno)? == FileType::Directory => {
            file_system(c"tmpfs", &[], nothing_works())?
        }
        Cover::Hidden { null } => copy(slots.get(null)?, false)?,
    };
    set_attributes_of(cover.as_fd(), libc::MOUNT_ATTR_RDONLY, None)?;
    attach(cover.as_fd(), found)
}

/// The kernel tells a working directory that is not below the root by a path without a slash in front.
fn working_directory(path: &Walk) -> Outcome {
    let found = path.open(CWD, Links::InRoot, Missing::Directory(0o755));
    rustix::process::fchdir(found.map_err(errno)?).map_err(errno)?;
    let mut name = [0u8; libc::PATH_MAX as usize];
    call!(libc::SYS_getcwd, name.as_mut_ptr(), name.len())?;
    match name {
        [b'/', ..] => Ok(0),
        _ => Err(libc::EXDEV),
    }
}

#[cfg(test)]
mod tests {
    use super::{FileType, is_null, nothing_works};

    #[test]
    fn only_the_null_device_hides_files() {
        assert!(is_null(FileType::CharacterDevice, (1, 3)));
        for (kind, device) in [
            (FileType::CharacterDevice, (1, 5)),
            (FileType::CharacterDevice, (0, 3)),
            (FileType::BlockDevice, (1, 3)),
            (FileType::RegularFile, (0, 0)),
        ] {
            assert!(!is_null(kind, device), "{kind:?} {device:?}");
        }
    }

    #[test]
    fn what_hides_a_directory_is_read_only_and_runs_nothing() {
        for attribute in [
            libc::MOUNT_ATTR_RDONLY,
            libc::MOUNT_ATTR_NOSUID,
            libc::MOUNT_ATTR_NODEV,
            libc::MOUNT_ATTR_NOEXEC,
        ] {
            assert_eq!(nothing_works() & attribute, attribute);
        }
    }
}
