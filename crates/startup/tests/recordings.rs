//! Recorded runs of a real kubelet against the model.
//!
//! Reads every scenario folder under `$REMORA_RECORDINGS` (by default the folder next to the workspace), derives
//! how each process behaves from its command line, simulates, and requires every `order`, `never`, `network` and
//! `final_phase` entry of the summary to hold. Says so and passes when there are no recordings.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[path = "recordings/actors.rs"]
mod actors;
#[path = "recordings/check.rs"]
mod check;
#[path = "recordings/yaml.rs"]
mod yaml;

fn main() -> ExitCode {
    let mut out = std::io::stdout().lock();
    let root = recordings();
    let mut folders: Vec<PathBuf> = std::fs::read_dir(&root)
        .map(|entries| {
            entries
                .flatten()
                .map(|e| e.path())
                .filter(|p| p.join("summary.yaml").is_file())
                .collect()
        })
        .unwrap_or_default();
    folders.sort();
    // Arguments that are no options name the scenarios to run, as with any other test.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    folders.retain(|f| wanted.is_empty() || wanted.iter().any(|w| f.to_string_lossy().contains(w)));
    if folders.is_empty() {
        _ = writeln!(out, "no recordings under {}: nothing to check", root.display());
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed) = (0, 0);
    for folder in &folders {
        match check::check(folder) {
            Ok(()) => passed += 1,
            Err(reason) => {
                failed += 1;
                let name = folder.file_name().unwrap_or_default().to_string_lossy();
                _ = writeln!(out, "{name}: {reason}");
            }
        }
    }
    _ = writeln!(out, "{passed} passed, {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn recordings() -> PathBuf {
    if let Some(given) = std::env::var_os("REMORA_RECORDINGS") {
        return PathBuf::from(given);
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    workspace.join("../shared/data/kubelet")
}
