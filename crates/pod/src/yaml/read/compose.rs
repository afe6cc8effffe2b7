//! Values from parser events.
//!
//! The event parser finds structure; this module gives it Go's meaning: scalars resolved as go-yaml does, keys
//! as strings, merge keys, aliases within a budget. A node costs the budget when it is made, whether written or
//! copied by an alias, so a small text cannot become a large value.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde_json::{Map, Value};

use super::{Budget, Document};
use crate::yaml::error::{Fault, ReadError};
use crate::yaml::go_float;
use crate::yaml::marks::{Mark, Marks};
use crate::yaml::scalar::{self, Scalar};

/// A finished node and what a copy of it costs.
#[derive(Clone)]
struct Node {
    value: Value,
    marks: Marks,
    nodes: usize,
    text: usize,
    /// Levels below this node.
    height: usize,
}

pub(super) struct Composer<'a> {
    parser: Parser<'a, StrInput<'a>>,
    line_offset: u32,
    budget: Budget,
    /// Finished anchored nodes. An anchor that is not here yet is one we are inside of.
    anchors: HashMap<usize, Node>,
}

/// A key and the value that goes with it, before duplicates and merges are settled.
enum Key {
    Name(String),
    Merge,
}

impl<'a> Composer<'a> {
    /// `line_offset`: lines of the file before the text.
    pub(super) fn new(text: &'a str, line_offset: u32, budget: Budget) -> Self {
        Self {
            parser: Parser::new_from_str(text),
            line_offset,
            budget,
            anchors: HashMap::new(),
        }
    }

