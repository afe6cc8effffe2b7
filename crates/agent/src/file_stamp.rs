//! File metadata that reveals a replaced or changed file without reading it.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Device, inode, modification time and size; `None` if the file cannot be accessed.
pub(crate) type FileStamp = Option<(u64, u64, i64, i64, u64)>;

/// Follows symbolic links: Kubernetes replaces a directory behind them.
pub(crate) fn read(path: &Path) -> FileStamp {
    let seen = std::fs::metadata(path).ok()?;
    Some((
        seen.dev(),
        seen.ino(),
        seen.mtime(),
        seen.mtime_nsec(),
        seen.size(),
    ))
}
