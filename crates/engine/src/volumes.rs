//! Volumes: what a pod's containers find in their file systems besides their image.
//!
//! [`plan`] is pure and says what each volume holds; [`prepare`] writes it under the pod's directory; [`mounts`] says
//! what of it a container sees where. Volumes of kinds that need a cluster are refused, with their name.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use remora_pod::{object, view};
use serde_json::Value;

use crate::container::{Mount, MountKind};
use crate::environment::{self, ConfigError, Facts};
use crate::objects::Objects;

mod files;
mod renew;
mod write;

pub use renew::{Grant, life, renew};
pub use write::{prepare, release, release_below};

/// Where the token of the service account is mounted.
pub const ACCOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The volume that holds it.
const ACCOUNT_VOLUME: &str = "kube-api-access";

/// A volume cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// It refers to something that does not exist.
    #[error("volume {volume:?}")]
    Missing {
        /// Which.
        volume: String,
        /// What is missing.
        #[source]
        source: ConfigError,
    },
    /// Its kind needs a cluster.
    #[error("volume {volume:?} is of kind {kind}, which cannot be had on one machine")]
    Kind {
        /// Which.
        volume: String,
        /// Of which kind.
        kind: String,
    },
    /// A mount names a volume that does not exist.
    #[error("volume {volume:?} is mounted but not defined")]
    Undefined {
        /// Which.
        volume: String,
    },
    /// A path of the host is not what is wanted.
    #[error("{} is not a {wanted}", path.display())]
    HostPath {
        /// The path.
        path: PathBuf,
        /// What it should be.
        wanted: String,
    },
    /// A path that leaves the volume.
    #[error("path {path:?} leads out of volume {volume:?}")]
    Escape {
        /// Which volume.
        volume: String,
        /// As written.
        path: String,
    },
    /// A size nobody understands.
    #[error("volume {volume:?} has sizeLimit {text:?}, which is no quantity")]
    Size {
        /// Which.
        volume: String,
        /// As written.
        text: String,
    },
    /// Memory cannot be mounted.
    #[error("mount memory at {}", path.display())]
    Mount {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It cannot be written.
    #[error("write {}", path.display())]
    Write {
        /// What.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// A file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Path inside the volume.
    pub path: String,
    /// What it holds.
    pub content: Vec<u8>,
    /// Its mode.
    pub mode: u32,
    /// It holds a token, which has to be renewed.
    pub token: Option<Grant>,
}

/// What a volume holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// An empty directory.
    Empty,
    /// An empty directory in memory, with at most so many bytes.
    Memory(Option<u64>),
    /// A path of the host, and what it has to be.
    Host(PathBuf, String),
    /// Files.
    Files(Vec<File>),
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub source: Source,
    /// The group everything in it belongs to.
    pub group: Option<u32>,
}

/// All volumes of a pod.
pub fn plan(pod: &Value, facts: &Facts, objects: &Objects) -> Result<Vec<Volume>, VolumeError> {
    let group = view::at(pod, &["spec", "securityContext", "fsGroup"]).and_then(Value::as_u64);
    let group = group.and_then(|g| u32::try_from(g).ok());
    let mut volumes = Vec::new();
    for raw in view::list(pod, &["spec", "volumes"]) {
        let name = view::name(raw).to_owned();
        let source = files::source(pod, raw, facts, objects)?;
        volumes.push(Volume { name, source, group });
    }
    if mounts_account(pod) {
        volumes.push(Volume {
            name: ACCOUNT_VOLUME.to_owned(),
            source: Source::Files(files::account(pod, facts, objects)),
            group,
        });
    }
    Ok(volumes)
}

/// Directories that volumes need so that other volumes can be mounted below them: volume and path in it.
///
/// k8s: the kubelet makes them too, because most volumes cannot be changed from inside.
pub fn nested(pod: &Value) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for container in view::containers(pod).iter().chain(view::init_containers(pod)) {
        let mounts = view::list(container, &["volumeMounts"]);
        let path = |mount: &Value| PathBuf::from(view::text(mount, &["mountPath"]).unwrap_or_default());
        for outer in mounts {
            let below = mounts
                .iter()
                .filter_map(|m| path(m).strip_prefix(path(outer)).ok().map(Path::to_owned));
            let sub = view::text(outer, &["subPath"]).unwrap_or_default();
            for relative in below.filter(|r| !r.as_os_str().is_empty()) {
                found.push((view::name(outer).to_owned(), Path::new(sub).join(relative)));
            }
        }
    }
    found
}

/// Whether the token of the service account is mounted without being asked for.
fn mounts_account(pod: &Value) -> bool {
    view::at(pod, &["spec", "automountServiceAccountToken"]) != Some(&Value::Bool(false))
}

/// What a container mounts. `base` is where the pod's volumes were prepared.
pub fn mounts(
    pod: &Value,
    container: &Value,
    volumes: &[Volume],
    base: &Path,
    variables: &[(String, String)],
) -> Result<Vec<Mount>, VolumeError> {
    let mut mounts = Vec::new();
    for raw in view::list(container, &["volumeMounts"]) {
        let name = view::name(raw);
        let volume = volumes.iter().find(|v| v.name == name);
        let volume = volume.ok_or_else(|| VolumeError::Undefined {
            volume: name.to_owned(),
        })?;
        mounts.push(Mount {
            target: view::text(raw, &["mountPath"]).unwrap_or_default().into(),
            kind: MountKind::Bind {
                source: place(volume, base),
                within: within(name, &sub_path(raw, variables))?,
            },
            readonly: raw.get("readOnly").and_then(Value::as_bool).unwrap_or(false)
                || matches!(volume.source, Source::Files(_)),
        });
    }
    let taken = mounts.iter().any(|m| m.target == Path::new(ACCOUNT_PATH));
    if mounts_account(pod) && !taken {
        mounts.push(Mount::bind(base.join(ACCOUNT_VOLUME), ACCOUNT_PATH).readonly());
    }
    Ok(mounts)
}

