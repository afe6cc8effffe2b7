//! One entry of an archive, put in its place.

use super::limits::{Meter, Written};
use super::tree::{Attributes, Tree, exists, set_times, times};
use super::{Skipped, UnpackError};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fchmod, futimens, linkat, mknodat, openat, symlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use tar::{Entry, EntryType};

/// Begins the name of a mark that deletes.
const WHITEOUT: &str = ".wh.";
/// Hides everything a directory has in the layers below.
const OPAQUE: &str = ".wh..wh..opq";

pub(super) fn place<R: Read>(
    tree: &mut Tree,
    entry: &mut Entry<'_, R>,
    meter: &Meter,
    skipped: &mut Skipped,
) -> Result<(), UnpackError> {
    let kind = entry.header().entry_type();
    if kind == EntryType::XGlobalHeader {
        return Ok(());
    }
    let path = entry.path_bytes().into_owned();
    meter.entry(path.len()).map_err(UnpackError::Read)?;
    let path = clean(&path)?;
    let attributes = attributes(entry).map_err(UnpackError::Read)?;
    let name = path.file_name().unwrap_or_default();
    if let Some(deleted) = name.as_bytes().strip_prefix(WHITEOUT.as_bytes()) {
        return delete(tree, &path, OsStr::from_bytes(deleted));
    }
    if kind.is_dir() {
        return tree.directory(&path, attributes);
    }
    if is_device(kind, entry) {
        skipped.devices += 1;
        return Ok(());
    }
    let Some((dir, name)) = tree.place(&path)? else {
        return Err(hostile(&path, "replaces the root"));
    };
    let failed = |source: io::Error| UnpackError::Entry {
        path: path.display().to_string(),
        source,
    };
    tree.remove(&dir, name).map_err(failed)?;
    match kind {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            file(tree, &dir, name, entry, attributes, meter).map_err(failed)
        }
        EntryType::Symlink => {
            let target = link_target(entry, &path)?;
            tree.forget();
            symlinkat(OsStr::from_bytes(&target), &*dir, name).map_err(|e| failed(e.into()))?;
            tree.own_at(&dir, name, attributes).map_err(failed)?;
            set_times(&dir, name, attributes).map_err(failed)
        }
        EntryType::Link => {
            let target = clean(&link_target(entry, &path)?)?;
            hard_link(tree, &target, &dir, name).map_err(failed)
        }
        EntryType::Char => whiteout(&dir, name).map_err(failed),
        EntryType::Fifo => fifo(tree, &dir, name, attributes).map_err(failed),
        // Kinds nobody uses for files.
        _ => Ok(()),
    }
}

fn hostile(path: &Path, why: &'static str) -> UnpackError {
    UnpackError::Hostile {
        path: path.display().to_string(),
        why,
    }
}

/// A path relative to the layer; `..` is refused, the rest is harmless.
fn clean(bytes: &[u8]) -> Result<PathBuf, UnpackError> {
    let path = Path::new(OsStr::from_bytes(bytes));
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => return Err(hostile(path, "points out of it")),
            _ => {}
        }
    }
    Ok(clean)
}

fn attributes<R: Read>(entry: &Entry<'_, R>) -> io::Result<Attributes> {
    let header = entry.header();
    let id = |id: u64| u32::try_from(id).map_err(|_| io::Error::other("an id is too great"));
    Ok(Attributes {
        uid: id(header.uid()?)?,
        gid: id(header.gid()?)?,
        mode: header.mode()? & 0o7777,
        mtime: i64::try_from(header.mtime().unwrap_or_default()).unwrap_or_default(),
    })
}

fn link_target<R: Read>(entry: &Entry<'_, R>, path: &Path) -> Result<Vec<u8>, UnpackError> {
    let target = entry.link_name_bytes().filter(|t| !t.is_empty());
    target
        .map(std::borrow::Cow::into_owned)
        .ok_or_else(|| hostile(path, "is a link to nothing"))
}

fn file<R: Read>(
    tree: &Tree,
    dir: &OwnedFd,
    name: &OsStr,
    entry: &mut Entry<'_, R>,
    attributes: Attributes,
    meter: &Meter,
) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
    let fd = openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
    let mut out = Written {
        inner: std::fs::File::from(fd),
        meter,
    };
    io::copy(entry, &mut out)?;
    let fd = OwnedFd::from(out.inner);
    tree.own(&fd, attributes)?;
    // After the owner: a change of owner clears set-user-id.
    fchmod(&fd, Mode::from_raw_mode(attributes.mode))?;
    Ok(futimens(&fd, &times(attributes))?)
}

fn hard_link(tree: &mut Tree, target: &Path, dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let found = tree.place(target).map_err(io::Error::other)?;
    let (from, old) = found.ok_or_else(|| io::Error::other("a hard link to the root"))?;
    linkat(&*from, old, dir, name, AtFlags::empty()).map_err(|e| match e {
        Errno::NOENT => io::Error::other(format!(
            "a hard link to {}, which the layer does not have",
            target.display()
        )),
        other => other.into(),
    })
}

/// Any device but the one overlayfs has for a deletion, the character device 0/0, which leads to no driver.
fn is_device<R: Read>(kind: EntryType, entry: &Entry<'_, R>) -> bool {
    let header = entry.header();
    let number = (
        header.device_major().ok().flatten(),
        header.device_minor().ok().flatten(),
    );
    match kind {
        EntryType::Block => true,
        EntryType::Char => number != (Some(0), Some(0)),
        _ => false,
    }
}

fn fifo(tree: &Tree, dir: &OwnedFd, name: &OsStr, attributes: Attributes) -> io::Result<()> {
    let mode = Mode::from_raw_mode(attributes.mode);
    mknodat(dir, name, FileType::Fifo, mode, 0)?;
    tree.own_at(dir, name, attributes)?;
    set_times(dir, name, attributes)
}

/// The mark of overlayfs for something that is deleted.
fn whiteout(dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
    Ok(mknodat(dir, name, FileType::CharacterDevice, Mode::empty(), 0)?)
}

/// Marks something of the layers below as deleted.
fn delete(tree: &mut Tree, path: &Path, name: &OsStr) -> Result<(), UnpackError> {
    let Some((dir, whole)) = tree.place(path)? else {
        return Err(hostile(path, "deletes the root"));
    };
    let failed = |source: io::Error| UnpackError::Entry {
        path: path.display().to_string(),
        source,
    };
    if whole == OPAQUE {
        return Tree::hide_below(&dir).map_err(failed);
    }
    // Further marks of this form are bookkeeping of a file system long gone.
    if name.as_bytes().starts_with(WHITEOUT.as_bytes()) {
        return Ok(());
    }
    if name.is_empty() || name == "." || name == ".." {
        return Err(hostile(path, "deletes nothing that has a name"));
    }
    // What this very layer brings is newer than the deletion.
    if exists(&dir, name) {
        return Ok(());
    }
    whiteout(&dir, name).map_err(failed)
}
