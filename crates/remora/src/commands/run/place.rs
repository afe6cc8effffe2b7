//! Where a run keeps its files, and what runs that were killed left there.
//!
//! Every run has a directory of its own and holds a lock on a file in it. A directory whose lock nobody holds belongs
//! to a run that was killed; the next run, and `--clean`, remove it.

use crate::commands::instance::LOCK;
use crate::settings;
use anyhow::Context as _;
use remora_engine::cgroup::Hierarchy;
use remora_engine::container::external;
use remora_engine::registry::Credentials;
use remora_engine::store::private;
use remora_engine::volumes;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often, and how many times, control groups are looked at that still hold something.
const PAUSE: Duration = Duration::from_millis(20);
const ATTEMPTS: usize = 100;

/// The directory of this run.
#[derive(Debug)]
pub(super) struct Place {
    directory: PathBuf,
    /// Held as long as the run lasts.
    _lock: File,
}

impl Place {
    /// Takes a directory, after removing the remains of others.
    pub(super) fn take(base: &Path) -> anyhow::Result<Self> {
        private::make(base)
            .with_context(|| format!("make {} (another place is chosen by --state-dir)", base.display()))?;
        let _gate = gate(base)?;
        remove_dead(base)?;
        let directory = base.join(std::process::id().to_string());
        // Containers leave set-user-id files and Secrets in it.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .with_context(|| format!("make {}", directory.display()))?;
        let lock = lock_file(&directory).with_context(|| format!("lock {}", directory.display()))?;
        lock.try_lock()
            .with_context(|| format!("lock {}", directory.display()))?;
        Ok(Self {
            directory,
            _lock: lock,
        })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn remove(self) -> anyhow::Result<()> {
        remove(&self.directory)
    }
}

/// Removes the directory of a run, and containers of another runtime that are still in it.
fn remove(directory: &Path) -> anyhow::Result<()> {
    external::remove(directory)?;
    volumes::release_below(directory);
    fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))
}

fn lock_file(directory: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(directory.join(LOCK))
}

/// Held while a run takes or removes directories, so that none is taken for a dead one before it is locked.
fn gate(base: &Path) -> anyhow::Result<File> {
    let directory = File::open(base).with_context(|| format!("open {}", base.display()))?;
    directory
        .lock()
        .with_context(|| format!("lock {}", base.display()))?;
    Ok(directory)
}

/// Removes what nobody holds; how many there were.
pub(super) fn clean(base: &Path) -> anyhow::Result<usize> {
    let removed = if base.is_dir() {
        let _gate = gate(base)?;
        remove_dead(base)?
    } else {
        0
    };
    remove_groups();
    Ok(removed)
}

/// Removes control groups of runs that were killed. Where none can be made none is left.
fn remove_groups() {
    let Ok(groups) = Hierarchy::probe() else { return };
    // The kernel may still be taking down what was in them.
    for _ in 0..ATTEMPTS {
        if groups.sweep() == 0 {
            return;
        }
        std::thread::park_timeout(PAUSE);
    }
}

fn remove_dead(base: &Path) -> anyhow::Result<usize> {
    let entries = fs::read_dir(base).with_context(|| format!("look into {}", base.display()))?;
    let mut removed = 0;
    for entry in entries {
        let directory = entry
            .with_context(|| format!("look into {}", base.display()))?
            .path();
        let Ok(lock) = lock_file(&directory) else { continue };
        if lock.try_lock().is_ok() {
            remove(&directory)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// What registries want to see, as Docker's own configuration has it.
pub(super) fn credentials() -> anyhow::Result<Credentials> {
    let directory = settings::variable("DOCKER_CONFIG")
        .map(PathBuf::from)
        .or_else(|| settings::variable("HOME").map(|home| Path::new(&home).join(".docker")));
    let Some(path) = directory.map(|d| d.join("config.json")) else {
        return Ok(Credentials::default());
    };
    match fs::read_to_string(&path) {
        Ok(text) => Credentials::from_json(&text).with_context(|| format!("read {}", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Credentials::default()),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

/// Something nobody can guess.
pub(super) fn random() -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; 32];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("read /dev/urandom")?;
    Ok(bytes)
}

/// This machine's memory in bytes; 0 if it does not say.
pub(super) fn memory() -> i128 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    let kilobytes = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<i128>().ok());
    kilobytes.unwrap_or(0) * 1024
}
