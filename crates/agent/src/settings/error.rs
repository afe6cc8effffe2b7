//! Errors in the agent's settings.

use crate::probes::ProbesError;
use crate::scrape::TargetsError;
use remora_mtls::InvalidSpiffeId;
use remora_pod::duration::ParseDurationError;
use remora_pod::yaml::ReadError;
use std::path::PathBuf;

/// Why the settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A flag without its value.
    #[error("read the command line")]
    Flags(#[from] crate::flags::MissingValue),
    /// A role other than `sidecar`.
    #[error("the role {0} is not known")]
    Role(String),
    /// A required setting is missing.
    #[error("{0} is not set")]
    Missing(&'static str),
    /// Not a number, or out of range.
    #[error("{name} is {value}, which is not {expected}")]
    Value {
        /// Name of the setting.
        name: String,
        /// Value of the setting.
        value: String,
        /// Expected format.
        expected: &'static str,
    },
    /// Not a duration.
    #[error("read {name}")]
    Duration {
        /// Name of the setting.
        name: String,
        /// Error of the parser.
        #[source]
        source: ParseDurationError,
    },
    /// Not YAML.
    #[error("read {name} as YAML")]
    Yaml {
        /// Name of the document.
        name: &'static str,
        /// Error of the parser, with position.
        #[source]
        source: ReadError,
    },
    /// Names that do not form a SPIFFE id.
    #[error("make the identity of {namespace}/{account}")]
    Identity {
        /// Namespace of the pod.
        namespace: String,
        /// Service account of the pod.
        account: String,
        /// Error of the parser.
        #[source]
        source: InvalidSpiffeId,
    },
    /// Invalid probes.
    #[error(transparent)]
    Probes(#[from] ProbesError),
    /// Metrics that cannot be scraped.
    #[error(transparent)]
    Metrics(#[from] TargetsError),
    /// A file that is there cannot be read.
    #[error("read {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
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
    /// How to fix it.
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
