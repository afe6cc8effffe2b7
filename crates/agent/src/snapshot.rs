//! The last good configuration on disk, so that a pod can start while the control plane is unavailable.
//!
//! Opt-in. The configuration that discovery sent and the proxy accepted is written after every change, atomically and
//! readable by the proxy's user only. It holds workloads, services and policies, or Envoy's resources; never secrets: a certificate for
//! such a start comes from mounted files or from the directory configured for the agent's own certificate.
//!
//! A file that is damaged, too old, or of another pod is ignored with a warning. A disk that is full is a warning, too.

mod file;
mod keeper;

pub(crate) use file::Found;
pub(crate) use keeper::Keeper;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Location of the last good configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// A directory that outlives the container.
    pub directory: PathBuf,
    /// Maximum age; an older configuration is not used.
    pub longest: Duration,
}

/// A resource, as discovery encoded it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) version: String,
    pub(crate) bytes: Vec<u8>,
}

/// Resources by type and name.
pub(crate) type Contents = BTreeMap<String, BTreeMap<String, Entry>>;
