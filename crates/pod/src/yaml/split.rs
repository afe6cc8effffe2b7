//! Cuts a text of many documents into raw documents, lazily.
//!
//! The cut is made where YAML makes it: before a line of `---` (alone, with a comment, or with content after
//! a blank) and after a line of `...`. Such a line at column 0 cannot be part of any scalar, so nothing has to
//! be understood. The raw texts joined again are the input, byte for byte.
//!
//! differs from k8s: `--- text` starts a document too, because the Go splitter leaves it inside the document
//! before, whose reader then silently drops it.

use std::borrow::Cow;

const BOM: char = '\u{feff}';

/// The text of one document as it is in the file, its `---` line included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawDocument<'a> {
    /// Number in the file, counted from 0; empty documents count.
    pub index: usize,
    /// First line in the file, counted from 1.
    pub line: usize,
    /// The text.
    pub text: Cow<'a, str>,
}

impl RawDocument<'_> {
    /// The text without a leading separator line (when nothing but a comment follows on it) and without a
    /// trailing `...`: what to copy to an output that puts its own separators.
    pub fn body(&self) -> &str {
        let mut rest: &str = &self.text;
        let mut start = rest;
        while let Some((line, after)) = next_line(rest) {
            match Line::of(line) {
                Line::Start { content: false } => {
                    start = after;
                    break;
                }
                Line::Blank => rest = after,
                _ => break,
            }
        }
        let end = start.trim_end();
        match end
            .rfind('\n')
            .map_or((0, end), |at| (at + 1, end.get(at + 1..).unwrap_or("")))
        {
            (at, last) if Line::of(last) == Line::End => start.get(..at).unwrap_or(start),
            _ => start,
        }
    }

    /// Whether there is nothing in it but blank lines, comments and separators.
    pub fn is_blank(&self) -> bool {
        self.text.lines().all(|line| {
            matches!(
                Line::of(line),
                Line::Blank | Line::Start { content: false } | Line::End
            )
        })
    }

    /// A copy that does not borrow.
    pub fn into_owned(self) -> RawDocument<'static> {
        RawDocument {
            index: self.index,
            line: self.line,
            text: Cow::Owned(self.text.into_owned()),
        }
    }
}

/// What a line means to the splitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// `---`, with or without something to read after it.
    Start { content: bool },
    /// `...`
    End,
    /// `%YAML 1.1`
    Directive,
    /// Empty or a comment.
    Blank,
    /// Anything else.
    Content,
}

impl Line {
    fn of(line: &str) -> Self {
        let line = line.trim_start_matches(BOM);
        if let Some(after) = marker(line, "---") {
            return Self::Start {
                content: !is_blank(after),
            };
        }
        if marker(line, "...").is_some() {
            return Self::End;
        }
        if line.starts_with('%') {
            return Self::Directive;
        }
        if is_blank(line) {
            Self::Blank
        } else {
            Self::Content
        }
    }
}

/// The text after `mark` when the line starts with it and a blank or the end follows.
fn marker<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    let after = line.strip_prefix(mark)?;
    after
        .chars()
        .next()
        .is_none_or(|c| matches!(c, ' ' | '\t' | '\r' | '\n'))
        .then_some(after)
}

fn is_blank(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t', '\r', '\n']);
    text.is_empty() || text.starts_with('#')
}

/// The first line with its line feed, and what follows. `None` at the end.
fn next_line(text: &str) -> Option<(&str, &str)> {
    if text.is_empty() {
        return None;
    }
    let end = text.find('\n').map_or(text.len(), |at| at + 1);
    Some(text.split_at(end))
}

/// What the lines of a document so far add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Blank lines, comments and directives: they belong to the document that follows.
    Prologue,
    /// A `---` or some content was seen.
    Open,
    /// `...` was seen: the next line begins another document.
    Closed,
}

