//! The `Instrumentation` resource: read leniently, judged strictly.
//!
//! Unknown fields are ignored. A field of the wrong shape, or a value the operator's webhook would refuse,
//! is a problem that makes the resource unusable: an API server would never have stored it. Fields of the
//! announced `v1beta1` shape are read too where they only moved.
//!
//! Defaults. An Instrumentation in a file did not pass the operator's webhook, so its defaults are applied
//! when it is used. When an operator configuration is given explicitly, resources are taken as that operator
//! stored them and get no resource defaults; an empty image is filled in always, because no pod with an
//! empty image is valid.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::language::Language;
use super::operator::Operator;

mod read;
mod validate;

use read::Reader;

/// A parsed Instrumentation together with what is wrong with it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Instrumentation {
    pub(crate) name: String,
    pub(crate) endpoint: String,
    pub(crate) tls: Option<Tls>,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) add_uids: bool,
    pub(crate) propagators: Vec<String>,
    pub(crate) sampler: String,
    pub(crate) sampler_argument: String,
    pub(crate) use_labels: bool,
    pub(crate) env: Vec<Value>,
    pub(crate) pull_policy: String,
    pub(crate) init_security: Option<Value>,
    sections: BTreeMap<Language, Section>,
    /// Why it cannot be used; empty for a good one.
    pub(crate) problems: Vec<Problem>,
    /// What works but is probably not meant.
    pub(crate) notes: Vec<Problem>,
}

/// A field and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) field: String,
    pub(crate) text: String,
}

/// `exporter.tls`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tls {
    pub(crate) secret: String,
    pub(crate) config_map: String,
    pub(crate) ca_file: String,
    pub(crate) cert_file: String,
    pub(crate) key_file: String,
}

/// One language's part.
#[derive(Debug, Clone, Default)]
pub(crate) struct Section {
    pub(crate) image: String,
    pub(crate) claim: Option<Value>,
    pub(crate) limit: Option<Value>,
    pub(crate) env: Vec<Value>,
    pub(crate) resources: Option<Value>,
    pub(crate) security: Option<Value>,
    pub(crate) extensions: Vec<Extension>,
    pub(crate) attrs: Vec<(String, String)>,
    pub(crate) version: String,
    pub(crate) config: String,
}

/// A Java extension: an image and the directory in it.
#[derive(Debug, Clone)]
pub(crate) struct Extension {
    pub(crate) image: String,
    pub(crate) dir: String,
}

impl Instrumentation {
    /// Reads and judges `spec`.
    pub(crate) fn parse(name: &str, spec: Option<&Value>) -> Self {
        let mut reader = Reader::default();
        let empty = Map::new();
        let spec = match spec {
            None | Some(Value::Null) => &empty,
            Some(Value::Object(map)) => map,
            Some(_) => {
                reader.problem("spec", "must be an object");
                &empty
            }
        };
        let mut found = read::spec(&mut reader, name, spec);
        validate::check(&mut reader, &found);
        found.problems = reader.problems;
        found.notes = reader.notes;
        found
    }

    /// The Instrumentation inside an operator's configuration: a spec, or an object with one.
    pub(crate) fn embedded(value: &Value) -> Option<Self> {
        let spec = value.get("spec").unwrap_or(value);
        spec.is_object()
            .then(|| Self::parse("(operator configuration)", Some(spec)))
    }

    /// One language's part with the operator's defaults filled in.
    pub(crate) fn section(&self, language: Language, operator: &Operator) -> Section {
        let mut section = self.sections.get(&language).cloned().unwrap_or_default();
        if section.image.is_empty() {
            operator.image(language).clone_into(&mut section.image);
        }
        if !operator.explicit {
            section.resources = Some(default_resources(language, section.resources));
        }
        section
    }
}

/// Limits and requests are defaulted independently of each other.
fn default_resources(language: Language, given: Option<Value>) -> Value {
    let mut resources = match given {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let unset = |value: Option<&Value>| value.is_none_or(|v| v.as_object().is_none_or(Map::is_empty));
    if unset(resources.get("limits")) {
        resources.insert("limits".to_owned(), json!({"cpu": "500m", "memory": "256Mi"}));
    }
    if unset(resources.get("requests")) {
        let (cpu, memory) = language.default_requests();
        resources.insert("requests".to_owned(), json!({"cpu": cpu, "memory": memory}));
    }
    Value::Object(resources)
}
