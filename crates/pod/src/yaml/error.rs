//! What can be wrong with a document, and where.
//!
//! A [`ReadError`] knows line, column and path; file name and document number are the caller's knowledge and
//! are added by [`Located`], for these errors and for any later finding about a document.

use std::fmt;

use super::marks::Mark;
use crate::path::{Path, Segment};
use crate::quote::quote;

/// What is wrong with a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The text is not YAML.
    #[error("{0}")]
    Syntax(String),
    /// A duplicate key.
    #[error("duplicate key {} (first on line {first_line})", quote(.key))]
    DuplicateKey {
        /// The key as text.
        key: String,
        /// Line of the first one.
        first_line: u32,
    },
    /// A key that JSON cannot have.
    #[error("{kind} cannot be a key")]
    UnsupportedKey {
        /// What it is instead of a string.
        kind: &'static str,
    },
    /// Infinity or not-a-number.
    #[error("{text} has no JSON form")]
    NotFinite {
        /// As written.
        text: String,
    },
    /// A value that does not fit its own tag.
    #[error("cannot read {} as {tag}", quote(.text))]
    TagMismatch {
        /// The tag, short form.
        tag: String,
        /// The value as written.
        text: String,
    },
    /// `<<` with something else than a mapping or a list of mappings.
    #[error("merge key << needs a mapping or a list of mappings")]
    MergeValue,
    /// An alias inside the node that it refers to.
    #[error("alias refers to a node that contains it")]
    RecursiveAlias,
    /// A character that YAML does not allow.
    #[error("control character U+{0:04X} is not allowed")]
    ControlCharacter(u32),
    /// More nesting than [`Limits`](super::Limits) allow.
    #[error("nested deeper than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// More nodes after alias expansion than [`Limits`](super::Limits) allow.
    #[error("more than {limit} values after expanding aliases")]
    TooManyNodes {
        /// The limit.
        limit: usize,
    },
    /// More text after alias expansion than [`Limits`](super::Limits) allow.
    #[error("more than {limit} bytes of text after expanding aliases")]
    TooMuchText {
        /// The limit.
        limit: usize,
    },
    /// A text longer than [`Limits`](super::Limits) allow.
    #[error("document of {bytes} bytes is larger than {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A second document inside what was taken for one.
    #[error("a second document starts here")]
    SecondDocument,
}

/// Why a document could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError {
    /// The problem.
    pub fault: Fault,
    /// The position in the file.
    pub mark: Mark,
    /// The path in the document, as far as it was read.
    pub path: Path,
}

impl ReadError {
    pub(super) fn new(fault: Fault, mark: Mark) -> Self {
        Self {
            fault,
            mark,
            path: Path::root(),
        }
    }

    /// Prepends a step while the error travels up. Cheaper than keeping a path for every node that is fine.
    pub(super) fn below(mut self, step: impl Into<Segment>) -> Self {
        let steps = std::iter::once(step.into()).chain(self.path.segments().iter().cloned());
        self.path = steps.collect();
        self
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match &self.fault {
            Fault::DuplicateKey { .. } => Some("keep one of the two; kubectl would silently use the last"),
            Fault::UnsupportedKey { .. } => Some("put the key in quotes"),
            Fault::NotFinite { .. } => Some("put the value in quotes if it is meant as text"),
            Fault::ControlCharacter(0) => Some("save the file as UTF-8"),
            Fault::ControlCharacter(_) => Some("write it as an escape inside double quotes"),
            Fault::SecondDocument => Some("separate documents with a line of three dashes"),
            Fault::TooManyNodes { .. } | Fault::TooMuchText { .. } => {
                Some("write the values out instead of nesting aliases")
            }
            Fault::Syntax(text) if text.contains("tab") => Some("indent with spaces"),
            _ => None,
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}, column {}: {}",
            self.mark.line, self.mark.column, self.fault
        )?;
        if !self.path.is_root() {
            write!(f, " at {}", self.path)?;
        }
        Ok(())
    }
}

impl std::error::Error for ReadError {}

/// A place in a file, in the form editors and terminals make clickable: `app.yaml:12:7`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// File name as the user gave it.
    pub file: String,
    /// Number of the document in the file, counted from 1.
    pub document: usize,
    /// Line and column, when known.
    pub mark: Option<Mark>,
    /// Path in the document; empty when it is about the whole document.
    pub path: Path,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(mark) = self.mark {
            write!(f, ":{}:{}", mark.line, mark.column)?;
        }
        write!(f, " (document {}", self.document)?;
        if !self.path.is_root() {
            write!(f, ", {}", self.path)?;
        }
        f.write_str(")")
    }
}

/// An error together with its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {error}")]
pub struct Located<E: std::error::Error> {
    /// The position of the error.
    pub place: Place,
    /// The error itself. Not a `source`, because it is already printed as part of this error.
    pub error: E,
}

impl ReadError {
    /// This error with file and document; line, column and path move into the place.
    pub fn locate(self, file: &str, document: usize) -> Located<Fault> {
        let place = Place {
            file: file.to_owned(),
            document,
            mark: Some(self.mark),
            path: self.path,
        };
        Located {
            place,
            error: self.fault,
        }
    }
}
