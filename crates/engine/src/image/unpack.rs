//! Layers: from a compressed archive to a directory that overlayfs can stack.
//!
//! Every path is resolved step by step with descriptors, never through a link out of the layer, so a hostile archive
//! can only spoil itself. Deletions become overlayfs' own marks: an empty character device, or an attribute that
//! makes a directory hide what is below. Attributes of files other than owner, mode and time are passed over.

mod entry;
mod read;
mod tree;

pub(crate) use read::decompressed;

use super::digest::Digest;
use read::Counted;
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
            Self::Entry { source, .. } if source.raw_os_error() == Some(libc::ENOTSUP) => {
                Some("the file system of the image store has no extended attributes")
            }
            _ => None,
        }
    }
}

/// Bytes a layer may unpack to.
const BYTES_MAX: u64 = 64 << 30;

/// Unpacks an archive into an empty directory that will lie on top of `lowers` (topmost first).
pub(crate) fn unpack(
    archive: impl Read,
    into: &Path,
    lowers: &[PathBuf],
    expected: &Digest,
) -> Result<(), UnpackError> {
    let reader = decompressed(archive).map_err(UnpackError::Read)?;
    let counted = Counted::new(reader, expected.hasher(), BYTES_MAX);
    let mut archive = tar::Archive::new(counted);
    let mut tree = tree::Tree::open(into, lowers).map_err(UnpackError::Read)?;
    for item in archive.entries().map_err(UnpackError::Read)? {
        entry::place(&mut tree, item.map_err(UnpackError::Read)?)?;
    }
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
    Ok(())
}
