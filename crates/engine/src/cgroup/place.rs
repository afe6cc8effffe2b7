//! Where groups may be made, from what the kernel says about mounts and about us. Pure but for [`delegate`].

use super::{Kind, named};
use std::io;
use std::path::{Path, PathBuf};

/// What version 2 must offer to be of use.
const WANTED: [&str; 3] = ["memory", "cpu", "pids"];

/// Places in the order in which to try them. `mounts` is `/proc/self/mountinfo`, `own` is `/proc/self/cgroup`.
pub(super) fn find(mounts: &str, own: &str) -> Vec<Kind> {
    let mut kinds = Vec::new();
    let mut v1 = [None, None, None];
    for mount in mounts.lines().filter_map(Mount::parse) {
        if mount.kind == "cgroup2" {
            let own = position(own, "");
            let here = own.and_then(|own| mount.below(own));
            // Root of the hierarchy last: who may write there usually may below its own group too.
            kinds.extend(here.map(Kind::V2));
            kinds.push(Kind::V2(mount.at.to_owned()));
            continue;
        }
        for (slot, controller) in v1.iter_mut().zip(WANTED) {
            let has = mount.options.split(',').any(|o| o == controller);
            if has && let Some(own) = position(own, controller) {
                *slot = mount.below(own);
            }
        }
    }
    let [memory, cpu, pids] = v1;
    if memory.is_some() || cpu.is_some() || pids.is_some() {
        // A controller is in one version only; when version 1 has them, version 2 is empty.
        return vec![Kind::V1 { memory, cpu, pids }];
    }
    kinds.dedup();
    kinds
}

/// One mounted control group file system.
struct Mount<'a> {
    root: &'a Path,
    at: &'a Path,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, at) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        kind.starts_with("cgroup").then_some(Self {
            root: Path::new(root),
            at: Path::new(at),
            kind,
            options,
        })
    }

    /// Where a group is seen through this mount.
    fn below(&self, group: &Path) -> Option<PathBuf> {
        let inner = group.strip_prefix(self.root).ok()?;
        Some(if inner == Path::new("") {
            self.at.to_owned()
        } else {
            self.at.join(inner)
        })
    }
}

/// Our group in the hierarchy with this controller; no controller is version 2.
fn position<'a>(own: &'a str, controller: &str) -> Option<&'a Path> {
    own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers
            .split(',')
            .any(|c| c == controller)
            .then_some(Path::new(path))
    })
}

/// Hands the controllers down from `base` to `dir` and from there to the containers.
pub(super) fn delegate(base: &Path, dir: &Path) -> io::Result<()> {
    let available = std::fs::read_to_string(base.join("cgroup.controllers"))?;
    for controller in WANTED {
        if !available.split_whitespace().any(|c| c == controller) {
            let why = format!("{} has no controller {controller}", base.display());
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
    }
    for group in [base, dir] {
        let file = group.join("cgroup.subtree_control");
        let all = "+memory +cpu +pids";
        match std::fs::write(&file, all) {
            // A group with processes cannot hand down: ours go one level down.
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                step_down(base)?;
                std::fs::write(&file, all).map_err(|e| named("write", &file, &e))?;
            }
            other => other.map_err(|e| named("write", &file, &e))?,
        }
    }
    Ok(())
}

fn step_down(base: &Path) -> io::Result<()> {
    let leaf = base.join(format!("{}self-{}", super::PREFIX, std::process::id()));
    std::fs::create_dir_all(&leaf)?;
    let file = leaf.join("cgroup.procs");
    std::fs::write(&file, std::process::id().to_string()).map_err(|e| named("write", &file, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_below_our_own_groups() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let own = "4:memory:/a/b\n1:cpu,cpuacct:/\n0::/\n";
        let found = find(mounts, own);
        let expected = Kind::V1 {
            memory: Some("/sys/fs/cgroup/memory/a/b".into()),
            cpu: Some("/sys/fs/cgroup/cpu,cpuacct".into()),
            pids: None,
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn version_2_first_our_own_group_then_the_root() {
        let mounts = "35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = find(mounts, "0::/user.slice/me\n");
        let expected = ["/sys/fs/cgroup/user.slice/me", "/sys/fs/cgroup"];
        assert_eq!(found, expected.map(|p| Kind::V2(p.into())));
        assert_eq!(find(mounts, "0::/\n").len(), 1);
    }

    #[test]
    fn a_container_that_sees_only_its_part() {
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let found = find(mounts, "4:memory:/docker/abc\n");
        let expected = Kind::V1 {
            memory: Some("/sys/fs/cgroup/memory".into()),
            cpu: None,
            pids: None,
        };
        assert_eq!(found, [expected]);
        assert_eq!(find("", ""), []);
    }
}