impl State {
    /// The next state and whether a new document begins with this line.
    fn step(self, line: Line) -> (Self, bool) {
        let begins = match self {
            Self::Prologue => false,
            Self::Open => matches!(line, Line::Start { .. }),
            Self::Closed => true,
        };
        let next = match line {
            Line::Start { .. } | Line::Content => Self::Open,
            Line::End => Self::Closed,
            // A line that starts with % inside a document is content, e.g. of a plain scalar.
            Line::Directive | Line::Blank if self == Self::Open => Self::Open,
            Line::Directive | Line::Blank => Self::Prologue,
        };
        (next, begins)
    }
}

/// Splits a text that is in memory as a whole. See [`Splitter`] for one that comes in pieces.
pub fn split(text: &str) -> Split<'_> {
    Split {
        rest: text,
        index: 0,
        line: 1,
    }
}

/// Iterator over the raw documents of a text.
#[derive(Debug, Clone)]
pub struct Split<'a> {
    rest: &'a str,
    index: usize,
    line: usize,
}

impl<'a> Iterator for Split<'a> {
    type Item = RawDocument<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut rest = self.rest;
        let mut state = State::Prologue;
        let mut lines = 0;
        while let Some((line, after)) = next_line(rest) {
            let (next, begins) = state.step(Line::of(line));
            if begins {
                break;
            }
            (state, rest) = (next, after);
            lines += 1;
        }
        let (text, rest) = self.rest.split_at(self.rest.len() - rest.len());
        if text.is_empty() {
            return None;
        }
        let document = RawDocument {
            index: self.index,
            line: self.line,
            text: Cow::Borrowed(text),
        };
        self.rest = rest;
        self.index += 1;
        self.line += lines;
        Some(document)
    }
}

/// Splits a text that comes in pieces, holding one document at a time.
///
/// ```
/// let mut splitter = remora_pod::yaml::Splitter::default();
/// let mut documents = splitter.push("a: 1\n--");
/// documents.extend(splitter.push("-\nb: 2\n"));
/// documents.extend(splitter.finish());
/// assert_eq!(documents.len(), 2);
/// assert_eq!((documents[1].line, &*documents[1].text), (2, "---\nb: 2\n"));
/// ```
#[derive(Debug, Clone)]
pub struct Splitter {
    pending: String,
    /// Start of the last, still incomplete line in `pending`.
    open_line: usize,
    state: State,
    index: usize,
    line: usize,
    lines: usize,
}

impl Default for Splitter {
    fn default() -> Self {
        Self {
            pending: String::new(),
            open_line: 0,
            state: State::Prologue,
            index: 0,
            line: 1,
            lines: 0,
        }
    }
}

impl Splitter {
    /// Takes the next piece, cut anywhere, and returns the documents that are complete now.
    pub fn push(&mut self, piece: &str) -> Vec<RawDocument<'static>> {
        let mut done = Vec::new();
        for part in piece.split_inclusive('\n') {
            self.pending.push_str(part);
            if part.ends_with('\n') {
                done.extend(self.end_of_line());
            }
        }
        done
    }

    /// Takes the end of the input.
    pub fn finish(mut self) -> Vec<RawDocument<'static>> {
        let mut done = Vec::new();
        if self.open_line < self.pending.len() {
            done.extend(self.end_of_line());
        }
        if !self.pending.is_empty() {
            done.push(RawDocument {
                index: self.index,
                line: self.line,
                text: Cow::Owned(self.pending),
            });
        }
        done
    }

    /// Bytes held back: the size of the unfinished document. A caller can give up when it grows too large.
    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    fn end_of_line(&mut self) -> Option<RawDocument<'static>> {
        let line = self.pending.get(self.open_line..).unwrap_or("");
        let (next, begins) = self.state.step(Line::of(line));
        self.state = next;
        if !begins {
            self.lines += 1;
            self.open_line = self.pending.len();
            return None;
        }
        let line = self.pending.split_off(self.open_line);
        let text = std::mem::replace(&mut self.pending, line);
        let document = RawDocument {
            index: self.index,
            line: self.line,
            text: Cow::Owned(text),
        };
        self.index += 1;
        self.line += self.lines;
        self.lines = 1;
        self.open_line = self.pending.len();
        Some(document)
    }
}
