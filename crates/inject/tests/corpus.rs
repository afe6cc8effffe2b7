//! Replays the fuzzing corpus: inputs that once broke something, or that a fuzzer should start from.

use std::fs;
use std::path::Path;

#[test]
fn corpus_of_the_inject_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut replayed = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let (_, text) = bytes.split_first().unwrap();
        for choice in 0..8 {
            let mut chosen = vec![choice];
            chosen.extend_from_slice(text);
            remora_inject::fuzz::inject(&chosen);
        }
        replayed += 1;
    }
    assert!(replayed >= 12, "only {replayed} files in {}", folder.display());
}
