//! Programs some tests compare with.

use std::io::Write as _;

/// Said once a process is enough.
static SAID: std::sync::Once = std::sync::Once::new();
/// Set in CI: then a missing program is a failure.
const REQUIRE: &str = "REMORA_REQUIRE_PROGRAMS";

/// Whether these programs (each with how to get it) are there.
///
/// A test that works with other people's programs cannot run without them. It says so where everybody sees it, also
/// when the test's own output is captured, and CI, which gets them, takes it for a failure.
///
/// # Panics
///
/// If one is missing and `REMORA_REQUIRE_PROGRAMS` is set.
pub fn has_programs(wanted: &[(&str, &str)]) -> bool {
    let missing: Vec<&(&str, &str)> = wanted.iter().filter(|(name, _)| !is_installed(name)).collect();
    if missing.is_empty() {
        return true;
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    let mut remedies: Vec<&str> = missing.iter().map(|(_, remedy)| *remedy).collect();
    remedies.dedup();
    let text = format!("needs {} on the path: {}", names.join(", "), remedies.join(", "));
    assert!(std::env::var_os(REQUIRE).is_none(), "this test {text}");
    SAID.call_once(|| {
        // Not through print macros, whose output the test harness keeps for itself.
        let _ = writeln!(
            std::io::stderr(),
            "NOT RUN: tests with other people's programs; each {text}"
        );
    });
    false
}

fn is_installed(name: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}
