//! Whether an API server would accept a pod, as far as an injector can spoil it.
//!
//! The checks follow Kubernetes' own validation of pods after defaulting, for the parts a sidecar touches:
//! metadata, names, probes, hooks, ports, environment, volumes and mounts, resources, privileges. They do not
//! cover affinity, topology, the insides of volume sources, or anything that needs the cluster.
//!
//! All problems are reported, in document order of the lists, each with a path relative to the pod
//! (`spec.containers[0].name`).

mod container;
mod metadata;
mod probe;
mod volume;

use std::fmt;

use serde_json::Value;

use crate::path::Path;
use crate::quote::{brief, quote};

/// One reason why a pod would be refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where, relative to the pod or pod template.
    pub path: Path,
    /// What is wrong there: a sentence without a full stop.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// What the checks need to know beyond the pod.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// A container without an image is a problem. Off where an injector fills images in later.
    pub require_image: bool,
    /// Volumes that come from elsewhere: the claim templates of a `StatefulSet`.
    pub extra_volumes: &'a [&'a str],
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            require_image: true,
            extra_volumes: &[],
        }
    }
}

/// Checks a pod or pod template by its metadata and spec.
pub fn pod(metadata: &Value, spec: &Value) -> Vec<Problem> {
    pod_with(metadata, spec, Options::default())
}

/// Checks a pod or pod template under [`Options`].
pub fn pod_with(metadata: &Value, spec: &Value, options: Options<'_>) -> Vec<Problem> {
    let mut report = Report { problems: Vec::new() };
    metadata::check(metadata, &Path::of(&["metadata"]), &mut report);
    let at = Path::of(&["spec"]);
    if spec.is_object() {
        pod_fields(spec, &at, &mut report);
        let volumes = volume::check(spec, &at, options.extra_volumes, &mut report);
        container::check_all(spec, &at, &volumes, options, &mut report);
    } else {
        report.add(&at, "must be an object");
    }
    report.problems
}

fn pod_fields(spec: &Value, at: &Path, report: &mut Report) {
    report.one_of(spec, at, "restartPolicy", &["Always", "OnFailure", "Never"]);
    report.integer(spec, at, "terminationGracePeriodSeconds", 0, i64::MAX);
    let security = spec.get("securityContext").unwrap_or(&Value::Null);
    let at = at.join("securityContext");
    for field in ["runAsUser", "runAsGroup", "fsGroup"] {
        report.integer(security, &at, field, 0, i64::from(i32::MAX));
    }
}

/// Collects problems.
struct Report {
    problems: Vec<Problem>,
}

impl Report {
    fn add(&mut self, path: &Path, message: impl Into<String>) {
        self.problems.push(Problem {
            path: path.clone(),
            message: message.into(),
        });
    }

    /// A field that may be absent but must be an integer in a range.
    fn integer(&mut self, object: &Value, at: &Path, field: &str, least: i64, most: i64) {
        let message = match object.get(field) {
            None | Some(Value::Null) => return,
            Some(Value::Number(number)) => match number.as_i64() {
                Some(value) if (least..=most).contains(&value) => return,
                Some(_) if most == i64::MAX => format!("must be at least {least}"),
                _ => format!("must be an integer from {least} to {most}"),
            },
            Some(_) => "must be an integer".to_owned(),
        };
        self.add(&at.join(field), message);
    }

    /// A field that may be absent but must be one of these words.
    fn one_of(&mut self, object: &Value, at: &Path, field: &str, words: &[&str]) {
        match object.get(field) {
            None | Some(Value::Null) => {}
            Some(Value::String(word)) if words.contains(&word.as_str()) => {}
            Some(other) => self.add(
                &at.join(field),
                format!("must be one of {}, not {}", words.join(", "), brief(other)),
            ),
        }
    }

    /// The items of a field that may be absent but must be a list of objects, with their paths.
    fn objects<'v>(&mut self, object: &'v Value, at: &Path, field: &str) -> Vec<(Path, &'v Value)> {
        let at = at.join(field);
        let items = match object.get(field) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(items)) => items,
            Some(_) => {
                self.add(&at, "must be a list");
                return Vec::new();
            }
        };
        let mut found = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let here = at.join(index);
            if item.is_object() {
                found.push((here, item));
            } else {
                self.add(&here, "must be an object");
            }
        }
        found
    }

    /// A text field; `None` when it is absent, which is not a problem by itself.
    fn text<'v>(&mut self, object: &'v Value, at: &Path, field: &str) -> Option<&'v str> {
        match object.get(field) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text),
            Some(_) => {
                self.add(&at.join(field), "must be a string");
                None
            }
        }
    }

    /// A text field that must be there and follow a rule. Returns it when it does.
    fn name<'v>(
        &mut self,
        object: &'v Value,
        at: &Path,
        field: &str,
        rule: fn(&str) -> Result<(), crate::names::Rule>,
    ) -> Option<&'v str> {
        let known = self.problems.len();
        let text = self.text(object, at, field);
        if self.problems.len() > known {
            return None;
        }
        let Some(text) = text else {
            self.add(&at.join(field), "is required");
            return None;
        };
        match rule(text) {
            Ok(()) => Some(text),
            Err(rule) => {
                self.add(&at.join(field), format!("{} {rule}", quote(text)));
                None
            }
        }
    }
}

/// Fields of an object that are set.
fn set_fields<'f>(object: &Value, fields: &[&'f str]) -> Vec<&'f str> {
    fields
        .iter()
        .copied()
        .filter(|field| object.get(field).is_some_and(|value| !value.is_null()))
        .collect()
}

#[cfg(test)]
mod tests;
