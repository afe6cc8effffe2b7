//! Terminals for processes in containers.

use rustix::fs::{Gid, Mode, OFlags, Uid, fchown, open as open_file};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Says how large the window is.
pub(crate) fn resize(fd: &OwnedFd, rows: u16, columns: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // A terminal without a size is still a terminal.
    let _ = tcsetwinsize(fd, size);
}

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
