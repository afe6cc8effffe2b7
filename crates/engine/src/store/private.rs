//! Directories that only their owner gets into.

use rustix::fs::{Mode, OFlags, fchmod, fstat, open};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// For nobody but the owner.
const PRIVATE: u32 = 0o700;

/// Makes a directory for its owner only, and those above it. One that exists stays as it is: it may be a directory of
/// the operator with other things in it.
pub fn make(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        // What lies further up is shared with others.
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(PRIVATE).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

/// Makes a directory for its owner only; one that exists, from an earlier version, is made so.
///
/// A link, or a directory of another user, is refused: that user could exchange what is in it.
pub fn take(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(PRIVATE).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = open(path, flags, Mode::empty())?;
    let stat = fstat(&directory)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        let why = format!("it belongs to another user (uid {})", stat.st_uid);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    if stat.st_mode & 0o7777 != PRIVATE {
        fchmod(&directory, Mode::from_raw_mode(PRIVATE))?;
    }
    Ok(())
}
