//! Replays the fuzzing corpora: inputs that once broke something, or that a fuzzer should start from.

use remora_engine::fuzz;
use std::path::Path;

fn replay(name: &str, target: fn(&[u8])) {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    remora_testkit::replay(&corpora.join(name), target);
}

#[test]
fn corpus_of_layers() {
    replay("layer", fuzz::layer);
}

#[test]
fn corpus_of_archives() {
    replay("archive", fuzz::archive);
}

#[test]
fn corpus_of_documents() {
    replay("document", fuzz::document);
}

#[test]
fn corpus_of_challenges() {
    replay("challenge", fuzz::challenge);
}
