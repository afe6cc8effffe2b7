//! Terminals for processes in containers.

use rustix::fs::{Gid, Mode, OFlags, Uid, fchown, open as open_file};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// A terminal among a container's own, so that programs find it by name: our side, and the process's.
pub(super) fn open(devices: &Path, owner: (u32, u32)) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let ours = open_file(devices.join("pts/ptmx"), flags, Mode::empty())?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(
        &ours,
        OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )?;
    fchown(
        &theirs,
        Some(Uid::from_raw(owner.0)),
        Some(Gid::from_raw(owner.1)),
    )?;
    Ok((ours, theirs))
}
