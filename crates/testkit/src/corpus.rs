//! Inputs of fuzz targets.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;

/// Gives every file of a folder to a target: what once broke something, or what a fuzzer should start from. An empty
/// folder is a mistake.
pub fn replay(folder: &Path, target: fn(&[u8])) {
    let mut replayed = 0;
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("read {}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("a file of the corpus").path();
        target(&fs::read(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display())));
        replayed += 1;
    }
    assert!(replayed >= 5, "only {replayed} files in {}", folder.display());
}
