//! What is wrong with what the agent is told.

use crate::probes::ProbesError;
use crate::scrape::TargetsError;
use remora_mtls::InvalidSpiffeId;
use remora_pod::duration::ParseDurationError;
use remora_pod::yaml::ReadError;
use std::path::PathBuf;

/// Told something that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A flag without its value.
    #[error("read the command line")]
    Flags(#[from] crate::flags::MissingValue),
    /// A role that is no sidecar's.
    #[error("the role {0} is not known")]
    Role(String),
    /// Something the agent cannot do without.
    #[error("{0} is not set")]
    Missing(&'static str),
    /// Not a number, or out of range.
    #[error("{name} is {value}, which is not {expected}")]
    Value {
        /// Of what.
        name: String,
        /// As given.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// Not a duration.
    #[error("read {name}")]
    Duration {
        /// Of what.
        name: String,
        /// Why not.
        #[source]
        source: ParseDurationError,
    },
    /// Not YAML.
    #[error("read {name} as YAML")]
    Yaml {
        /// Which text.
        name: &'static str,
        /// Where and why.
        #[source]
        source: ReadError,
    },
    /// Names that make no identity.
    #[error("make the identity of {namespace}/{account}")]
    Identity {
        /// As given.
        namespace: String,
        /// As given.
        account: String,
        /// Why not.
        #[source]
        source: InvalidSpiffeId,
    },
    /// Probes that cannot be followed.
    #[error(transparent)]
    Probes(#[from] ProbesError),
    /// Metrics that cannot be scraped.
    #[error(transparent)]
    Metrics(#[from] TargetsError),
    /// A file that is there cannot be read.
    #[error("read {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The addresses of the pod cannot be found.
    #[error("look for the addresses of the pod")]
    Addresses(#[source] std::io::Error),
    /// The default routes of the pod cannot be read.
    #[error("look for the default routes of the pod")]
    Gateways(#[source] std::io::Error),
}

impl SettingsError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Role(_) => Some("remora runs sidecars: `proxy sidecar`"),
            Self::Missing("POD_NAMESPACE" | "POD_NAME") => {
                Some("the injected container sets it from the pod's own fields (downward API)")
            }
            Self::Duration { source, .. } => source.hint(),
            _ => None,
        }
    }
}
