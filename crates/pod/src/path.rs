//! Where something is inside a document: `spec.template.spec.containers[0]`.
//!
//! A [`Path`] is built while walking down, printed in messages and used to reach into a value again. It
//! promises that what it prints can be parsed back by [`Path::from_str`]. It has no wildcards.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use crate::quote::quote;

/// One step of a [`Path`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Segment {
    /// A field of an object.
    Key(String),
    /// An item of a list, counted from 0.
    Index(usize),
}

impl From<&str> for Segment {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<String> for Segment {
    fn from(key: String) -> Self {
        Self::Key(key)
    }
}

impl From<usize> for Segment {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// A place inside a document; the empty path is the document itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(Vec<Segment>);

impl Path {
    /// The document itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// A path of field names only: `Path::of(&["spec", "template"])`.
    pub fn of(keys: &[&str]) -> Self {
        keys.iter().copied().collect()
    }

    /// This path with one more step.
    #[must_use]
    pub fn join(&self, step: impl Into<Segment>) -> Self {
        let mut longer = self.clone();
        longer.push(step);
        longer
    }

    /// This path followed by all steps of `rest`.
    #[must_use]
    pub fn concat(&self, rest: &Self) -> Self {
        self.0.iter().chain(&rest.0).cloned().collect()
    }

    /// Adds one step.
    pub fn push(&mut self, step: impl Into<Segment>) {
        self.0.push(step.into());
    }

    /// Takes the last step away.
    pub fn pop(&mut self) -> Option<Segment> {
        self.0.pop()
    }

    /// The path one step up; `None` for the document itself.
    pub fn parent(&self) -> Option<Self> {
        let (_, rest) = self.0.split_last()?;
        Some(Self(rest.to_vec()))
    }

    /// The last step.
    pub fn last(&self) -> Option<&Segment> {
        self.0.last()
    }

    /// All steps from the top.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Whether this is the document itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `self` is `other` or lies below it.
    pub fn starts_with(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// The value at this path.
    pub fn get<'v>(&self, root: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(root, |value, step| match step {
            Segment::Key(key) => value.as_object()?.get(key),
            Segment::Index(index) => value.as_array()?.get(*index),
        })
    }

    /// The value at this path, to be changed.
    pub fn get_mut<'v>(&self, root: &'v mut Value) -> Option<&'v mut Value> {
        self.0.iter().try_fold(root, |value, step| match step {
            Segment::Key(key) => value.as_object_mut()?.get_mut(key),
            Segment::Index(index) => value.as_array_mut()?.get_mut(*index),
        })
    }
}

impl<S: Into<Segment>> FromIterator<S> for Path {
    fn from_iter<T: IntoIterator<Item = S>>(steps: T) -> Self {
        Self(steps.into_iter().map(Into::into).collect())
    }
}

/// Whether a key can be written with a dot only. Everything else goes into brackets and quotes.
fn is_simple(key: &str) -> bool {
    !key.is_empty()
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'$'))
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Segment::Key(key) if is_simple(key) => {
                    let dot = if position == 0 { "" } else { "." };
                    write!(f, "{dot}{key}")?;
                }
                Segment::Key(key) => write!(f, "[{}]", Value::from(key.as_str()))?,
                Segment::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Why a text is not a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parse path {}: unexpected text at byte {at}", quote(.text))]
pub struct ParsePathError {
    /// The whole text.
    pub text: String,
    /// Where it stops making sense.
    pub at: usize,
}

impl FromStr for Path {
    type Err = ParsePathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut path = Self::root();
        let mut rest = text;
        while !rest.is_empty() {
            let fail = || ParsePathError {
                text: text.to_owned(),
                at: text.len() - rest.len(),
            };
            let (step, after) = if let Some(inner) = rest.strip_prefix('[') {
                bracket(inner).ok_or_else(fail)?
            } else {
                let name = if path.is_root() {
                    rest
                } else {
                    rest.strip_prefix('.').ok_or_else(fail)?
                };
                let end = name.find(['.', '[']).unwrap_or(name.len());
                let (key, after) = name.split_at(end);
                if !is_simple(key) {
                    return Err(fail());
                }
                (Segment::from(key), after)
            };
            path.push(step);
            rest = after;
        }
        Ok(path)
    }
}

/// Reads `0]` or `"key"]`, the opening bracket being gone already.
fn bracket(inner: &str) -> Option<(Segment, &str)> {
    if !inner.starts_with('"') {
        let (digits, after) = inner.split_once(']')?;
        return Some((Segment::Index(digits.parse().ok()?), after));
    }
    let mut stream = serde_json::Deserializer::from_str(inner).into_iter::<String>();
    let key = stream.next()?.ok()?;
    let after = inner.get(stream.byte_offset()..)?.strip_prefix(']')?;
    Some((Segment::Key(key), after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn prints_and_parses_back() {
        for text in [
            "",
            "spec",
            "spec.containers[0].env[12].value",
            r#"metadata.annotations["a.b/c"]"#,
            r#"["a\"]b"][3]"#,
        ] {
            let path: Path = text.parse().unwrap();
            assert_eq!(path.to_string(), text);
        }
    }

    #[test]
    fn refuses_nonsense() {
        for text in [".", "a..b", "a[", "a[x]", "a[\"x]", "a[0", "a[0]b", ".a", "a b"] {
            assert!(text.parse::<Path>().is_err(), "{text}");
        }
    }

    #[test]
    fn reaches_into_a_value() {
        let mut value = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
        let path: Path = "spec.containers[1].name".parse().unwrap();
        assert_eq!(path.get(&value), Some(&json!("b")));
        *path.get_mut(&mut value).unwrap() = json!("c");
        assert_eq!(value["spec"]["containers"][1]["name"], "c");
        assert_eq!(path.join("x").get(&value), None);
        assert_eq!(Path::of(&["spec", "containers"]).join(2).get(&value), None);
    }
}
