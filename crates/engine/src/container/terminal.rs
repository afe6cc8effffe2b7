//! Terminals for processes in containers.

use rustix::fs::{Gid, Mode, OFlags, Uid, fchown, fstat, major, minor, open as open_file};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
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

/// The device that makes terminals.
const PTMX: (u32, u32) = (5, 2);

/// A terminal among a container's own, so that programs find it by name: our side, and the process's.
///
/// The container decides what lies there: no link leads out of `root`, and nothing but the device is opened.
pub(super) fn open(root: &Path, owner: (u32, u32)) -> io::Result<(OwnedFd, OwnedFd)> {
    let found = crate::sys::open_within(root, Path::new("dev/pts/ptmx"))?;
    let device = fstat(&found)?.st_rdev;
    if (major(device), minor(device)) != PTMX {
        return Err(io::ErrorKind::NotFound.into());
    }
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Through /proc, because the descriptor only refers to it.
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let ours = open_file(path, flags, Mode::empty())?;
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
