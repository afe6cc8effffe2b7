//! Replays the fuzzing corpus: inputs that once broke something, or that a fuzzer should start from.

use std::path::Path;

#[test]
fn corpus_of_reviews() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/review");
    remora_testkit::replay(&corpus, remora_control::fuzz::review);
}
