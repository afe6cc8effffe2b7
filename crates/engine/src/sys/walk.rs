//! Paths below a directory that somebody hostile may write to: resolved by the kernel, never by name twice.
//!
//! An image, or a container that shares a volume, decides what lies at a path and can change it at any moment. So a
//! path is opened once with `openat2`, which keeps the resolution below the starting directory, and everything else
//! works on the descriptor. Used between clone and exec too: nothing here allocates but [`Walk::new`].

use super::c_path;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// How often a resolution is tried again that the kernel gave up because of a rename meanwhile.
const RENAME_RETRIES: usize = 128;

/// What links in a path may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// They are followed as if the start were the root directory.
    InRoot,
    /// They are followed unless they lead out of the start.
    Beneath,
    /// Any link is an error.
    Refused,
}

impl Links {
    fn flags(self) -> ResolveFlags {
        // Magic links (/proc/self/fd/N) lead to whatever the resolving process has open.
        ResolveFlags::NO_MAGICLINKS
            | match self {
                Self::InRoot => ResolveFlags::IN_ROOT,
                Self::Beneath => ResolveFlags::BENEATH,
                Self::Refused => ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS,
            }
    }
}

/// What is made where a path ends, if there is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Nothing, neither there nor on the way.
    Error,
    /// Directories with this mode; the mask of the process applies.
    Directory(u32),
    /// Directories with exactly this mode.
    ExactDirectory(u32),
    /// Directories (0755) and an empty file.
    File,
}

/// A relative path, cut so that missing parts can be made one by one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Each part of the path: the whole path up to it, and its name.
    parts: Vec<(CString, CString)>,
}

impl Walk {
    /// A path without `..`; a slash in front does not matter.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let mut whole = PathBuf::new();
        let mut parts = Vec::new();
        for component in path.components() {
            match component {
                Component::Normal(name) => {
                    whole.push(name);
                    parts.push((c_path(&whole)?, c_path(Path::new(name))?));
                }
                Component::CurDir | Component::RootDir => {}
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
            }
        }
        Ok(Self { parts })
    }

    /// Opens the path below a directory, only to refer to it.
    pub(crate) fn open(
        &self,
        base: BorrowedFd<'_>,
        links: Links,
        missing: Missing,
    ) -> Result<OwnedFd, Errno> {
        let Some((last, above)) = self.parts.split_last() else {
            return reach(base, c".", links);
        };
        if missing == Missing::Error {
            return reach(base, &last.0, links);
        }
        let directories = match missing {
            Missing::File | Missing::Error => Missing::Directory(0o755),
            other => other,
        };
        let mut parent: Option<OwnedFd> = None;
        for (path, name) in above {
            parent = Some(step(base, parent.as_ref(), (path, name), links, directories)?);
        }
        step(base, parent.as_ref(), (&last.0, &last.1), links, missing)
    }
}

/// Opens one more part of a path, and makes it if it is missing.
fn step(
    base: BorrowedFd<'_>,
    parent: Option<&OwnedFd>,
    (path, name): (&CString, &CString),
    links: Links,
    missing: Missing,
) -> Result<OwnedFd, Errno> {
    match reach(base, path, links) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    let parent = parent.map_or(base, std::os::fd::AsFd::as_fd);
    make(parent, name, missing)?;
    // It may have been exchanged meanwhile; the resolution is as strict as before.
    reach(base, path, links)
}

/// A name without a slash, which is never followed. Somebody else may have made it first.
fn make(parent: BorrowedFd<'_>, name: &CString, missing: Missing) -> Result<(), Errno> {
    let permissions = Mode::from_raw_mode;
    let outcome = match missing {
        Missing::Error => Err(Errno::NOENT),
        Missing::Directory(bits) | Missing::ExactDirectory(bits) => {
            rustix::fs::mkdirat(parent, name.as_c_str(), permissions(bits))
        }
        Missing::File => rustix::fs::mknodat(
            parent,
            name.as_c_str(),
            FileType::RegularFile,
            permissions(0o644),
            0,
        ),
    };
    match (outcome, missing) {
        (Ok(()), Missing::ExactDirectory(bits)) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let made = rustix::fs::openat(parent, name.as_c_str(), flags, Mode::empty())?;
            rustix::fs::fchmod(&made, permissions(bits))
        }
        (Err(Errno::EXIST), _) => Ok(()),
        (other, _) => other,
    }
}

