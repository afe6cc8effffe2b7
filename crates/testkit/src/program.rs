//! Programs some tests compare with.

use std::io::Write as _;
use std::path::PathBuf;

/// The message is printed once per process.
static SAID: std::sync::Once = std::sync::Once::new();
/// Set in CI: then a missing program is a failure.
const REQUIRE: &str = "REMORA_REQUIRE_PROGRAMS";

/// Whether these programs (each with how to get it) are there.
///
/// A test that needs third-party programs cannot run without them. The message goes to the terminal even if the test
/// harness captures output. CI installs the programs and treats a missing one as a failure.
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
    refuse(&format!(
        "needs {} on the path: {}",
        names.join(", "),
        remedies.join(", ")
    ));
    false
}

/// The directory that an environment variable names, with third-party files in it; `remedy` says how to fill one.
///
/// Without it a test does the same as without a program.
///
/// # Panics
///
/// If there is none and `REMORA_REQUIRE_PROGRAMS` is set.
pub fn given_directory(variable: &str, remedy: &str) -> Option<PathBuf> {
    let given = std::env::var_os(variable)
        .map(PathBuf::from)
        .filter(|path| path.is_dir());
    if given.is_none() {
        refuse(&format!("needs the directory that {variable} names: {remedy}"));
    }
    given
}

fn refuse(text: &str) {
    assert!(std::env::var_os(REQUIRE).is_none(), "this test {text}");
    SAID.call_once(|| {
        // Not through print macros, whose output the test harness keeps for itself.
        let _ = writeln!(
            std::io::stderr(),
            "NOT RUN: tests with other people's programs; each {text}"
        );
    });
}

fn is_installed(name: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}
