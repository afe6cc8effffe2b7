//! Replays the fuzzing corpora: inputs that once broke something, or that a fuzzer should start from.

use remora_proxy::fuzz;
use std::path::Path;

fn replay(name: &str, target: fn(&[u8])) {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    remora_testkit::replay(&corpora.join(name), target);
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