/// Opens a whole path at once, only to refer to it.
pub(super) fn reach(base: BorrowedFd<'_>, path: &std::ffi::CStr, links: Links) -> Result<OwnedFd, Errno> {
    let mut outcome = Err(Errno::AGAIN);
    for _ in 0..RENAME_RETRIES {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        outcome = rustix::fs::openat2(base, path, flags, Mode::empty(), links.flags());
        if !matches!(outcome, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
    }
    outcome
}

/// A part of a volume, as a kubelet finds it: no link leads out of the volume, and directories that are missing are
/// made with the mode of the volume.
// k8s: SafeMakeDir and doBindSubPath of pkg/volume/util/subpath.
pub(crate) fn sub_path(volume: BorrowedFd<'_>, part: &Walk) -> Result<OwnedFd, Errno> {
    let mode = rustix::fs::fstat(volume)?.st_mode & 0o7777;
    part.open(volume, Links::Beneath, Missing::ExactDirectory(mode))
}

/// A directory or file of this machine, only to refer to it.
pub(crate) fn refer(path: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty())
}

/// The kind of file behind a descriptor.
pub(crate) fn kind(fd: BorrowedFd<'_>) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))
}

#[cfg(test)]
mod tests {
    use super::{Errno, FileType, Links, Missing, OFlags, Walk, kind, refer, sub_path};
    use std::fs::File;
    use std::os::fd::AsFd as _;
    use std::path::Path;

    #[test]
    fn only_plain_paths_can_be_walked() {
        for path in ["..", "a/..", "/../a", "a/../b"] {
            assert!(Walk::new(Path::new(path)).is_err(), "{path}");
        }
        assert_eq!(
            Walk::new(Path::new("/a/./b/")).unwrap(),
            Walk::new(Path::new("a/b")).unwrap()
        );
        let parts = Walk::new(Path::new("/a/b")).unwrap().parts;
        let text = |part: &std::ffi::CString| part.to_str().unwrap().to_owned();
        let parts: Vec<_> = parts
            .iter()
            .map(|(path, name)| (text(path), text(name)))
            .collect();
        assert_eq!(parts, [("a".into(), "a".into()), ("a/b".into(), "b".into())]);
    }

