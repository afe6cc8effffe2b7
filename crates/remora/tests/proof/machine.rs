//! What a run has on the machine, and what is left of it.

use crate::running::Running;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// What a run may not leave on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Network namespaces of its processes, but for the one it was started in.
    pub(crate) namespaces: BTreeSet<String>,
    /// Mounts that everybody sees.
    pub(crate) mounts: BTreeSet<String>,
    /// Control groups.
    pub(crate) groups: BTreeSet<String>,
    /// Files of runs.
    pub(crate) files: BTreeSet<String>,
    /// The directory of the run, which is in the command line or among the mounts of each of its processes.
    state: String,
}

impl Machine {
    /// What there is that belongs to a run, by its process and its directories.
    pub(crate) fn of(run: &Running) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let state = run.state().display().to_string();
        let files = std::fs::read_dir(run.state()).unwrap().flatten();
        Self {
            namespaces: namespaces_below(run.pid()),
            mounts: mounts
                .lines()
                .filter(|l| l.contains(&state))
                .map(str::to_owned)
                .collect(),
            groups: groups(&[
                format!("remora-{}.", run.pid()),
                format!("remora-oci-{}-", run.pid()),
            ]),
            files: files
                .map(|e| e.file_name().to_string_lossy().into_owned())
                .collect(),
            state,
        }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.mounts.is_empty() && self.groups.is_empty()
    }

    /// Waits until no process of the run lives any more, nor any other in its namespaces.
    pub(crate) fn assert_deserted(&self) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let left: Vec<(u32, String)> = processes()
                .into_iter()
                .filter(|(pid, _)| self.has(*pid))
                .map(|(pid, _)| (pid, read(pid, "cmdline").replace('\0', " ")))
                .collect();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "processes live on: {left:?}");
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }

    fn has(&self, pid: u32) -> bool {
        let link = std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default();
        self.namespaces.contains(&link.display().to_string())
            || read(pid, "cmdline").contains(&self.state)
            || read(pid, "mountinfo").contains(&self.state)
    }
}

/// After the end of a run: nothing is left, but perhaps for its files.
pub(crate) fn assert_nothing_left(run: &Running, seen: &Machine, when: &str) {
    seen.assert_deserted();
    // The last group goes a moment after the last process.
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let left = Machine::of(run);
        if left.is_clean() && left.files.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "{when}: {left:?}");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

fn read(pid: u32, name: &str) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Network namespaces of a process's descendants.
fn namespaces_below(first: u32) -> BTreeSet<String> {
    let own = std::fs::read_link("/proc/self/ns/net")
        .unwrap()
        .display()
        .to_string();
    let all = processes();
    let mut family = BTreeSet::from([first]);
    while let Some((pid, _)) = all
        .iter()
        .find(|(pid, parent)| family.contains(parent) && !family.contains(pid))
    {
        family.insert(*pid);
    }
    family
        .into_iter()
        .filter_map(|pid| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok())
        .map(|link| link.display().to_string())
        .filter(|link| *link != own)
        .collect()
}

/// All processes with their parents.
fn processes() -> Vec<(u32, u32)> {
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let parent = |pid: u32| {
        let stat = read(pid, "stat");
        let rest = stat.rsplit(") ").next()?.to_owned();
        Some((pid, rest.split(' ').nth(1)?.parse().ok()?))
    };
    numbers.filter_map(parent).collect()
}

fn groups(names: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if names.iter().any(|start| name.starts_with(start)) {
                found.insert(entry.path().display().to_string());
            } else {
                open.push(entry.path());
            }
        }
    }
    found
}
