//! Files of an archive or a directory, by name.

use crate::image::digest::{Digest, Hasher};
use crate::image::manifest::Descriptor;
use crate::image::unpack::{Limits, Meter, decompressed};
use crate::store::Store;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Links between files of an archive that are followed.
const LINKS_MAX: usize = 8;

pub(super) enum Source {
    Directory(PathBuf),
    Archive {
        file: Arc<File>,
        /// Where each file is: offset and size.
        files: BTreeMap<String, (u64, u64)>,
        links: BTreeMap<String, String>,
    },
}

impl Source {
    pub(super) fn open(path: &Path, store: &Store) -> io::Result<Self> {
        if path.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        let file = Arc::new(plain(File::open(path)?, store)?);
        let (mut files, mut links) = (BTreeMap::new(), BTreeMap::new());
        let meter = Meter::new(Limits::default());
        let mut archive = tar::Archive::new(meter.content(meter.source(&*file)));
        let mut entries = archive.entries()?;
        loop {
            meter.header_begins();
            let Some(entry) = entries.next() else { break };
            let mut entry = entry?;
            meter.header_ends();
            meter.entry(entry.path_bytes().len())?;
            let place = (entry.raw_file_position(), entry.size());
            meter.drain(&mut entry)?;
            let Some(name) = normal(&entry.path()?) else {
                continue;
            };
            match (entry.header().entry_type(), entry.link_name()?) {
                (tar::EntryType::Symlink, Some(target)) => {
                    let here = Path::new(&name).parent().unwrap_or(Path::new(""));
                    links.extend(normal(&here.join(target)).map(|target| (name, target)));
                }
                (tar::EntryType::Link, Some(target)) => {
                    links.extend(normal(&target).map(|target| (name, target)));
                }
                (kind, _) if kind.is_file() => {
                    files.insert(name, place);
                }
                _ => {}
            }
        }
        drop(archive);
        Ok(Self::Archive { file, files, links })
    }

    /// Where a file of an archive is, links followed.
    fn find(&self, name: &str) -> Option<(u64, u64)> {
        let Self::Archive { files, links, .. } = self else {
            return None;
        };
        let mut name = name;
        for _ in 0..LINKS_MAX {
            if let Some(place) = files.get(name) {
                return Some(*place);
            }
            name = links.get(name)?;
        }
        None
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory(dir) => dir.join(name).is_file(),
            Self::Archive { .. } => self.find(name).is_some(),
        }
    }

    pub(super) fn open_file(&self, name: &str) -> io::Result<Box<dyn Read>> {
        match self {
            Self::Directory(dir) => {
                let name = normal(Path::new(name)).ok_or(io::ErrorKind::InvalidInput)?;
                let file = crate::sys::open_within(dir, Path::new(&name))?;
                if !file.metadata()?.is_file() {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
                Ok(Box::new(File::open(format!("/proc/self/fd/{fd}"))?))
            }
            Self::Archive { file, .. } => {
                let (at, size) = self.find(name).ok_or(io::ErrorKind::NotFound)?;
                Ok(Box::new(Part {
                    file: Arc::clone(file),
                    at,
                    left: size,
                }))
            }
        }
    }
}

/// The archive without compression: itself, or an unnamed copy.
fn plain(mut file: File, store: &Store) -> io::Result<File> {
    let mut start = [0; 4];
    let got = file.read(&mut start)?;
    file.seek(SeekFrom::Start(0))?;
    let compressed = matches!(
        start.get(..got),
        Some([0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd])
    );
    if !compressed {
        return Ok(file);
    }
    let mut copy = store.scratch()?;
    let meter = Meter::new(Limits::default());
    let reader = decompressed(meter.source(file))?;
    io::copy(&mut meter.content(reader), &mut copy)?;
    copy.seek(SeekFrom::Start(0))?;
    Ok(copy)
}

/// A path without `.`, and `..` taken back; `None` if it leads out.
fn normal(path: &Path) -> Option<String> {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir if !clean.pop() => return None,
            _ => {}
        }
    }
    clean.to_str().map(str::to_owned)
}

/// A stretch of a file, read without a common position.
struct Part {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl Read for Part {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(data.len());
        let got = self
            .file
            .read_at(data.get_mut(..most).unwrap_or_default(), self.at)?;
        if got == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let count = u64::try_from(got).unwrap_or_default();
        self.at += count;
        self.left -= count;
        Ok(got)
    }
}

/// Passes on what it reads, and says at the end if that is not what was promised.
pub(super) struct Verified<R> {
    inner: R,
    hasher: Option<Hasher>,
    expected: Digest,
    left: u64,
}

impl<R: Read> Verified<R> {
    pub(super) fn new(inner: R, expected: &Descriptor) -> Self {
        Self {
            inner,
            hasher: Some(expected.digest.hasher()),
            expected: expected.digest.clone(),
            left: expected.size,
        }
    }
}

impl<R: Read> Read for Verified<R> {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let got = self.inner.read(data)?;
        let count = u64::try_from(got).unwrap_or(u64::MAX);
        self.left = self
            .left
            .checked_sub(count)
            .ok_or_else(|| wrong(format!("{} is longer than promised", self.expected)))?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(data.get(..got).unwrap_or_default());
        }
        if got == 0
            && !data.is_empty()
            && let Some(hasher) = self.hasher.take()
        {
            let found = hasher.finish();
            if self.left > 0 || found != self.expected {
                return Err(wrong(format!("{} has the content of {found}", self.expected)));
            }
        }
        Ok(got)
    }
}