    /// The one document of the text; `None` when there is none.
    pub(super) fn document(mut self) -> Result<Option<Document>, ReadError> {
        let mut found = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(found),
                Event::DocumentStart(_) if found.is_some() => {
                    return Err(ReadError::new(Fault::SecondDocument, self.mark(span)));
                }
                Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
                content => {
                    let node = self.node(content, span, 0)?;
                    found = Some(Document {
                        value: node.value,
                        marks: node.marks,
                    });
                }
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), ReadError> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.syntax(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn syntax(&self, error: &ScanError) -> ReadError {
        let at = error.marker();
        ReadError::new(
            Fault::Syntax(error.info().to_owned()),
            self.position(at.line(), at.col()),
        )
    }

    fn mark(&self, span: Span) -> Mark {
        self.position(span.start.line(), span.start.col())
    }

    fn position(&self, line: usize, column: usize) -> Mark {
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Mark {
            line: self.line_offset.saturating_add(narrow(line)),
            column: narrow(column).saturating_add(1),
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, ReadError> {
        let mark = self.mark(span);
        self.budget
            .depth(depth)
            .map_err(|fault| ReadError::new(fault, mark))?;
        let (node, anchor) = match event {
            Event::Alias(anchor) => return self.alias(anchor, mark, depth),
            Event::Scalar(text, style, anchor, tag) => {
                (self.scalar(&text, style, tag.as_deref(), mark)?, anchor)
            }
            Event::SequenceStart(anchor, _) => (self.sequence(mark, depth)?, anchor),
            Event::MappingStart(anchor, _) => (self.mapping(mark, depth)?, anchor),
            other => {
                let text = format!("unexpected {other:?}");
                return Err(ReadError::new(Fault::Syntax(text), mark));
            }
        };
        if anchor > 0 {
            self.spend(node.nodes, node.text, mark)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn spend(&mut self, nodes: usize, text: usize, mark: Mark) -> Result<(), ReadError> {
        self.budget
            .spend(nodes, text)
            .map_err(|fault| ReadError::new(fault, mark))
    }

    fn alias(&mut self, anchor: usize, mark: Mark, depth: usize) -> Result<Node, ReadError> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(ReadError::new(Fault::RecursiveAlias, mark));
        };
        let cost = self
            .budget
            .depth(depth + node.height)
            .and(self.budget.spend(node.nodes, node.text));
        cost.map_err(|fault| ReadError::new(fault, mark))?;
        Ok(node.clone())
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        mark: Mark,
    ) -> Result<Node, ReadError> {
        let value = scalar_value(text, style, tag).map_err(|fault| ReadError::new(fault, mark))?;
        let bytes = value.as_str().map_or(0, str::len);
        self.spend(1, bytes, mark)?;
        Ok(Node {
            value,
            marks: Marks::scalar(mark),
            nodes: 1,
            text: bytes,
            height: 0,
        })
    }

    fn sequence(&mut self, mark: Mark, depth: usize) -> Result<Node, ReadError> {
        self.spend(1, 0, mark)?;
        let (mut items, mut marks) = (Vec::new(), Vec::new());
        let (mut nodes, mut text, mut height) = (1, 0, 0);
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                let marks = Marks::list(mark, marks);
                return Ok(Node {
                    value: Value::Array(items),
                    marks,
                    nodes,
                    text,
                    height,
                });
            }
            let node = self
                .node(event, span, depth + 1)
                .map_err(|error| error.below(items.len()))?;
            nodes += node.nodes;
            text += node.text;
            height = height.max(node.height + 1);
            items.push(node.value);
            marks.push(node.marks);
        }
    }

    fn mapping(&mut self, mark: Mark, depth: usize) -> Result<Node, ReadError> {
        self.spend(1, 0, mark)?;
        let mut fields = Fields::default();
        let mut merges = Vec::new();
        let (mut nodes, mut text, mut height) = (1, 0, 0);
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let at = self.mark(span);
            let key = self.key(event, at)?;
            let (event, span) = self.next()?;
            let name = match &key {
                Key::Name(name) => name.as_str(),
                Key::Merge => "<<",
            };
            let node = self
                .node(event, span, depth + 1)
                .map_err(|error| error.below(name))?;
            self.spend(0, name.len(), at)?;
            nodes += node.nodes;
            text += node.text + name.len();
            height = height.max(node.height + 1);
            match key {
                Key::Merge => merges.push((node, at)),
                Key::Name(name) => fields.insert(name, node.value, node.marks, at)?,
            }
        }
        for (node, at) in &merges {
            fields
                .merge(node)
                .map_err(|fault| ReadError::new(fault, *at).below("<<"))?;
        }
        let marks = Marks::object(mark, fields.marks);
        Ok(Node {
            value: Value::Object(fields.map),
            marks,
            nodes,
            text,
            height,
        })
    }

    fn key(&mut self, event: Event<'a>, at: Mark) -> Result<Key, ReadError> {
        let refuse = |kind| Err(ReadError::new(Fault::UnsupportedKey { kind }, at));
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                if text == "<<" && tag.as_deref().is_none_or(is_merge_tag) && style == ScalarStyle::Plain {
                    return Ok(Key::Merge);
                }
                let node = self.scalar(&text, style, tag.as_deref(), at)?;
                if anchor > 0 {
                    self.anchors.insert(anchor, node.clone());
                }
                key_text(node.value).map_or_else(refuse, |name| Ok(Key::Name(name)))
            }
            Event::Alias(anchor) => {
                let node = self.alias(anchor, at, 0)?;
                key_text(node.value).map_or_else(refuse, |name| Ok(Key::Name(name)))
            }
            Event::SequenceStart(..) => refuse("a list"),
            Event::MappingStart(..) => refuse("a mapping"),
            _ => refuse("this"),
        }
    }
}

fn is_merge_tag(tag: &Tag) -> bool {
    core_tag(tag) == Some("merge")
}

/// Keys become strings as sigs.k8s.io/yaml makes them; floats in 32 bits.
fn key_text(value: Value) -> Result<String, &'static str> {
    match value {
        Value::String(text) => Ok(text),
        Value::Bool(flag) => Ok(flag.to_string()),
        Value::Number(number) => Ok(match number.as_f64() {
            Some(float) if number.is_f64() => go_float::shortest_f32(float),
            _ => number.to_string(),
        }),
        Value::Null => Err("null"),
        Value::Array(_) => Err("a list"),
        Value::Object(_) => Err("a mapping"),
    }
}

