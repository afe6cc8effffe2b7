//! Lines and columns of everything in a document.
//!
//! [`Marks`] is a tree next to the value, not inside it: the value may be changed afterwards and the marks
//! still tell where the user wrote what was there before. A node that came through an alias or a merge key
//! is marked where it is written, not where it is used.

use crate::path::{Path, Segment};

/// A position in a file; both counted from 1, the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Line of the file.
    pub line: u32,
    /// Column of the line.
    pub column: u32,
}

/// Positions of one node and of everything below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    value: Mark,
    key: Option<Mark>,
    below: Below,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Below {
    Nothing,
    Items(Vec<Marks>),
    /// Sorted by key.
    Fields(Vec<(Box<str>, Marks)>),
}

impl Marks {
    pub(super) fn scalar(value: Mark) -> Self {
        Self {
            value,
            key: None,
            below: Below::Nothing,
        }
    }

    pub(super) fn list(value: Mark, items: Vec<Self>) -> Self {
        Self {
            value,
            key: None,
            below: Below::Items(items),
        }
    }

    pub(super) fn object(value: Mark, mut fields: Vec<(Box<str>, Self)>) -> Self {
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        Self {
            value,
            key: None,
            below: Below::Fields(fields),
        }
    }

    pub(super) fn with_key(mut self, key: Mark) -> Self {
        self.key = Some(key);
        self
    }

    pub(super) fn fields(&self) -> &[(Box<str>, Self)] {
        match &self.below {
            Below::Fields(fields) => fields,
            Below::Nothing | Below::Items(_) => &[],
        }
    }

    pub(super) fn items(&self) -> &[Self] {
        match &self.below {
            Below::Items(items) => items,
            Below::Nothing | Below::Fields(_) => &[],
        }
    }

    /// Where the value of this node starts.
    pub fn value(&self) -> Mark {
        self.value
    }

    /// Where the key of this node starts, or its value when it has no key (list items, the document).
    pub fn key(&self) -> Mark {
        self.key.unwrap_or(self.value)
    }

    /// The node at a path.
    pub fn get(&self, path: &Path) -> Option<&Self> {
        path.segments()
            .iter()
            .try_fold(self, |node, step| node.child(step))
    }

    /// The node at a path or, when the document does not have it, the closest one above it that it has.
    pub fn nearest(&self, path: &Path) -> &Self {
        let mut node = self;
        for step in path.segments() {
            match node.child(step) {
                Some(below) => node = below,
                None => break,
            }
        }
        node
    }

    fn child(&self, step: &Segment) -> Option<&Self> {
        match (step, &self.below) {
            (Segment::Index(index), Below::Items(items)) => items.get(*index),
            (Segment::Key(key), Below::Fields(fields)) => {
                let at = fields
                    .binary_search_by(|(name, _)| (**name).cmp(key.as_str()))
                    .ok()?;
                fields.get(at).map(|(_, marks)| marks)
            }
            _ => None,
        }
    }
}
