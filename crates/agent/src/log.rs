//! Log lines of the agent. Libraries do not print: the binary that starts the agent supplies the sink.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Normal operation.
    Note,
    /// An operator should look into it.
    Warning,
}

type Say = dyn Fn(Level, &str) + Send + Sync;

/// Sink of the log lines.
#[derive(Clone)]
pub struct Log(Arc<Say>);

impl Log {
    /// Passes every line to `say`.
    pub fn new(say: impl Fn(Level, &str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(say))
    }

    pub(crate) fn note(&self, text: impl fmt::Display) {
        (self.0)(Level::Note, &text.to_string());
    }

    pub(crate) fn warning(&self, text: impl fmt::Display) {
        (self.0)(Level::Warning, &text.to_string());
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some libraries repeat their cause in their own text.
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}
