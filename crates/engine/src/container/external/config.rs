//! A [`Spec`] as OCI's `config.json`. Pure but for opening the sub-paths of volumes.

use crate::container::plan::PATH;
use crate::container::plan::files::SUB_PATH;
use crate::container::plan::kernel::{PROTECTED, USUAL, masked};
use crate::container::{MountKind, Process, Resources, RlimitKind, Spec, StartError};
use crate::sandbox::Processes;
use serde_json::{Value, json};
use std::os::fd::{AsRawFd as _, OwnedFd};

/// The whole document, and what must stay open until the runtime has read it.
pub(super) fn container(spec: &Spec) -> Result<(Value, Vec<OwnedFd>), StartError> {
    let mut held = Vec::new();
    let seccomp = crate::seccomp::oci(&spec.seccomp, spec.process.capabilities);
    let seccomp = seccomp.map_err(|source| StartError::Seccomp {
        id: spec.id.clone(),
        source,
    })?;
    let mut linux = json!({
        "namespaces": namespaces(spec),
        "resources": resources(&spec.resources),
        // Two runs may have containers of the same name.
        "cgroupsPath": format!("/remora-oci-{}-{}", std::process::id(), spec.id),
    });
    if !spec.privileged {
        linux["maskedPaths"] = json!(masked());
        linux["readonlyPaths"] = json!(PROTECTED);
    }
    if let Some(seccomp) = seccomp {
        linux["seccomp"] = seccomp;
    }
    let document = json!({
        "ociVersion": "1.0.2",
        "process": process(&spec.process),
        "root": {"path": "rootfs", "readonly": spec.readonly_root},
        "mounts": mounts(spec, &mut held)?,
        "linux": linux,
    });
    Ok((document, held))
}

pub(super) fn process(process: &Process) -> Value {
    let names: Vec<String> = process
        .capabilities
        .names()
        .map(|name| format!("CAP_{name}"))
        .collect();
    let mut env: Vec<String> = process
        .env
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if !process.env.iter().any(|(key, _)| key == "PATH") {
        env.push(format!("PATH={PATH}"));
    }
    let limits = process.rlimits.iter().map(|limit| {
        let kind = match limit.kind {
            RlimitKind::OpenFiles => "RLIMIT_NOFILE",
            RlimitKind::Processes => "RLIMIT_NPROC",
            RlimitKind::Core => "RLIMIT_CORE",
            RlimitKind::LockedMemory => "RLIMIT_MEMLOCK",
        };
        json!({"type": kind, "soft": limit.soft, "hard": limit.hard})
    });
    let mut value = json!({
        "user": {"uid": process.uid, "gid": process.gid, "additionalGids": process.groups},
        "args": process.args,
        "env": env,
        "cwd": process.cwd,
        "capabilities": {"bounding": names, "effective": names, "permitted": names},
        "rlimits": limits.collect::<Vec<_>>(),
        "noNewPrivileges": process.no_new_privileges,
    });
    if let Some(score) = process.oom_score_adj {
        value["oomScoreAdj"] = score.into();
    }
    value
}

/// A descriptor of ours as a path that the runtime can open.
fn through(fd: i32) -> String {
    format!("/proc/{}/fd/{fd}", std::process::id())
}

fn namespaces(spec: &Spec) -> Vec<Value> {
    let mut list = vec![json!({"type": "mount"})];
    for (kind, fd) in spec.sandbox.joined() {
        let name = match kind {
            libc::CLONE_NEWNET => "network",
            libc::CLONE_NEWIPC => "ipc",
            _ => "uts",
        };
        list.push(json!({"type": name, "path": through(fd)}));
    }
    match (spec.sandbox.processes(), spec.sandbox.pid_namespace()) {
        (Processes::Pod, Some(fd)) => list.push(json!({"type": "pid", "path": through(fd)})),
        (Processes::Host, _) => {}
        _ => list.push(json!({"type": "pid"})),
    }
    list
}

fn resources(resources: &Resources) -> Value {
    let mut value = json!({});
    if let Some(memory) = resources.memory {
        value["memory"] = json!({"limit": memory});
    }
    if let Some(limit) = resources.cpu_limit {
        value["cpu"]["period"] = json!(100_000);
        value["cpu"]["quota"] = json!(limit.saturating_mul(100).max(1000));
    }
    if let Some(request) = resources.cpu_request {
        value["cpu"]["shares"] = json!((request.saturating_mul(1024) / 1000).clamp(2, 262_144));
    }
    if let Some(pids) = resources.pids {
        value["pids"] = json!({"limit": pids});
    }
    value
}

fn mounts(spec: &Spec, held: &mut Vec<OwnedFd>) -> Result<Vec<Value>, StartError> {
    let replaced = |target: &str| {
        spec.mounts
            .iter()
            .any(|m| m.target == std::path::Path::new(target))
    };
    let mut list = Vec::new();
    for item in USUAL.iter().filter(|item| !replaced(item.target)) {
        let mut options = vec!["nosuid"];
        let flags = [
            (libc::MOUNT_ATTR_NOEXEC, "noexec"),
            (libc::MOUNT_ATTR_NODEV, "nodev"),
            (libc::MOUNT_ATTR_RDONLY, "ro"),
        ];
        options.extend(
            flags
                .iter()
                .filter(|(flag, _)| item.attributes & flag != 0)
                .map(|(_, name)| *name),
        );
        // Runtimes put the devices themselves into this one.
        options.retain(|name| item.target != "/dev" || *name != "nodev");
        options.extend(item.options);
        list.push(
            json!({"destination": item.target, "type": item.kind, "source": item.kind, "options": options}),
        );
    }
    for mount in &spec.mounts {
        let access = if mount.readonly { "ro" } else { "rw" };
        list.push(match &mount.kind {
            MountKind::Tmpfs { size, mode } => {
                let mut options = vec![access.to_owned(), "nosuid".into(), "nodev".into(), format!("mode={mode:o}")];
                options.extend(size.map(|bytes| format!("size={bytes}")));
                json!({"destination": mount.target, "type": "tmpfs", "source": "tmpfs", "options": options})
            }
            MountKind::Bind { source, within } => {
                let source = match within {
                    None => source.display().to_string(),
                    Some(part) => {
                        let file = crate::sys::sub_path(source, part).map_err(|error| StartError::Step {
                            id: spec.id.clone(),
                            step: format!("mount {}: {SUB_PATH} {:?}", mount.target.display(), part.display().to_string()),
                            source: error,
                        })?;
                        let path = through(file.as_raw_fd());
                        held.push(file);
                        path
                    }
                };
                json!({"destination": mount.target, "type": "bind", "source": source, "options": ["rbind", access]})
            }
        });
    }
    Ok(list)
}
