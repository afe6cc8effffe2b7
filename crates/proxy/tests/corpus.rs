//! Replays the fuzzing corpora: inputs that once broke something, or that a fuzzer should start from.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use remora_proxy::fuzz;
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
fn corpus_of_first_bytes() {
    replay("hello", fuzz::hello);
}

#[test]
fn corpus_of_requests_in_tunnels() {
    replay("request", fuzz::request);
}

#[test]
fn corpus_of_discovery() {
    replay("discovery", fuzz::discovery);
}

#[test]
fn corpus_of_policies() {
    replay("policy", fuzz::policy);
}

#[test]
fn corpus_of_dns() {
    replay("dns", fuzz::dns);
}
