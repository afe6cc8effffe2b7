//! What a policy says that is not enforced as written.

use remora_pod::path::Path;
use std::fmt;

/// A field of a policy that is not enforced as written, and what follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The field, from the root of the document.
    pub field: Path,
    /// What is wrong with it.
    pub fault: Fault,
    /// What the proxy does instead.
    pub consequence: Consequence,
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The API has no such field.
    UnknownField,
    /// It has another type than the API says.
    Type {
        /// What the API says.
        expected: &'static str,
    },
    /// It is there, but nothing is in it.
    Empty,
    /// A value that cannot be parsed.
    Value {
        /// As written.
        text: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// Fields that exclude each other, or that need another one.
    Conflict {
        /// Which ones.
        why: &'static str,
        /// What the author can do.
        remedy: &'static str,
    },
    /// It is well-formed, but this proxy does not enforce it.
    NotEnforced {
        /// The reason.
        why: &'static str,
        /// What the author can do.
        remedy: &'static str,
    },
}

impl Fault {
    /// Whether the author has to correct it. Otherwise the document is right, and the proxy is limited.
    pub fn is_error(&self) -> bool {
        !matches!(self, Self::NotEnforced { .. })
    }

    /// What the author can do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::UnknownField => "correct the name of the field, or remove it".to_owned(),
            Self::Type { expected } | Self::Value { expected, .. } => format!("write {expected}"),
            Self::Empty => "give it a value, or remove it".to_owned(),
            Self::Conflict { remedy, .. } | Self::NotEnforced { remedy, .. } => (*remedy).to_owned(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownField => f.write_str("unknown field"),
            Self::Type { expected } => write!(f, "must be {expected}"),
            Self::Empty => f.write_str("must not be empty"),
            Self::Value { text, expected } => write!(f, "{text:?} is not {expected}"),
            Self::Conflict { why, .. } | Self::NotEnforced { why, .. } => f.write_str(why),
        }
    }
}

/// What a proxy does where a field is not enforced as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// The rule matches no connection, so it allows nothing.
    RuleAllowsNothing,
    /// No rule of the policy matches, so the workloads it selects accept nothing through it.
    PolicyAllowsNothing,
    /// The condition counts as absent, so the rule denies more connections.
    ConditionIgnored,
    /// What is denied is not known, so every connection is.
    DeniesEverything,
    /// Connections that match the rules are denied.
    Denies,
    /// The policy applies to all workloads its namespace can reach.
    SelectsEverything,
    /// The policy does not apply to sidecars.
    NotApplied,
    /// The field has no effect.
    NoEffect,
    /// Mutual TLS is required.
    Strict,
    /// Plaintext is accepted beside mutual TLS.
    Permissive,
}

impl fmt::Display for Consequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RuleAllowsNothing => "the rule allows nothing",
            Self::PolicyAllowsNothing => "the policy allows nothing",
            Self::ConditionIgnored => "the rule denies without this condition",
            Self::DeniesEverything => "every connection is denied",
            Self::Denies => "connections that match its rules are denied",
            Self::SelectsEverything => "the policy applies to every workload in reach of its namespace",
            Self::NotApplied => "the policy does not apply to sidecars",
            Self::NoEffect => "it has no effect",
            Self::Strict => "mutual TLS is required",
            Self::Permissive => "plaintext is accepted beside mutual TLS",
        })
    }
}

/// Characters of what is said about a policy. The API server stores it with the object, and discovery sends it.
pub(crate) const SUMMARY_LIMIT: usize = 1024;
/// Characters kept free for the number of problems that do not fit.
const COUNT_ROOM: usize = 32;

/// Field, fault and consequence of the problems of a policy, as many as fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    told: Vec<String>,
    untold: usize,
}

/// What is said about the problems of a policy: in its status, and to the proxies that enforce it.
pub fn summary(problems: &[Problem]) -> Summary {
    let limit = SUMMARY_LIMIT - COUNT_ROOM;
    let mut room = limit;
    let mut told = Vec::new();
    for problem in problems {
        let text = shortened(problem.to_string(), limit);
        // Two characters stand between them.
        let length = text.chars().count() + 2 * usize::from(!told.is_empty());
        let Some(rest) = room.checked_sub(length) else {
            break;
        };
        room = rest;
        told.push(text);
    }
    let untold = problems.len() - told.len();
    Summary { told, untold }
}

fn shortened(text: String, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text;
    }
    let kept = text.chars().take(limit - 1);
    kept.chain(std::iter::once('…')).collect()
}

impl Summary {
    /// One line for each problem, and one for the number of those that do not fit.
    pub fn lines(self) -> Vec<String> {
        let Self { told, untold } = self;
        let more = (untold > 0).then(|| format!("and {untold} more"));
        told.into_iter().chain(more).collect()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told.join(". "))?;
        if self.untold > 0 {
            write!(f, " (and {} more)", self.untold)?;
        }
        Ok(())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.field, self.fault, self.consequence)
    }
}
