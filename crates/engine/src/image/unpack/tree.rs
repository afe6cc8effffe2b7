//! The directory a layer is unpacked into, and how paths are found in it.

use super::UnpackError;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, XattrFlags, fchown, fsetxattr,
    fstat, mkdirat, open, openat2, readlinkat, statat, unlinkat, utimensat,
};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

/// Links followed on the way to one path.
const LINKS_MAX: usize = 40;
/// Steps to one path, links followed, for each directory that it may be deep.
const STEPS: usize = 8;
/// Never through a link, never out.
const STRICT: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// Owner, mode and time of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u32,
    pub(super) mtime: i64,
}

pub(super) struct Tree {
    root: Rc<OwnedFd>,
    lowers: Vec<OwnedFd>,
    /// The directory of the last entry: most entries are neighbours.
    last: Option<(PathBuf, Rc<OwnedFd>)>,
    /// Modes and times of directories, set in the end: by then nothing is put into them any more.
    directories: BTreeMap<PathBuf, Attributes>,
    /// Only root can give files away.
    may_chown: bool,
    /// Directories that may be in one another.
    depth: usize,
}

/// What is at a path of the stack of layers.
enum Found {
    Directory(Box<Stat>),
    Link(PathBuf),
    /// Nothing, or something that no path leads through: a file, or the mark of a deletion.
    Neither,
}

impl Tree {
    pub(super) fn open(root: &Path, lowers: &[PathBuf], depth: usize) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lowers = lowers.iter().map(|path| open(path, flags, Mode::empty()));
        Ok(Self {
            root: Rc::new(open(root, flags, Mode::empty())?),
            lowers: lowers.collect::<Result<_, _>>()?,
            last: None,
            directories: BTreeMap::new(),
            may_chown: rustix::process::geteuid().is_root(),
            depth,
        })
    }

    /// The directory that is to hold `path`, made if need be, and the name in it. `None`: the path is the root.
    pub(super) fn place<'p>(
        &mut self,
        path: &'p Path,
    ) -> Result<Option<(Rc<OwnedFd>, &'p OsStr)>, UnpackError> {
        let Some(name) = path.file_name() else {
            return Ok(None);
        };
        let parent = path.parent().unwrap_or(Path::new(""));
        if let Some((known, fd)) = &self.last
            && known == parent
        {
            return Ok(Some((Rc::clone(fd), name)));
        }
        let failed = |source: io::Error| UnpackError::Entry {
            path: path.display().to_string(),
            source,
        };
        let resolved = self.resolve(parent).map_err(failed)?;
        let fd = Rc::new(self.ensure(&resolved).map_err(failed)?);
        self.last = Some((parent.to_owned(), Rc::clone(&fd)));
        Ok(Some((fd, name)))
    }

    /// Something was put in place that may change where paths lead.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }

    /// Where a directory really is, with links of this layer and those below followed.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let names = |path: &Path| -> Vec<OsString> {
            let parts = path.components().filter_map(|c| match c {
                Component::Normal(name) => Some(name.to_owned()),
                Component::ParentDir => Some("..".into()),
                _ => None,
            });
            parts.collect()
        };
        let mut queue: VecDeque<OsString> = names(path).into();
        let mut resolved = PathBuf::new();
        let (mut links, mut steps) = (0, 0);
        while let Some(name) = queue.pop_front() {
            steps += 1;
            if steps > self.depth * STEPS {
                return Err(Errno::LOOP.into());
            }
            if name == ".." {
                resolved.pop();
                continue;
            }
            resolved.push(&name);
            if resolved.components().count() > self.depth {
                let why = format!("more than {} directories in one another", self.depth);
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
            }
            if let Found::Link(target) = self.find(&resolved)? {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                resolved.pop();
                if target.is_absolute() {
                    resolved = PathBuf::new();
                }
                for part in names(&target).into_iter().rev() {
                    queue.push_front(part);
                }
            }
        }
        Ok(resolved)
    }

    fn find(&self, path: &Path) -> io::Result<Found> {
        for layer in std::iter::once(&*self.root).chain(&self.lowers) {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = match openat2(layer, path, flags, Mode::empty(), STRICT) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                other => other?,
            };
            let stat = fstat(&fd)?;
            return Ok(match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => Found::Directory(Box::new(stat)),
                FileType::Symlink => {
                    let target = readlinkat(&fd, "", Vec::new())?;
                    Found::Link(OsString::from_vec(target.into_bytes()).into())
                }
                _ => Found::Neither,
            });
        }
        Ok(Found::Neither)
    }

    /// Opens a directory of this layer; one that is not there yet is made as the layers below have it.
    fn ensure(&mut self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if path == Path::new("") {
            return self.root.try_clone();
        }
        match openat2(&*self.root, path, flags, Mode::empty(), STRICT) {
            Err(Errno::NOENT) => {}
            other => return Ok(other?),
        }
        let parent = self.ensure(path.parent().unwrap_or(Path::new("")))?;
        let name = path.file_name().unwrap_or_default();
        let below = match self.find(path)? {
            Found::Directory(stat) => Attributes {
                uid: stat.st_uid,
                gid: stat.st_gid,
                mode: stat.st_mode & 0o7777,
                mtime: stat.st_mtime,
            },
            _ => Attributes {
                uid: 0,
                gid: 0,
                mode: 0o755,
                mtime: 0,
            },
        };
        mkdirat(&parent, name, Mode::RWXU)?;
        let fd = openat2(&parent, name, flags, Mode::empty(), STRICT)?;
        self.own(&fd, below)?;
        self.directories.insert(path.to_owned(), below);
        Ok(fd)
    }

    /// Gives a file to its owner, as far as we may.
    pub(super) fn own(&self, fd: &OwnedFd, attributes: Attributes) -> io::Result<()> {
        if !self.may_chown {
            return Ok(());
        }
        let (uid, gid) = ids(attributes);
        match fchown(fd, uid, gid) {
            // An id that our user namespace does not have.
            Err(Errno::INVAL) => Ok(()),
            other => Ok(other?),
        }
    }

    /// The same for what cannot be opened.
    pub(super) fn own_at(&self, dir: &OwnedFd, name: &OsStr, attributes: Attributes) -> io::Result<()> {
        if !self.may_chown {
            return Ok(());
        }
        let (uid, gid) = ids(attributes);
        match rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::INVAL) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Makes a directory, or takes the one that is there.
    pub(super) fn directory(&mut self, path: &Path, attributes: Attributes) -> Result<(), UnpackError> {
        let failed = |source: io::Error| UnpackError::Entry {
            path: path.display().to_string(),
            source,
        };
        let Some((dir, name)) = self.place(path)? else {
            self.directories.insert(PathBuf::new(), attributes);
            return self.own(&self.root, attributes).map_err(failed);
        };
        if !is_directory(&dir, name) {
            self.remove(&dir, name).map_err(failed)?;
            mkdirat(&*dir, name, Mode::RWXU).map_err(|e| failed(e.into()))?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat2(&*dir, name, flags, Mode::empty(), STRICT).map_err(|e| failed(e.into()))?;
        self.own(&fd, attributes).map_err(failed)?;
        let parent = self
            .resolve(path.parent().unwrap_or(Path::new("")))
            .map_err(failed)?;
        self.directories.insert(parent.join(name), attributes);
        Ok(())
    }

    /// Removes whatever an earlier entry put at this place.
    pub(super) fn remove(&mut self, dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
        match unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) if is_directory(dir, name) => {
                self.forget();
                // Through the descriptor, so that no link on the way counts.
                std::fs::remove_dir_all(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Makes a directory hide what lies below it.
    pub(super) fn hide_below(dir: &OwnedFd) -> io::Result<()> {
        Ok(fsetxattr(dir, "user.overlay.opaque", b"y", XattrFlags::empty())?)
    }

    /// The last touches, once nothing more is coming.
    pub(super) fn finish(mut self) -> Result<(), UnpackError> {
        // Deepest first: the mode of a directory may shut us out of it.
        for (path, attributes) in std::mem::take(&mut self.directories).into_iter().rev() {
            let done = self.finish_directory(&path, attributes);
            done.map_err(|source| UnpackError::Entry {
                path: path.display().to_string(),
                source,
            })?;
        }
        Ok(())
    }

    fn finish_directory(&self, path: &Path, attributes: Attributes) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = if path == Path::new("") {
            self.root.try_clone()?
        } else {
            match openat2(&*self.root, path, flags, Mode::empty(), STRICT) {
                // Replaced by a later entry.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
                other => other?,
            }
        };
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(attributes.mode))?;
        Ok(rustix::fs::futimens(&fd, &times(attributes))?)
    }
}

