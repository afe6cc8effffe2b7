//! One raw document to a value with marks, within limits.

mod compose;

use serde_json::Value;

use super::error::{Fault, Located, Place, ReadError};
use super::json;
use super::marks::{Mark, Marks};
use super::split::{self, RawDocument};
use crate::path::Path;
use compose::Composer;

/// Limits of the size of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Size of the text.
    pub bytes: usize,
    /// Levels of nesting.
    pub depth: usize,
    /// Values after expanding aliases.
    pub nodes: usize,
    /// Bytes of all strings after expanding aliases.
    pub text: usize,
}

impl Default for Limits {
    /// Ten times what an API server takes (1.5 MiB per object), and the depth `serde_json` reads.
    fn default() -> Self {
        Self {
            bytes: 16 << 20,
            depth: 127,
            nodes: 2_000_000,
            text: 64 << 20,
        }
    }
}

/// A document that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The value of the document.
    pub value: Value,
    /// The positions of all nodes.
    pub marks: Marks,
}

impl Document {
    /// The place of a path in this document, for a message. Falls back to the closest node above it.
    pub fn place(&self, file: &str, document: usize, path: &Path) -> Place {
        let mark = Some(self.marks.nearest(path).key());
        Place {
            file: file.to_owned(),
            document,
            mark,
            path: path.clone(),
        }
    }

    /// An error about a path of this document.
    pub fn locate<E: std::error::Error>(
        &self,
        file: &str,
        document: usize,
        path: &Path,
        error: E,
    ) -> Located<E> {
        Located {
            place: self.place(file, document, path),
            error,
        }
    }
}

/// What is left of the [`Limits`].
pub(super) struct Budget {
    limits: Limits,
    nodes: usize,
    text: usize,
}

impl Budget {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            nodes: 0,
            text: 0,
        }
    }

    pub(super) fn spend(&mut self, nodes: usize, text: usize) -> Result<(), Fault> {
        self.nodes = self.nodes.saturating_add(nodes);
        self.text = self.text.saturating_add(text);
        if self.nodes > self.limits.nodes {
            return Err(Fault::TooManyNodes {
                limit: self.limits.nodes,
            });
        }
        if self.text > self.limits.text {
            return Err(Fault::TooMuchText {
                limit: self.limits.text,
            });
        }
        Ok(())
    }

    pub(super) fn depth(&self, depth: usize) -> Result<(), Fault> {
        let limit = self.limits.depth;
        if depth > limit {
            Err(Fault::TooDeep { limit })
        } else {
            Ok(())
        }
    }
}

/// Reads one raw document. `None` when there is nothing in it, or only `null`.
pub fn parse(raw: &RawDocument<'_>, limits: Limits) -> Result<Option<Document>, ReadError> {
    let first_line = u32::try_from(raw.line).unwrap_or(u32::MAX);
    let start = Mark {
        line: first_line,
        column: 1,
    };
    if raw.text.len() > limits.bytes {
        let fault = Fault::TooLarge {
            bytes: raw.text.len(),
            limit: limits.bytes,
        };
        return Err(ReadError::new(fault, start));
    }
    let text = raw.text.trim_start_matches('\u{feff}');
    if looks_like_json(text)
        && let Some(outcome) = parse_json(text, first_line, limits)
    {
        return outcome.map(Some);
    }
    refuse_control_characters(text, first_line)?;
    let composer = Composer::new(text, first_line.saturating_sub(1), Budget::new(limits));
    let document = composer.document()?;
    Ok(document.filter(|document| !document.value.is_null()))
}

/// Reads a text with exactly one document, or none: configuration files, tests.
pub fn parse_str(text: &str) -> Result<Option<Document>, ReadError> {
    let mut found = None;
    for raw in split::split(text) {
        let Some(document) = parse(&raw, Limits::default())? else {
            continue;
        };
        if found.is_some() {
            return Err(ReadError::new(Fault::SecondDocument, document.marks.value()));
        }
        found = Some(document);
    }
    Ok(found)
}

fn looks_like_json(text: &str) -> bool {
    text.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{')
}

/// `None` when it is not JSON after all.
fn parse_json(text: &str, first_line: u32, limits: Limits) -> Option<Result<Document, ReadError>> {
    match json::parse(text, first_line, &mut Budget::new(limits)) {
        Ok((value, marks)) => Some(Ok(Document { value, marks })),
        Err(json::Failure::Refused(error)) => Some(Err(error)),
        Err(json::Failure::NotJson) => None,
    }
}

/// go-yaml refuses these too. It matters here because the event parser takes NUL for the end of the text,
/// and would silently drop what follows.
fn refuse_control_characters(text: &str, first_line: u32) -> Result<(), ReadError> {
    let allowed = |c: char| match c {
        '\t' | '\n' | '\r' | '\u{85}' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        _ => !c.is_control(),
    };
    // The bytes alone rule out nearly every text: controls are below 0x20, 0x7f, or start with 0xC2 or 0xEF.
    let suspicious = |b: u8| matches!(b, 0..0x09 | 0x0b | 0x0c | 0x0e..0x20 | 0x7f | 0xc2 | 0xef);
    if !text.bytes().any(suspicious) {
        return Ok(());
    }
    let Some((at, found)) = text.char_indices().find(|(_, c)| !allowed(*c)) else {
        return Ok(());
    };
    let before = text.get(..at).unwrap_or("");
    let lines = before.bytes().filter(|b| *b == b'\n').count();
    let column = before.rsplit('\n').next().unwrap_or("").chars().count();
    let mark = Mark {
        line: first_line.saturating_add(u32::try_from(lines).unwrap_or(u32::MAX)),
        column: u32::try_from(column).unwrap_or(u32::MAX).saturating_add(1),
    };
    Err(ReadError::new(Fault::ControlCharacter(u32::from(found)), mark))
}