    /// Whatever is at a path, nothing is made outside of the directory it starts from.
    #[test]
    fn nothing_is_made_outside() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let base = File::open(dir.path()).unwrap();
        let targets = [
            outside.path().to_owned(),
            outside.path().join("dangling"),
            Path::new("../..").join(outside.path().strip_prefix("/").unwrap()),
            "/proc/self/root".into(),
        ];
        for (number, to) in targets.iter().enumerate() {
            std::os::unix::fs::symlink(to, dir.path().join(number.to_string())).unwrap();
            for below in ["", "/made", "/made/deep"] {
                let walk = Walk::new(Path::new(&format!("{number}{below}"))).unwrap();
                for missing in [
                    Missing::Directory(0o755),
                    Missing::ExactDirectory(0o700),
                    Missing::File,
                ] {
                    for links in [Links::Beneath, Links::Refused] {
                        let error = walk.open(base.as_fd(), links, missing).unwrap_err();
                        assert!(matches!(error, Errno::XDEV | Errno::LOOP), "{to:?} {error}");
                    }
                    // As a root directory: the same names below it, if anything.
                    let _ = walk.open(base.as_fd(), Links::InRoot, missing);
                }
            }
            assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0, "{to:?}");
        }
    }

    fn mode(path: &Path) -> u32 {
        std::os::unix::fs::MetadataExt::mode(&std::fs::symlink_metadata(path).unwrap()) & 0o7777
    }

    #[test]
    fn missing_parts_are_made_as_it_is_said_and_not_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let base = File::open(dir.path()).unwrap();
        let open = |path: &str, missing: Missing| {
            let walk = Walk::new(Path::new(path)).unwrap();
            walk.open(base.as_fd(), Links::Beneath, missing)
        };
        assert_eq!(open("none/deep", Missing::Error).unwrap_err(), Errno::NOENT);
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "nothing is made"
        );
        open("a/b/c", Missing::Directory(0o700)).unwrap();
        assert_eq!(
            [mode(&dir.path().join("a")), mode(&dir.path().join("a/b/c"))],
            [0o700; 2]
        );
        open("x/y", Missing::ExactDirectory(0o2777)).unwrap();
        let exact = [mode(&dir.path().join("x")), mode(&dir.path().join("x/y"))];
        assert_eq!(exact, [0o2777; 2], "the mask of the process does not count");
        let file = open("f/g", Missing::File).unwrap();
        assert!(dir.path().join("f").is_dir() && dir.path().join("f/g").is_file());
        assert_eq!(kind(file.as_fd()).unwrap(), FileType::RegularFile);
        // What is there stays as it is.
        std::fs::write(dir.path().join("f/g"), "kept").unwrap();
        open("f/g", Missing::File).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("f/g")).unwrap(), "kept");
        let whole = Walk::new(Path::new("/")).unwrap();
        let whole = whole.open(base.as_fd(), Links::Beneath, Missing::Error).unwrap();
        assert_eq!(kind(whole.as_fd()).unwrap(), FileType::Directory);
    }

    #[test]
    fn links_are_followed_below_the_start_where_that_is_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let base = File::open(dir.path()).unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::fs::write(dir.path().join("real/file"), "").unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("near")).unwrap();
        std::os::unix::fs::symlink("/real", dir.path().join("absolute")).unwrap();
        let open = |path: &str, links: Links| {
            let walk = Walk::new(Path::new(path)).unwrap();
            walk.open(base.as_fd(), links, Missing::Error).map(drop)
        };
        for (path, expected) in [
            ("real/file", [Ok(()), Ok(()), Ok(())]),
            ("near/file", [Ok(()), Ok(()), Err(Errno::LOOP)]),
            ("absolute/file", [Ok(()), Err(Errno::XDEV), Err(Errno::LOOP)]),
        ] {
            let found = [Links::InRoot, Links::Beneath, Links::Refused].map(|links| open(path, links));
            assert_eq!(found, expected, "{path}");
        }
    }

    /// Links of procfs lead to whatever the resolving process has open.
    #[test]
    fn magic_links_are_never_followed() {
        let proc = File::open("/proc/self").unwrap();
        for links in [Links::InRoot, Links::Beneath, Links::Refused] {
            for path in ["root/etc", "cwd", "exe"] {
                let walk = Walk::new(Path::new(path)).unwrap();
                let outcome = walk.open(proc.as_fd(), links, Missing::Error);
                assert_eq!(outcome.unwrap_err(), Errno::LOOP, "{path} {links:?}");
            }
        }
    }

    /// A descriptor that only refers to a file cannot read it, and no program that is executed gets it.
    #[test]
    fn descriptors_only_refer_and_do_not_survive_an_exec() {
        let dir = tempfile::tempdir().unwrap();
        let base = File::open(dir.path()).unwrap();
        let walk = Walk::new(Path::new("a")).unwrap();
        let made = walk.open(base.as_fd(), Links::Refused, Missing::Directory(0o755));
        for fd in [made.unwrap(), refer(c"/dev/null").unwrap()] {
            let flags = rustix::fs::fcntl_getfl(&fd).unwrap();
            assert!(flags.contains(OFlags::PATH), "{flags:?}");
            let flags = rustix::io::fcntl_getfd(&fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "{flags:?}");
        }
    }

    #[test]
    fn a_part_of_a_volume_is_made_with_the_mode_of_the_volume() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o3751)).unwrap();
        let volume = File::open(dir.path()).unwrap();
        sub_path(volume.as_fd(), &Walk::new(Path::new("p/q")).unwrap()).unwrap();
        assert_eq!(
            [mode(&dir.path().join("p")), mode(&dir.path().join("p/q"))],
            [0o3751; 2]
        );
        std::os::unix::fs::symlink("/", dir.path().join("out")).unwrap();
        let out = sub_path(volume.as_fd(), &Walk::new(Path::new("out/etc")).unwrap());
        assert_eq!(out.unwrap_err(), Errno::XDEV);
    }
}
