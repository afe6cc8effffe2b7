//! Replays the fuzzing corpus: inputs that once broke something, or that a fuzzer should start from.

use std::fs;
use std::path::Path;

#[test]
fn corpus_of_the_yaml_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/yaml");
    let mut replayed = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        remora_pod::yaml::fuzz::round_trip(&bytes);
        replayed += 1;
    }
    assert!(replayed >= 15, "only {replayed} files in {}", folder.display());
}