fn sub_path(mount: &Value, variables: &[(String, String)]) -> String {
    let look = |name: &str| {
        let found = variables.iter().rev().find(|(n, _)| n == name);
        found.map(|(_, v)| v.clone())
    };
    match view::text(mount, &["subPathExpr"]).filter(|t| !t.is_empty()) {
        Some(expression) => environment::expand(expression, look),
        None => view::text(mount, &["subPath"]).unwrap_or_default().to_owned(),
    }
}

/// Where a volume is.
fn place(volume: &Volume, base: &Path) -> PathBuf {
    match &volume.source {
        Source::Host(path, _) => path.clone(),
        _ => base.join(&volume.name),
    }
}

/// Volumes that may be on another file system than the run's directory: name and place.
pub fn elsewhere(volumes: &[Volume], base: &Path) -> Vec<(String, PathBuf)> {
    let other = |volume: &&Volume| matches!(volume.source, Source::Host(..) | Source::Memory(_));
    let named = |volume: &Volume| (volume.name.clone(), place(volume, base));
    volumes.iter().filter(other).map(named).collect()
}

/// A path below a volume, as written. Only the container's first process resolves it, see [`MountKind::Bind`]: by then
/// another container of the pod may have changed what is there.
fn within(volume: &str, sub: &str) -> Result<Option<PathBuf>, VolumeError> {
    let plain = |part| {
        matches!(
            part,
            std::path::Component::Normal(_) | std::path::Component::CurDir
        )
    };
    if !Path::new(sub).components().all(plain) {
        return Err(VolumeError::Escape {
            volume: volume.to_owned(),
            path: sub.to_owned(),
        });
    }
    Ok(Some(sub).filter(|sub| !sub.is_empty()).map(PathBuf::from))
}

/// `/etc/hosts` of a pod.
pub fn hosts(pod: &Value, facts: &Facts) -> String {
    let hostname = host_name(pod);
    let mut text = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
                    fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
        .to_owned();
    let full = view::text(pod, &["spec", "subdomain"])
        .filter(|s| !s.is_empty())
        .map(|sub| format!("{hostname}.{sub}.{}.svc.cluster.local\t", object::namespace(pod)));
    let _ = writeln!(text, "{}\t{}{hostname}", facts.pod_ip, full.unwrap_or_default());
    for alias in view::list(pod, &["spec", "hostAliases"]) {
        let names: Vec<String> = view::list(alias, &["hostnames"])
            .iter()
            .map(view::scalar)
            .collect();
        let ip = view::text(alias, &["ip"]).unwrap_or_default();
        let _ = writeln!(text, "{ip}\t{}", names.join("\t"));
    }
    text
}

/// The host name of a pod.
pub fn host_name(pod: &Value) -> String {
    let named = view::text(pod, &["spec", "hostname"]).filter(|n| !n.is_empty());
    let name = named.unwrap_or_else(|| object::name(pod));
    name.chars()
        .take(63)
        .collect::<String>()
        .trim_end_matches(['-', '.'])
        .to_owned()
}

/// `/etc/resolv.conf` of a pod. `host` is the machine's own, for pods that want it.
pub fn resolver(pod: &Value, host: &str) -> String {
    let policy = view::text(pod, &["spec", "dnsPolicy"]).unwrap_or("ClusterFirst");
    let namespace = object::namespace(pod);
    let strings = |field: &str| -> Vec<String> {
        let list = view::list(pod, &["spec", "dnsConfig", field]).iter();
        list.map(view::scalar).collect()
    };
    let (mut servers, mut searches, mut options) = (Vec::new(), Vec::new(), Vec::new());
    match policy {
        "Default" => return host.to_owned(),
        "None" => {}
        _ => {
            servers.push(crate::services::DNS_ADDRESS.to_string());
            searches = vec![
                format!("{namespace}.svc.cluster.local"),
                "svc.cluster.local".to_owned(),
                "cluster.local".to_owned(),
            ];
            options.push("ndots:5".to_owned());
        }
    }
    servers.extend(strings("nameservers"));
    searches.extend(strings("searches"));
    for option in view::list(pod, &["spec", "dnsConfig", "options"]) {
        let name = view::name(option);
        options.retain(|o| o.split(':').next() != Some(name));
        options.push(match option.get("value") {
            Some(value) => format!("{name}:{}", view::scalar(value)),
            None => name.to_owned(),
        });
    }
    let mut text = String::new();
    if !searches.is_empty() {
        let _ = writeln!(text, "search {}", searches.join(" "));
    }
    for server in servers.iter().take(3) {
        let _ = writeln!(text, "nameserver {server}");
    }
    if !options.is_empty() {
        let _ = writeln!(text, "options {}", options.join(" "));
    }
    text
}

#[cfg(test)]
mod tests;
