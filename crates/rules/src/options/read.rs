//! Option values with their origin, and the precedence between origins.

use super::table::{Kind, Name};
use std::collections::BTreeMap;
use std::fmt;

/// Environment variables by name.
pub type Environment = BTreeMap<String, String>;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// An environment variable.
    Variable(&'static str),
    /// An annotation of a pod.
    Annotation(&'static str),
    /// Something else in a pod.
    Pod(&'static str),
    /// The default: neither a flag, a variable nor the pod sets the option.
    Default,
}

/// A value as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// The option.
    pub option: Name,
    /// The text.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Flag => write!(f, "flag --{}", self.option.spec().long),
            Origin::Variable(name) => write!(f, "environment variable {name}"),
            Origin::Annotation(name) => write!(f, "annotation {name}"),
            Origin::Pod(what) => f.write_str(what),
            Origin::Default => write!(f, "default of --{}", self.option.spec().long),
        }
    }
}

/// Flags (or annotations) over the environment.
pub(super) struct Sources<'a> {
    pub(super) given: &'a [Given],
    pub(super) environment: &'a Environment,
}

impl Sources<'_> {
    /// The effective value of an option: the last flag, else the last variable that is set.
    // istio: aliases are applied after the primary variable and win over it.
    pub(super) fn get(&self, option: Name) -> Option<Given> {
        if let Some(given) = self.given.iter().rev().find(|given| given.option == option) {
            return Some(given.clone());
        }
        let spec = option.spec();
        spec.env.iter().rev().find_map(|name| {
            let value = self.environment.get(*name)?;
            // An empty variable is not a boolean; manifests set empty variables to switch an option off.
            if spec.kind == Kind::Switch && value.is_empty() {
                return None;
            }
            Some(Given {
                option,
                value: value.clone(),
                origin: Origin::Variable(name),
            })
        })
    }

    /// The value of an option without a flag, or its default.
    pub(super) fn variable(&self, option: Name) -> Given {
        self.get(option).unwrap_or_else(|| {
            let default = match option.spec().kind {
                Kind::Variable(default) => default,
                Kind::Text | Kind::Switch => "",
            };
            Given {
                option,
                value: default.to_owned(),
                origin: Origin::Default,
            }
        })
    }
}
