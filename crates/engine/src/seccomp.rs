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
