//! Layers: from a compressed archive to a directory that overlayfs can stack.
//!
//! Every path is resolved step by step with descriptors, never through a link out of the layer, so a hostile archive
//! can only spoil itself; [`Limits`] bound what it takes. Device files are left out, because the store belongs to root and
//! a device in it would be a device of this machine. Deletions become overlayfs' own marks: an empty character device, or an attribute that
//! makes a directory hide what is below. Attributes of files other than owner, mode and time are passed over.

mod entry;
mod limits;
mod read;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use limits::{Limits, Meter};
pub(crate) use read::decompressed;

use super::digest::Digest;
use read::Hashed;
use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Why a layer could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The archive itself is damaged.
    #[error("read the layer")]
    Read(#[source] io::Error),
    /// An entry could not be made.
    #[error("unpack {path}")]
    Entry {
        /// Which.
        path: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// An entry that no honest archive has.
    #[error("entry {path:?} of the layer {why}")]
    Hostile {
        /// Which.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Not what was promised.
    #[error("the layer unpacks to {found}, not to {expected}")]
    Digest {
        /// What the image says.
        expected: Digest,
        /// What came out.
        found: Digest,
    },
}

impl UnpackError {
    /// What a person can do about it, if anything.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Entry { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Some("the disk is full; make room or put the image store elsewhere")
            }
            Self::Entry { source, .. } | Self::Read(source)
                if source.kind() == io::ErrorKind::FileTooLarge && source.raw_os_error().is_none() =>
            {
                Some("no honest layer needs so much; the image is damaged or hostile")
            }
            Self::Entry { source, .. } if source.raw_os_error() == Some(libc::ENOTSUP) => {
                Some("the file system of the image store has no extended attributes")
            }
            _ => None,
        }
    }
}

/// What was not unpacked as the archive has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Skipped {
    /// Device files. A container gets its devices from the runtime, and mounts its image without devices.
    pub(crate) devices: usize,
}

/// Unpacks an archive into an empty directory that will lie on top of `lowers` (topmost first).
pub(crate) fn unpack(
    archive: impl Read,
    into: &Path,
    lowers: &[PathBuf],
    expected: &Digest,
    limits: Limits,
) -> Result<Skipped, UnpackError> {
    let meter = Meter::new(limits);
    let reader = decompressed(meter.source(archive)).map_err(UnpackError::Read)?;
    let hashed = Hashed::new(meter.content(reader), expected.hasher());
    let mut archive = tar::Archive::new(hashed);
    let mut tree = tree::Tree::open(into, lowers, limits.depth).map_err(UnpackError::Read)?;
    let mut skipped = Skipped::default();
    let mut entries = archive.entries().map_err(UnpackError::Read)?;
    loop {
        meter.header_begins();
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(UnpackError::Read)?;
        meter.header_ends();
        entry::place(&mut tree, &mut entry, &meter, &mut skipped)?;
        // Content of entries that have none, such as directories, is passed over here and not with the next header.
        meter.drain(&mut entry).map_err(UnpackError::Read)?;
    }
    meter.header_ends();
    tree.finish()?;
    let mut rest = archive.into_inner();
    // What comes after the end of the archive is part of the digest too.
    io::copy(&mut rest, &mut io::sink()).map_err(UnpackError::Read)?;
    let found = rest.digest();
    if found != *expected {
        return Err(UnpackError::Digest {
            expected: expected.clone(),
            found,
        });
    }
    Ok(skipped)
}
