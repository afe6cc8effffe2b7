//! Filters of system calls: the usual one of container runtimes, or a profile in their JSON form.
//!
//! A profile becomes several small filters; the kernel asks all and the strictest answer counts. Calls of another
//! architecture than the machine's own end the process (differs from other runtimes, which let 32-bit programs run:
//! one architecture is what the filter library writes).

mod names;
mod profile;
mod usual;

use crate::container::{Capabilities, Seccomp};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Component, Path};

/// Why a filter could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The profile is not in the form expected.
    #[error("read the seccomp profile")]
    Json(#[from] serde_json::Error),
    /// The profile asks for something filters cannot do here.
    #[error("seccomp profile: {0}")]
    Unsupported(String),
    /// The filter library refused.
    #[error("write the seccomp filter: {0}")]
    Compile(String),
}

/// Bytes of a profile that are read; those of distributions have some tens of kilobytes.
const PROFILE_MAX: u64 = 1 << 20;

/// A profile of this machine, by its path below a directory. Neither the path nor a link may lead out of it.
// k8s: localhostProfile must be a descending path, relative to the seccomp directory of the kubelet.
pub(crate) fn read_profile(root: &Path, name: &str) -> io::Result<String> {
    let relative = Path::new(name)
        .components()
        .all(|c| matches!(c, Component::Normal(_)));
    if name.is_empty() || !relative {
        let why = "the path of a profile is relative and without ..";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let file = crate::sys::read_beneath(root, Path::new(name))?;
    let mut text = String::new();
    file.take(PROFILE_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Programs for the kernel, in the order in which to install them.
pub(crate) type Filters = Vec<Vec<libc::sock_filter>>;

/// Conditions for each call; a call without conditions is always meant.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The filters for what a container asked for.
pub(crate) fn filters(wanted: &Seccomp, capabilities: Capabilities) -> Result<Filters, SeccompError> {
    match wanted {
        Seccomp::Unconfined => Ok(Vec::new()),
        Seccomp::RuntimeDefault => usual::filters(capabilities),
        Seccomp::Profile(json) => profile::filters(json, capabilities),
    }
}

/// The same for another runtime, in OCI's form; `None` is no filter.
pub(crate) fn oci(wanted: &Seccomp, capabilities: Capabilities) -> Result<Option<Value>, SeccompError> {
    match wanted {
        Seccomp::Unconfined => Ok(None),
        Seccomp::RuntimeDefault => Ok(Some(usual::oci(capabilities))),
        Seccomp::Profile(json) => profile::oci(json, capabilities).map(Some),
    }
}

/// A filter that answers `matched` to the calls in `rules` and `otherwise` to all others.
fn filter(
    rules: Rules,
    matched: SeccompAction,
    otherwise: SeccompAction,
) -> Result<Vec<libc::sock_filter>, SeccompError> {
    let wrong = |e: seccompiler::BackendError| SeccompError::Compile(e.to_string());
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(wrong)?;
    let filter = SeccompFilter::new(rules, otherwise, matched, arch).map_err(wrong)?;
    let program = BpfProgram::try_from(filter).map_err(wrong)?;
    Ok(program.iter().map(instruction).collect())
}

fn instruction(from: &seccompiler::sock_filter) -> libc::sock_filter {
    libc::sock_filter {
        code: from.code,
        jt: from.jt,
        jf: from.jf,
        k: from.k,
    }
}

#[cfg(test)]
mod tests {
    use super::read_profile;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_profile_lies_below_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("seccomp");
        std::fs::create_dir_all(root.join("profiles")).unwrap();
        std::fs::write(dir.path().join("secret"), "{}").unwrap();
        std::fs::write(root.join("profiles/own.json"), "{}").unwrap();
        symlink("own.json", root.join("profiles/same.json")).unwrap();
        symlink("../secret", root.join("relative.json")).unwrap();
        symlink(dir.path().join("secret"), root.join("absolute.json")).unwrap();
        symlink(dir.path(), root.join("up")).unwrap();
        for name in ["profiles/own.json", "profiles/same.json"] {
            assert_eq!(read_profile(&root, name).unwrap(), "{}", "{name}");
        }
        let secret = dir.path().join("secret");
        let refused = [
            secret.to_str().unwrap(),
            "../secret",
            "profiles/../../secret",
            "relative.json",
            "absolute.json",
            "up/secret",
            "profiles",
            "",
        ];
        for name in refused {
            assert!(read_profile(&root, name).is_err(), "{name}");
        }
    }
}
