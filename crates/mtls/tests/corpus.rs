//! Replays the fuzzing corpora: inputs that once broke something, or that a fuzzer should start from.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use remora_mtls::fuzz;
use std::fs;
use std::path::Path;

fn replay(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(name);
    let mut replayed = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        target(&fs::read(entry.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed >= 5, "only {replayed} files in {}", folder.display());
}

#[test]
fn corpora_of_the_identity_targets() {
    replay("spiffe", fuzz::spiffe);
    replay("certificate", fuzz::certificate);
}