fn is_directory(dir: &OwnedFd, name: &OsStr) -> bool {
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Owner as the system wants it.
fn ids(attributes: Attributes) -> (Option<rustix::fs::Uid>, Option<rustix::fs::Gid>) {
    (
        Some(rustix::fs::Uid::from_raw(attributes.uid)),
        Some(rustix::fs::Gid::from_raw(attributes.gid)),
    )
}

/// Modification and access time alike.
pub(super) fn times(attributes: Attributes) -> Timestamps {
    let time = Timespec {
        tv_sec: attributes.mtime,
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// Sets the time of something that cannot be opened.
pub(super) fn set_times(dir: &OwnedFd, name: &OsStr, attributes: Attributes) -> io::Result<()> {
    Ok(utimensat(
        dir,
        name,
        &times(attributes),
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

/// Whether something is at this place of the layer itself.
pub(super) fn exists(dir: &OwnedFd, name: &OsStr) -> bool {
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

#[cfg(test)]
mod tests {
    use super::Tree;
    use std::path::Path;

    #[test]
    fn descriptors_do_not_survive_an_exec_and_are_of_directories() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lower")).unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let lower = [dir.path().join("lower")];
        let mut tree = Tree::open(dir.path(), &lower, 8).unwrap();
        let (made, _) = tree.place(Path::new("made/deep/file")).unwrap().unwrap();
        for fd in [&*tree.root, &tree.lowers[0], &*made] {
            let flags = rustix::io::fcntl_getfd(fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "{flags:?}");
        }
        tree.forget();
        let (known, _) = tree.place(Path::new("made/deep/file")).unwrap().unwrap();
        let flags = rustix::io::fcntl_getfd(&*known).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "{flags:?}");
        assert!(Tree::open(&dir.path().join("file"), &[], 8).is_err());
    }
}
