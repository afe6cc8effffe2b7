//! Label selectors: which objects something applies to.

use serde_json::{Map, Value};
use thiserror::Error;

use crate::names;
use crate::path::Path;
use crate::quote::quote;

/// A `LabelSelector`. All its requirements must hold; without any it selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

/// Why a value is not a selector.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{path}: {problem}")]
pub struct SelectorError {
    /// Where in the selector.
    pub path: Path,
    /// What is wrong there.
    pub problem: String,
}

impl SelectorError {
    fn new(path: Path, problem: impl Into<String>) -> Self {
        Self {
            path,
            problem: problem.into(),
        }
    }
}

impl Selector {
    /// Reads a `LabelSelector`. An absent or null one counts as empty; whether that selects everything or
    /// nothing is the caller's rule, see [`Selector::is_empty`].
    pub fn parse(value: Option<&Value>) -> Result<Self, SelectorError> {
        let Some(value) = value.filter(|value| !value.is_null()) else {
            return Ok(Self::default());
        };
        let Some(fields) = value.as_object() else {
            return Err(SelectorError::new(Path::root(), "must be an object"));
        };
        let mut requirements = Vec::new();
        for (field, value) in fields {
            let at = Path::of(&[field]);
            match field.as_str() {
                _ if value.is_null() => {}
                "matchLabels" => requirements.extend(match_labels(value, &at)?),
                "matchExpressions" => requirements.extend(match_expressions(value, &at)?),
                _ => return Err(SelectorError::new(at, "is not a field of a label selector")),
            }
        }
        Ok(Self { requirements })
    }

    /// Whether there is no requirement at all.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: Option<&Map<String, Value>>) -> bool {
        self.requirements.iter().all(|requirement| {
            let label = labels
                .and_then(|labels| labels.get(&requirement.key))
                .and_then(Value::as_str);
            let among =
                |values: &[String]| label.is_some_and(|label| values.iter().any(|value| value == label));
            match &requirement.operator {
                Operator::In(values) => among(values),
                // k8s: an absent label is not among any values, so it satisfies NotIn.
                Operator::NotIn(values) => !among(values),
                Operator::Exists => label.is_some(),
                Operator::DoesNotExist => label.is_none(),
            }
        })
    }
}

fn match_labels(value: &Value, at: &Path) -> Result<Vec<Requirement>, SelectorError> {
    let labels = value
        .as_object()
        .ok_or_else(|| SelectorError::new(at.clone(), "must be an object"))?;
    let one = |(key, value): (&String, &Value)| {
        let here = at.join(key.as_str());
        check_key(key, &here)?;
        Ok(Requirement {
            key: key.clone(),
            operator: Operator::In(vec![label_value(value, here)?]),
        })
    };
    labels.iter().map(one).collect()
}

fn match_expressions(value: &Value, at: &Path) -> Result<Vec<Requirement>, SelectorError> {
    let list = value
        .as_array()
        .ok_or_else(|| SelectorError::new(at.clone(), "must be a list"))?;
    list.iter()
        .enumerate()
        .map(|(index, item)| expression(item, &at.join(index)))
        .collect()
}

fn expression(item: &Value, at: &Path) -> Result<Requirement, SelectorError> {
    let key = item.get("key").and_then(Value::as_str).unwrap_or("");
    check_key(key, &at.join("key"))?;
    let values = match item.get("values") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(values)) => {
            let one = |(index, value)| label_value(value, at.join("values").join(index));
            values.iter().enumerate().map(one).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(SelectorError::new(at.join("values"), "must be a list")),
    };
    let name = item.get("operator").and_then(Value::as_str).unwrap_or("");
    let operator = match (name, values.is_empty()) {
        ("In", false) => Operator::In(values),
        ("NotIn", false) => Operator::NotIn(values),
        ("Exists", true) => Operator::Exists,
        ("DoesNotExist", true) => Operator::DoesNotExist,
        ("In" | "NotIn", true) => return Err(SelectorError::new(at.join("values"), "must not be empty")),
        ("Exists" | "DoesNotExist", false) => {
            return Err(SelectorError::new(
                at.join("values"),
                format!("must be empty for {name}"),
            ));
        }
        _ => {
            let problem = format!("must be In, NotIn, Exists or DoesNotExist, not {}", quote(name));
            return Err(SelectorError::new(at.join("operator"), problem));
        }
    };
    Ok(Requirement {
        key: key.to_owned(),
        operator,
    })
}

fn check_key(key: &str, at: &Path) -> Result<(), SelectorError> {
    names::qualified_name(key)
        .map_err(|rule| SelectorError::new(at.clone(), format!("label key {} {rule}", quote(key))))
}

fn label_value(value: &Value, at: Path) -> Result<String, SelectorError> {
    let Some(text) = value.as_str() else {
        return Err(SelectorError::new(at, "must be a string"));
    };
    match names::label_value(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(rule) => Err(SelectorError::new(
            at,
            format!("label value {} {rule}", quote(text)),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matches(selector: &Value, labels: &Value) -> bool {
        Selector::parse(Some(selector))
            .unwrap()
            .matches(labels.as_object())
    }

    #[test]
    fn matching() {
        let labels = json!({"app": "cart", "tier": "web"});
        let cases = [
            (json!({}), true),
            (json!({"matchLabels": {"app": "cart"}}), true),
            (json!({"matchLabels": {"app": "cart", "tier": "db"}}), false),
            (json!({"matchLabels": {"none": ""}}), false),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "cart"]}]}),
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["cart"]}]}),
                false,
            ),
            (
                json!({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["cart"]}]}),
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}),
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}),
                false,
            ),
            (
                json!({"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}),
                true,
            ),
            (json!({"matchLabels": null, "matchExpressions": null}), true),
        ];
        for (selector, expected) in cases {
            assert_eq!(matches(&selector, &labels), expected, "{selector}");
        }
    }

    #[test]
    fn empty_is_known() {
        assert!(Selector::parse(None).unwrap().is_empty());
        assert!(
            Selector::parse(Some(&json!({"matchLabels": {}})))
                .unwrap()
                .is_empty()
        );
        assert!(
            !Selector::parse(Some(&json!({"matchLabels": {"a": "b"}})))
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn errors_name_the_place() {
        let cases = [
            (json!([]), "", "must be an object"),
            (
                json!({"matchLabel": {}}),
                "matchLabel",
                "is not a field of a label selector",
            ),
            (
                json!({"matchLabels": {"a": 1}}),
                "matchLabels.a",
                "must be a string",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "in"}]}),
                "matchExpressions[0].operator",
                "must be In, NotIn, Exists or DoesNotExist, not \"in\"",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
                "matchExpressions[0].values",
                "must not be empty",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
                "matchExpressions[0].values",
                "must be empty for Exists",
            ),
            (
                json!({"matchExpressions": [{"operator": "Exists"}]}),
                "matchExpressions[0].key",
                "label key \"\" must not be empty",
            ),
        ];
        for (selector, path, problem) in cases {
            let error = Selector::parse(Some(&selector)).unwrap_err();
            assert_eq!(
                (error.path.to_string().as_str(), error.problem.as_str()),
                (path, problem),
                "{selector}"
            );
        }
    }
}
