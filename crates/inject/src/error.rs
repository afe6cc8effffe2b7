//! What makes an injection impossible.

use crate::prometheus::PrometheusError;
use crate::template::TemplateError;

/// Why a pod cannot be injected. Everything wrong with a pod is reported at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InjectError {
    /// An annotation's value.
    #[error("annotation {name}: {value}: {problem}")]
    Annotation {
        /// Name of the annotation.
        name: String,
        /// Its value, shortened and with control characters made visible.
        value: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A template nobody has.
    #[error("requested template {name:?} not found; have {}", have.join(", "))]
    UnknownTemplate {
        /// What the pod asked for.
        name: String,
        /// What there is.
        have: Vec<String>,
    },
    /// A template that fails.
    #[error("template {name:?}")]
    Template {
        /// Which one.
        name: String,
        /// Why.
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
    const LONGEST: usize = 80;
    if value.chars().count() <= LONGEST {
        return format!("{value:?}");
    }
    let head: String = value.chars().take(LONGEST).collect();
    format!("{head:?}… ({} bytes)", value.len())
}
