//! Reads parts of a document with an allow-list and collects what is wrong with them.

use super::problem::{Consequence, Fault, Problem};
use remora_pod::path::Path;
use remora_pod::selector::Selector;
use serde_json::{Map, Value};

/// Collects problems. `consequence` is what follows from a problem at the place that is being read.
pub(super) struct Reader {
    pub(super) problems: Vec<Problem>,
    pub(super) consequence: Consequence,
}

impl Reader {
    pub(super) fn new(consequence: Consequence) -> Self {
        Self {
            problems: Vec::new(),
            consequence,
        }
    }

    pub(super) fn report(&mut self, field: Path, fault: Fault) {
        self.report_with(field, fault, self.consequence);
    }

    pub(super) fn report_with(&mut self, field: Path, fault: Fault, consequence: Consequence) {
        self.problems.push(Problem {
            field,
            fault,
            consequence,
        });
    }

    /// An object that may have these fields only. Other fields are reported.
    pub(super) fn object<'v>(
        &mut self,
        value: &'v Value,
        at: &Path,
        known: &[&str],
    ) -> Option<&'v Map<String, Value>> {
        let Some(object) = value.as_object() else {
            self.report(
                at.clone(),
                Fault::Type {
                    expected: "an object",
                },
            );
            return None;
        };
        for field in object.keys().filter(|field| !known.contains(&field.as_str())) {
            self.report(at.join(field.as_str()), Fault::UnknownField);
        }
        Some(object)
    }

    /// A list that has at least one item.
    pub(super) fn list<'v>(&mut self, value: &'v Value, at: &Path) -> Option<&'v [Value]> {
        match value.as_array() {
            Some(list) if !list.is_empty() => return Some(list),
            Some(_) => self.report(at.clone(), Fault::Empty),
            None => self.report(at.clone(), Fault::Type { expected: "a list" }),
        }
        None
    }

    /// A list of texts, none of them empty.
    pub(super) fn texts<'v>(&mut self, value: &'v Value, at: &Path) -> Option<Vec<&'v str>> {
        let list = self.list(value, at)?;
        let mut texts = Vec::new();
        for (index, item) in list.iter().enumerate() {
            match item.as_str() {
                Some("") => self.report(at.join(index), Fault::Empty),
                Some(text) => texts.push(text),
                None => self.report(at.join(index), Fault::Type { expected: "a string" }),
            }
        }
        (texts.len() == list.len()).then_some(texts)
    }

    /// The labels of a `WorkloadSelector`. `Ok(None)`: it selects every workload. `Err`: it cannot be read.
    pub(super) fn selector(
        &mut self,
        spec: &Map<String, Value>,
        spec_at: &Path,
    ) -> Result<Option<Selector>, ()> {
        let at = spec_at.join("selector");
        let before = self.problems.len();
        let Some(value) = spec.get("selector").filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let labels = self
            .object(value, &at, &["matchLabels"])
            .and_then(|selector| selector.get("matchLabels"));
        let mut found = None;
        if let Some(labels) = labels.filter(|labels| !labels.is_null()) {
            match Selector::parse(Some(&serde_json::json!({"matchLabels": labels}))) {
                Ok(selector) if selector.is_empty() => {}
                Ok(selector) => found = Some(selector),
                Err(_) => self.report(
                    at.join("matchLabels"),
                    Fault::Type {
                        expected: "a map of labels",
                    },
                ),
            }
        }
        if self.problems.len() == before {
            Ok(found)
        } else {
            Err(())
        }
    }
}
