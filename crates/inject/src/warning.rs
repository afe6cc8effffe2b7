//! Warnings about injections that succeeded.

use std::fmt;

/// One warning, as data: the CLI prints it, the webhook returns it, tests check its code.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Warning {
    /// Stable, kebab-case name of the situation.
    pub code: &'static str,
    /// The container it is about, if it is about one.
    pub container: Option<String>,
    /// The problem, and what the user can do about it.
    pub text: String,
}

impl Warning {
    /// A warning about the pod as a whole.
    pub fn pod(code: &'static str, text: impl Into<String>) -> Self {
        Self {
            code,
            container: None,
            text: text.into(),
        }
    }

    /// A warning about one container.
    pub fn container(code: &'static str, container: &str, text: impl Into<String>) -> Self {
        // k8s: names have at most 63 characters; a longer one comes from an annotation and may be anything.
        let container = container.chars().take(63).collect();
        Self {
            code,
            container: Some(container),
            text: text.into(),
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.container {
            Some(name) => write!(f, "container {name:?}: {} [{}]", self.text, self.code),
            None => write!(f, "{} [{}]", self.text, self.code),
        }
    }
}
