//! Control groups: the limits of a container as a whole, and what the kernel counts for it.
//!
//! [`Hierarchy::probe`] looks where this process may make groups: version 2 where its controllers are, version 1
//! otherwise. Groups lie below our own one, in a directory of this process, and are removed with their container;
//! [`Hierarchy::sweep`] removes what a killed process left. Nothing else is ever written to.

mod group;
mod place;

pub(crate) use group::Group;

use crate::container::Resources;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Begins the names of our directories.
const PREFIX: &str = "remora-";
/// Values of one process keep out of each other's way.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Where groups can be made. The directory made for it goes with the value.
#[derive(Debug)]
pub struct Hierarchy {
    kind: Kind,
    /// Name of the directory made for it.
    instance: String,
    /// What it lies in, for the groups of a pod; its directory can go only after this one.
    parent: Option<Arc<Hierarchy>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// Directory of each controller below which we may make groups.
    V1 {
        memory: Option<PathBuf>,
        cpu: Option<PathBuf>,
        pids: Option<PathBuf>,
    },
    /// The one directory.
    V2(PathBuf),
}

/// Why limits cannot be enforced here.
#[derive(Debug, thiserror::Error)]
#[error("find a control group to make others in: {why}")]
pub struct ProbeError {
    why: String,
}

impl ProbeError {
    /// What a person can do about it.
    pub fn hint(&self) -> &'static str {
        "run as root, or in a session with delegated control groups (systemd-run --user --scope -p Delegate=yes)"
    }
}

impl Hierarchy {
    /// Looks for a place, and tries it.
    pub fn probe() -> Result<Self, ProbeError> {
        let read = |path: &str| {
            std::fs::read_to_string(path).map_err(|e| ProbeError {
                why: format!("read {path}: {e}"),
            })
        };
        let places = place::find(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let instance = format!("{PREFIX}{}.{number}", std::process::id());
        let mut why = Vec::new();
        for kind in places {
            let hierarchy = Self {
                kind,
                instance: instance.clone(),
                parent: None,
            };
            match hierarchy.begin() {
                Ok(()) => return Ok(hierarchy),
                Err(e) => why.push(e.to_string()),
            }
        }
        if why.is_empty() {
            why.push("none is mounted".to_owned());
        }
        Err(ProbeError { why: why.join("; ") })
    }

    /// 1 or 2.
    pub fn version(&self) -> u8 {
        match self.kind {
            Kind::V1 { .. } => 1,
            Kind::V2(_) => 2,
        }
    }

    /// Directories below which we make ours.
    fn bases(&self) -> Vec<&Path> {
        match &self.kind {
            Kind::V1 { memory, cpu, pids } => {
                let mut all: Vec<&Path> = [memory, cpu, pids]
                    .into_iter()
                    .flatten()
                    .map(PathBuf::as_path)
                    .collect();
                all.dedup();
                all
            }
            Kind::V2(path) => vec![path],
        }
    }

    /// Makes the directories of this process.
    fn begin(&self) -> io::Result<()> {
        for base in self.bases() {
            let dir = base.join(&self.instance);
            match std::fs::create_dir(&dir) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(named("make", &dir, &e));
                }
                _ => {}
            }
        }
        match &self.kind {
            Kind::V1 { .. } => Ok(()),
            Kind::V2(base) => place::delegate(base, &base.join(&self.instance)),
        }
    }

    /// A place for the containers of one pod, which together have at most so many processes and threads.
    // k8s: podPidsLimit of the kubelet.
    pub fn pod(self: &Arc<Self>, name: &str, pids: u64) -> io::Result<Self> {
        let below = |base: &PathBuf| base.join(&self.instance);
        let kind = match &self.kind {
            Kind::V1 { memory, cpu, pids } => Kind::V1 {
                memory: memory.as_ref().map(below),
                cpu: cpu.as_ref().map(below),
                pids: pids.as_ref().map(below),
            },
            Kind::V2(base) => Kind::V2(below(base)),
        };
        let pod = Self {
            kind,
            instance: name.to_owned(),
            parent: Some(Arc::clone(self)),
        };
        pod.begin()?;
        let (Kind::V1 { pids: Some(base), .. } | Kind::V2(base)) = &pod.kind else {
            let why = "this machine has no control group pids";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        };
        let file = base.join(name).join("pids.max");
        std::fs::write(&file, pids.to_string()).map_err(|e| named("write", &file, &e))?;
        Ok(pod)
    }

    /// Whether every container needs a group in it: the pod as a whole is limited.
    pub(crate) fn is_pod(&self) -> bool {
        self.parent.is_some()
    }

    /// Makes the group of a container.
    pub(crate) fn group(self: &Arc<Self>, id: &str, resources: &Resources) -> io::Result<Group> {
        let group = match &self.kind {
            Kind::V1 { memory, cpu, pids } => {
                let below = |base: &Option<PathBuf>| base.as_ref().map(|b| b.join(&self.instance).join(id));
                group::v1(resources, below(memory), below(cpu), below(pids))
            }
            Kind::V2(base) => group::v2(resources, base.join(&self.instance).join(id)),
        };
        Ok(group?.within(Arc::clone(self)))
    }

    /// Kills what is left in the groups and removes them, for the end of a run. Groups whose containers ended are removed
    /// in the background, and the background ends with the process; so the run waits here, within a bound, until the
    /// kernel has taken the last process down. What is left then is swept by the next run.
    pub async fn close(&self) {
        for _ in 0..group::ATTEMPTS {
            let trees = self.bases().into_iter().map(|base| base.join(&self.instance));
            // All are tried, so that one that is busy does not keep the others.
            if trees.filter(|tree| !Self::emptied(tree)).count() == 0 {
                return;
            }
            tokio::time::sleep(group::PAUSE).await;
        }
    }

    /// Whether the tree is gone. The top is never killed: in it may be processes that are not containers.
    fn emptied(tree: &Path) -> bool {
        for pod in subdirectories(tree) {
            for container in subdirectories(&pod) {
                group::kill_members(&container);
                let _ = std::fs::remove_dir(&container);
            }
            group::kill_members(&pod);
            let _ = std::fs::remove_dir(&pod);
        }
        match std::fs::remove_dir(tree) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Removes the groups of processes that are gone. Returns how many directories could not be removed.
    pub fn sweep(&self) -> usize {
        let mut left = 0;
        for base in self.bases() {
            let names = std::fs::read_dir(base).into_iter().flatten().flatten();
            for entry in names {
                let name = entry.file_name();
                let pid = name.to_str().and_then(|n| n.strip_prefix(PREFIX));
                let pid = pid.and_then(|p| p.split('.').next());
                let Some(pid) = pid.and_then(|p| p.parse::<u32>().ok()) else {
                    continue;
                };
                if Path::new(&format!("/proc/{pid}")).exists() {
                    continue;
                }
                if remove_tree(&entry.path()).is_err() {
                    left += 1;
                }
            }
        }
        left
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        for base in self.bases() {
            // A group that is still used stays; the next start sweeps it.
            let _ = std::fs::remove_dir(base.join(&self.instance));
        }
    }
}

fn subdirectories(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    std::fs::remove_dir(dir)
}

fn named(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}