/// The short name of a tag of the core schema.
fn core_tag(tag: &Tag) -> Option<&str> {
    const PREFIX: &str = "tag:yaml.org,2002:";
    if tag.handle == PREFIX {
        return Some(&tag.suffix);
    }
    if tag.handle == "!!" {
        return Some(&tag.suffix);
    }
    tag.handle
        .is_empty()
        .then(|| tag.suffix.strip_prefix(PREFIX))
        .flatten()
}

fn scalar_value(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, Fault> {
    let scalar = match tag.map(core_tag) {
        None if style == ScalarStyle::Plain => scalar::resolve(text),
        Some(Some("binary")) => return binary(text),
        Some(Some(core @ ("str" | "int" | "float" | "bool" | "null" | "timestamp"))) => {
            scalar::resolve_tagged(core, text)?
        }
        // Quoted, or with a tag that says nothing to Go: the text stays as it is.
        None | Some(_) => Scalar::Text,
    };
    Ok(match scalar {
        Scalar::Null => Value::Null,
        Scalar::Bool(flag) => Value::Bool(flag),
        Scalar::Int(number) => Value::from(number),
        Scalar::Uint(number) => Value::from(number),
        Scalar::Float(float) => match go_float::to_number(float) {
            Some(number) => Value::Number(number),
            None => {
                return Err(Fault::NotFinite {
                    text: text.to_owned(),
                });
            }
        },
        Scalar::Timestamp | Scalar::Text => Value::from(text),
    })
}

/// differs from k8s: bytes that are not UTF-8 are an error, because Go's JSON step would replace them.
fn binary(text: &str) -> Result<Value, Fault> {
    let decoded = scalar::base64(text).and_then(|bytes| String::from_utf8(bytes).ok());
    decoded.map(Value::from).ok_or_else(|| Fault::TagMismatch {
        tag: "!!binary".to_owned(),
        text: text.to_owned(),
    })
}

/// The fields of one mapping while it is read.
#[derive(Default)]
struct Fields {
    map: Map<String, Value>,
    marks: Vec<(Box<str>, Marks)>,
}

impl Fields {
    fn insert(&mut self, name: String, value: Value, marks: Marks, at: Mark) -> Result<(), ReadError> {
        if self.map.contains_key(&name) {
            let first_line = self
                .marks
                .iter()
                .find(|f| *f.0 == name)
                .map_or(0, |f| f.1.key().line);
            return Err(ReadError::new(
                Fault::DuplicateKey {
                    key: name,
                    first_line,
                },
                at,
            ));
        }
        self.marks.push((name.as_str().into(), marks.with_key(at)));
        self.map.insert(name, value);
        Ok(())
    }

    /// Adds what is not there yet: written keys win over merged ones, earlier merges over later ones.
    ///
    /// differs from k8s: go-yaml v2 lets a merge win over keys written before it, against the definition of
    /// the merge key; manifests are written for the definition.
    fn merge(&mut self, node: &Node) -> Result<(), Fault> {
        match &node.value {
            Value::Object(map) => self.add_missing(map, &node.marks),
            Value::Array(items) => {
                for (item, marks) in items.iter().zip(node.marks.items()) {
                    let Value::Object(map) = item else {
                        return Err(Fault::MergeValue);
                    };
                    self.add_missing(map, marks);
                }
            }
            _ => return Err(Fault::MergeValue),
        }
        Ok(())
    }

    fn add_missing(&mut self, map: &Map<String, Value>, marks: &Marks) {
        for ((name, value), (_, marks)) in map.iter().zip(marks.fields()) {
            if !self.map.contains_key(name) {
                self.map.insert(name.clone(), value.clone());
                self.marks.push((name.as_str().into(), marks.clone()));
            }
        }
    }
}
