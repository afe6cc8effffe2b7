//! Replays the fuzzing corpora: inputs that once broke something, or that a fuzzer should start from.

use remora_mtls::fuzz;
use std::path::Path;

fn replay(name: &str, target: fn(&[u8])) {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    remora_testkit::replay(&corpora.join(name), target);
}

#[test]
fn corpora_of_the_identity_targets() {
    replay("spiffe", fuzz::spiffe);
    replay("certificate", fuzz::certificate);
}
