//! What makes an injection impossible.

use crate::prometheus::PrometheusError;
use crate::template::TemplateError;

/// Why a pod cannot be injected. All problems of a pod are reported together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InjectError {
    /// An annotation has an invalid value.
    #[error("annotation {name}: {value}: {problem}")]
    Annotation {
        /// Name of the annotation.
        name: String,
        /// Its value, shortened and with control characters made visible.
        value: String,
        /// The problem, and the accepted values.
        problem: String,
    },
    /// The pod names an unknown template.
    #[error("requested template {name:?} not found; have {}", have.join(", "))]
    UnknownTemplate {
        /// The template that the pod names.
        name: String,
        /// The templates that exist.
        have: Vec<String>,
    },
    /// A template failed.
    #[error("template {name:?}")]
    Template {
        /// The name of the template.
        name: String,
        /// The reason.
        #[source]
        source: TemplateError,
    },
    /// Scrape annotations that cannot work.
    #[error(transparent)]
    Prometheus(#[from] PrometheusError),
    /// The pod has no containers to inject into, or fields of the wrong type.
    #[error("{0}")]
    Malformed(String),
    /// The result would be refused by the API server.
    #[error("the injected pod would be invalid: {0}")]
    Invalid(String),
}

/// A value as messages show it: short, in quotes, without control characters.
pub(crate) fn shown(value: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 80;
    if value.chars().count() <= MAX_SHOWN_CHARS {
        return format!("{value:?}");
    }
    let head: String = value.chars().take(MAX_SHOWN_CHARS).collect();
    format!("{head:?}… ({} bytes)", value.len())
}
