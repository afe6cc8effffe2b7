//! Containers of another runtime that outlived the run that asked for them.

use super::{BUNDLE, RUNTIME, STATE};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a runtime may take to end, and how often to look.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// A container could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemainsError {
    /// The runtime cannot be asked.
    #[error("start {} to remove container {id}", runtime.display())]
    Start {
        /// Which.
        runtime: PathBuf,
        /// Of which container.
        id: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The runtime says no.
    #[error("{} does not remove container {id}: {why}", runtime.display())]
    Refused {
        /// Which.
        runtime: PathBuf,
        /// Of which container.
        id: String,
        /// In its words.
        why: String,
    },
}

/// Ends the containers whose bundles are in the directory of a run, and has their runtimes forget them. Waits for it.
pub fn remove(run: &Path) -> Result<(), RemainsError> {
    for pod in below(&run.join("pods")) {
        for container in below(&pod.join("containers")) {
            let bundle = container.join(BUNDLE);
            let Ok(runtime) = fs::read(bundle.join(RUNTIME)) else {
                continue;
            };
            let runtime = PathBuf::from(OsString::from_vec(runtime));
            // One that is being made would be made further while it is removed.
            wait(|| is_made(&bundle) || !is_at_work(&bundle));
            let state = bundle.join(STATE);
            for known in below(&state) {
                delete(&runtime, &state, &known)?;
            }
            wait(|| !is_at_work(&bundle));
        }
    }
    Ok(())
}

/// Whether the runtime has said that the first process is there.
fn is_made(bundle: &Path) -> bool {
    let files = below(bundle);
    let is_pid = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.as_bytes().starts_with(b"pid-")
    };
    files.iter().any(is_pid)
}

/// Whether a runtime still works on a bundle: its command line names it.
fn is_at_work(bundle: &Path) -> bool {
    let name = bundle.as_os_str().as_bytes();
    let names = |line: Vec<u8>| line.windows(name.len()).any(|part| part == name);
    below(Path::new("/proc"))
        .iter()
        .filter_map(|process| fs::read(process.join("cmdline")).ok())
        .any(names)
}

/// Waits for something that comes soon, or goes on without it.
fn wait(done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() && began.elapsed() < PATIENCE {
        std::thread::park_timeout(PAUSE);
    }
}

/// What is in a directory; one that is not there is empty.
fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn delete(runtime: &Path, state: &Path, known: &Path) -> Result<(), RemainsError> {
    let id = known.file_name().unwrap_or_default();
    let told = || (runtime.to_owned(), id.to_string_lossy().into_owned());
    let output = Command::new(runtime)
        .arg("--root")
        .arg(state)
        .args(["delete", "--force"])
        .arg(id)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| {
            let (runtime, id) = told();
            RemainsError::Start { runtime, id, source }
        })?;
    // One that ended meanwhile is gone as wanted.
    if output.status.success() || !known.exists() {
        return Ok(());
    }
    let (runtime, id) = told();
    Err(RemainsError::Refused {
        runtime,
        id,
        why: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}
