//! The group of one container.

use super::{Hierarchy, named};
use crate::container::Resources;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The period over which processor time is counted, in microseconds.
const PERIOD: u64 = 100_000;
/// How often, and how many times, removal is tried while processes are still ending.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
pub(super) const ATTEMPTS: usize = 400;

/// Directories of one container. They are removed with the value.
#[derive(Debug)]
pub(crate) struct Group {
    dirs: Vec<PathBuf>,
    /// The file that counts kills for want of memory.
    events: Option<PathBuf>,
    /// What it was made in; goes after the directories.
    hierarchy: Option<Arc<Hierarchy>>,
}

/// What is written into which file.
type Settings = Vec<(&'static str, String)>;

pub(super) fn v1(
    resources: &Resources,
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    pids: Option<PathBuf>,
) -> io::Result<Group> {
    // A container without limits is in a group only so that it counts for its pod.
    let limited = *resources != Resources::default();
    let (memory, cpu) = (memory.filter(|_| limited), cpu.filter(|_| limited));
    let mut group = Group {
        dirs: Vec::new(),
        events: memory.as_ref().map(|dir| dir.join("memory.oom_control")),
        hierarchy: None,
    };
    let bytes = resources.memory.map(|m| ("memory.limit_in_bytes", m.to_string()));
    let processes = resources.pids.map(|p| ("pids.max", p.to_string()));
    group.add(memory, "memory", bytes.into_iter().collect())?;
    group.add(cpu, "cpu", cpu_v1(resources))?;
    group.add(pids, "pids", processes.into_iter().collect())?;
    Ok(group)
}

pub(super) fn v2(resources: &Resources, dir: PathBuf) -> io::Result<Group> {
    let mut group = Group {
        dirs: Vec::new(),
        events: Some(dir.join("memory.events")),
        hierarchy: None,
    };
    let mut settings = Settings::new();
    if let Some(memory) = resources.memory {
        settings.push(("memory.max", memory.to_string()));
        // k8s: a container is killed as a whole.
        settings.push(("memory.oom.group", "1".to_owned()));
    }
    if let Some(limit) = resources.cpu_limit {
        settings.push(("cpu.max", format!("{} {PERIOD}", quota(limit))));
    }
    if let Some(request) = resources.cpu_request {
        settings.push(("cpu.weight", weight(shares(request)).to_string()));
    }
    if let Some(pids) = resources.pids {
        settings.push(("pids.max", pids.to_string()));
    }
    group.add(Some(dir), "", settings)?;
    Ok(group)
}

fn cpu_v1(resources: &Resources) -> Settings {
    let mut settings = Settings::new();
    if let Some(limit) = resources.cpu_limit {
        settings.push(("cpu.cfs_period_us", PERIOD.to_string()));
        settings.push(("cpu.cfs_quota_us", quota(limit).to_string()));
    }
    if let Some(request) = resources.cpu_request {
        settings.push(("cpu.shares", shares(request).to_string()));
    }
    settings
}

/// k8s: at least a millisecond a period.
fn quota(milli: u64) -> u64 {
    milli.saturating_mul(PERIOD / 1000).max(1000)
}

/// k8s: 1024 for a whole processor, at least 2.
fn shares(milli: u64) -> u64 {
    (milli.saturating_mul(1024) / 1000).clamp(2, 262_144)
}

/// The range of version 1 laid over that of version 2.
fn weight(shares: u64) -> u64 {
    1 + (shares - 2) * 9999 / 262_142
}

impl Group {
    /// Keeps what it was made in for as long as it is there.
    pub(super) fn within(mut self, hierarchy: Arc<Hierarchy>) -> Self {
        self.hierarchy = Some(hierarchy);
        self
    }

    fn add(&mut self, dir: Option<PathBuf>, controller: &str, settings: Settings) -> io::Result<()> {
        let Some(dir) = dir else {
            if settings.is_empty() {
                return Ok(());
            }
            let why = format!("this machine has no control group {controller}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        };
        std::fs::create_dir_all(&dir).map_err(|e| named("make", &dir, &e))?;
        self.dirs.push(dir.clone());
        for (name, value) in settings {
            let file = dir.join(name);
            std::fs::write(&file, value).map_err(|e| named("write", &file, &e))?;
        }
        Ok(())
    }

    /// Where a process writes 0 to join.
    pub(crate) fn doors(&self) -> io::Result<Vec<OwnedFd>> {
        let open = |dir: &PathBuf| Ok(File::options().write(true).open(dir.join("cgroup.procs"))?.into());
        self.dirs.iter().map(open).collect()
    }

    /// How often the kernel killed for want of memory.
    pub(crate) fn oom_kills(&self) -> u64 {
        let text = self
            .events
            .as_ref()
            .and_then(|file| std::fs::read_to_string(file).ok());
        let text = text.unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.parse().ok()).unwrap_or_default()
    }

    /// Kills what is in the group.
    pub(crate) fn kill(&self) {
        for dir in &self.dirs {
            kill_members(dir);
        }
    }
}

/// Kills the processes of a group.
pub(super) fn kill_members(dir: &Path) {
    if std::fs::write(dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for pid in processes(dir) {
        // Through a descriptor: if the process is gone meanwhile, no other one is hit for it.
        let Ok(pidfd) = crate::sys::pidfd_open(pid) else {
            continue;
        };
        if processes(dir).contains(&pid) {
            let _ = crate::sys::pidfd_signal(std::os::fd::AsFd::as_fd(&pidfd), libc::SIGKILL);
        }
    }
}

fn processes(dir: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.parse().ok())
        .filter(|pid| *pid > 0)
        .collect()
}

fn removed(dir: &Path) -> bool {
    match std::fs::remove_dir(dir) {
        Err(e) => e.kind() == io::ErrorKind::NotFound,
        Ok(()) => true,
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut left = std::mem::take(&mut self.dirs);
        left.retain(|dir| !removed(dir));
        if left.is_empty() {
            return;
        }
        let rest = Self {
            dirs: Vec::new(),
            events: None,
            hierarchy: None,
        };
        let hierarchy = self.hierarchy.take();
        // Something is still in there: a process of a shared namespace, or one the kernel is still taking down.
        let work = move || {
            let mut rest = std::mem::ManuallyDrop::new(rest);
            rest.dirs = left;
            for _ in 0..ATTEMPTS {
                rest.kill();
                rest.dirs.retain(|dir| !removed(dir));
                if rest.dirs.is_empty() {
                    break;
                }
                std::thread::park_timeout(PAUSE);
            }
            drop(hierarchy);
        };
        let _ = std::thread::Builder::new().name("cgroup".into()).spawn(work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_2_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c");
        let resources = Resources {
            memory: Some(64 << 20),
            cpu_limit: Some(500),
            cpu_request: Some(250),
            pids: Some(32),
        };
        let group = v2(&resources, path.clone()).unwrap();
        let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
        assert_eq!(read("memory.max"), "67108864");
        assert_eq!(read("cpu.max"), "50000 100000");
        assert_eq!(read("cpu.weight"), "10");
        assert_eq!(read("pids.max"), "32");
        std::fs::write(path.join("memory.events"), "low 0\nmax 3\noom 1\noom_kill 2\n").unwrap();
        assert_eq!(group.oom_kills(), 2);
        std::mem::forget(group);
    }

    #[test]
    fn a_limit_without_its_controller_is_refused() {
        let resources = Resources {
            memory: Some(1),
            ..Resources::default()
        };
        let error = v1(&resources, None, None, None).unwrap_err();
        assert!(error.to_string().contains("no control group memory"), "{error}");
    }
}
