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

#[cfg(test)]
mod tests {
    use super::{make, take};
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn open_directory(path: &Path) {
        std::fs::create_dir(path).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_directory_that_is_made_is_the_owners_and_one_that_exists_stays() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("a/b");
        make(&new).unwrap();
        assert_eq!(mode(&new), 0o700);
        make(&new).unwrap();
        let old = dir.path().join("old");
        open_directory(&old);
        make(&old).unwrap();
        assert_eq!(mode(&old), 0o755);
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(make(&file).is_err(), "a file is no directory");
        assert!(make(&file.join("below")).is_err());
        assert!(make(&dir.path().join("x".repeat(300))).is_err());
    }

    #[test]
    fn a_directory_that_is_taken_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        take(&at("new")).unwrap();
        open_directory(&at("old"));
        take(&at("old")).unwrap();
        assert_eq!([mode(&at("new")), mode(&at("old"))], [0o700; 2]);
        std::fs::write(at("file"), "").unwrap();
        symlink("new", at("link")).unwrap();
        for wrong in ["file", "link", "none/deep"] {
            assert!(take(&at(wrong)).is_err(), "{wrong}");
        }
        assert_ne!(mode(&at("file")), 0o700, "nothing is changed about a file");
    }
}
