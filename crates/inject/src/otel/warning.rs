//! What the instrumentation tells a person: one line per problem, with the remedy in it.

/// One problem the instrumentation met. It never stops the rest of the injection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Warning {
    /// Stable identifier of the kind of problem, e.g. `otel-lookup`.
    pub code: &'static str,
    /// The container it is about, when it is about one.
    pub container: Option<String>,
    /// What happened, where, and how to mend it.
    pub text: String,
}

impl Warning {
    /// A problem of the whole pod or of a resource.
    pub(crate) fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self {
            code,
            container: None,
            text: text.into(),
        }
    }

    /// A problem of one container.
    pub(crate) fn of(code: &'static str, container: &str, text: impl Into<String>) -> Self {
        Self {
            code,
            // k8s: names have at most 63 characters; a longer one comes from an annotation and may be anything.
            container: Some(container.chars().take(63).collect()),
            text: text.into(),
        }
    }
}
