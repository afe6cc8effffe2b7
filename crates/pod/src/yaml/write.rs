//! A value to YAML, as `kubectl` and `istioctl` print it (go-yaml v2 behind sigs.k8s.io/yaml).
//!
//! Block style, keys in Go's natural order, lists at the indent of their key, long lines folded at the first
//! blank after column 80. The emitter keeps the state Go's has (column, whether only indentation was written),
//! because its rules about blanks and breaks are stated in terms of it.
//!
//! Two departures, so that every text this module writes is read back as the same value by readers of YAML 1.1
//! and 1.2 alike: a key `<<` is quoted, and the Unicode line and paragraph separators are always escaped. Where
//! Go's order of keys contradicts itself (`10`, `1a`, `9`), and so varies from run to run, ours does not vary.

mod order;
mod style;

use serde_json::{Map, Value};

use super::go_float;
use style::Style;

/// Spaces per level.
const INDENT: usize = 2;
/// A blank after this column is where a long scalar is folded.
const FOLD_COLUMN: usize = 80;
/// Longer keys are written with `? `.
const MAX_SIMPLE_KEY_CHARS: usize = 128;

/// The YAML text of a value, ending with a line feed.
pub fn write(value: &Value) -> String {
    let mut out = String::new();
    write_to(&mut out, value);
    out
}

/// Appends the YAML text of a value to `out`, which must be empty or end with a line feed.
pub fn write_to(out: &mut String, value: &Value) {
    let mut emitter = Emitter {
        out,
        column: 0,
        indent: None,
        whitespace: true,
        indention: true,
    };
    emitter.node(value, Context::Root);
    emitter.line();
}

/// What the node that is written next belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Context {
    Root,
    Item,
    SimpleKey,
    /// Key after `? `.
    LongKey,
    /// Value of a simple key.
    Value,
    /// Value after a key of its own line.
    LongValue,
}

struct Emitter<'a> {
    out: &'a mut String,
    /// Characters in the current line.
    column: usize,
    /// `None` before anything was opened.
    indent: Option<usize>,
    /// The last character was a blank, or nothing is needed before the next token.
    whitespace: bool,
    /// Only indentation and list or key indicators are in the current line.
    indention: bool,
}

impl Emitter<'_> {
    fn node(&mut self, value: &Value, context: Context) {
        match value {
            Value::Null => self.word("null"),
            Value::Bool(true) => self.word("true"),
            Value::Bool(false) => self.word("false"),
            Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                None => self.word(&number.to_string()),
                Some(float) => self.float(float),
            },
            Value::String(text) => self.scalar(text, context),
            Value::Array(items) if items.is_empty() => self.word("[]"),
            Value::Array(items) => self.list(items, context),
            Value::Object(map) if map.is_empty() => self.word("{}"),
            Value::Object(map) => self.object(map),
        }
    }

    fn float(&mut self, float: f64) {
        let text = match go_float::to_number(float) {
            Some(number) if !number.is_f64() => number.to_string(),
            _ => go_float::shortest(float),
        };
        self.word(&text);
    }

    fn list(&mut self, items: &[Value], context: Context) {
        let outer = self.indent;
        if context != Context::Value {
            self.deepen();
        }
        for item in items {
            self.line();
            self.indicator("-");
            self.node(item, Context::Item);
        }
        self.indent = outer;
    }

    fn object(&mut self, map: &Map<String, Value>) {
        let outer = self.indent;
        self.deepen();
        for (key, value) in order::natural(map) {
            self.line();
            if key.len() <= MAX_SIMPLE_KEY_CHARS && !style::is_multiline(key) {
                self.scalar(key, Context::SimpleKey);
                self.put(":");
                (self.whitespace, self.indention) = (false, false);
                self.node(value, Context::Value);
            } else {
                self.indicator("?");
                self.scalar(key, Context::LongKey);
                self.line();
                self.indicator(":");
                self.node(value, Context::LongValue);
            }
        }
        self.indent = outer;
    }

    fn scalar(&mut self, text: &str, context: Context) {
        let outer = self.indent;
        self.indent = Some(outer.map_or(INDENT, |indent| indent + INDENT));
        let is_key = matches!(context, Context::SimpleKey | Context::LongKey);
        let foldable = context != Context::SimpleKey;
        match style::choose(text, is_key, context == Context::SimpleKey) {
            Style::Plain => self.plain(text, foldable),
            Style::SingleQuoted => self.single_quoted(text, foldable),
            Style::DoubleQuoted => self.double_quoted(text, foldable),
            Style::Literal => self.literal(text),
        }
        self.indent = outer;
    }

    fn plain(&mut self, text: &str, foldable: bool) {
        self.blank();
        self.folded(text, foldable, false);
        (self.whitespace, self.indention) = (false, false);
    }

    fn single_quoted(&mut self, text: &str, foldable: bool) {
        self.blank();
        self.put("'");
        self.folded(text, foldable, true);
        self.put("'");
        (self.whitespace, self.indention) = (false, false);
    }

    /// Writes the text of a plain or single-quoted scalar; a single blank past the width becomes a line break.
    fn folded(&mut self, text: &str, foldable: bool, quoted: bool) {
        let mut after_blank = false;
        let mut rest = text.chars().enumerate().peekable();
        while let Some((position, c)) = rest.next() {
            if c != ' ' {
                if quoted && c == '\'' {
                    self.put("'");
                }
                self.put_char(c);
                self.indention = false;
                after_blank = false;
                continue;
            }
            let single = !after_blank && rest.peek().is_some_and(|(_, next)| *next != ' ');
            if foldable && single && position > 0 && self.column > FOLD_COLUMN {
                self.line();
            } else {
                self.put(" ");
            }
            after_blank = true;
        }
    }

    fn double_quoted(&mut self, text: &str, foldable: bool) {
        self.blank();
        self.put("\"");
        let mut after_blank = false;
        let mut rest = text.chars().enumerate().peekable();
        while let Some((position, c)) = rest.next() {
            if c != ' ' {
                self.escaped(c);
                after_blank = false;
                continue;
            }
            let next = rest.peek().map(|(_, next)| *next);
            if foldable && !after_blank && position > 0 && next.is_some() && self.column > FOLD_COLUMN {
                self.line();
                if next == Some(' ') {
                    self.put("\\");
                }
            } else {
                self.put(" ");
            }
            after_blank = true;
        }
        self.put("\"");
        (self.whitespace, self.indention) = (false, false);
    }

    fn escaped(&mut self, c: char) {
        self.indention = false;
        match style::escape(c) {
            None => self.put_char(c),
            Some(escape) => self.put(&escape),
        }
    }

    fn literal(&mut self, text: &str) {
        self.blank();
        self.put("|");
        self.put(style::block_hints(text));
        self.out.push('\n');
        self.column = 0;
        (self.whitespace, self.indention) = (true, true);
        for line in text.split_inclusive('\n') {
            let (content, ends) = line
                .strip_suffix('\n')
                .map_or((line, false), |content| (content, true));
            if !content.is_empty() {
                self.line();
                self.put(content);
                self.indention = false;
            }
            if ends {
                self.out.push('\n');
                self.column = 0;
                self.indention = true;
            }
        }
    }

    /// A token that needs no quoting.
    fn word(&mut self, text: &str) {
        self.blank();
        self.put(text);
        (self.whitespace, self.indention) = (false, false);
    }

    /// `-`, `?` or `:` at the start of an entry: the line still counts as indentation.
    fn indicator(&mut self, mark: &str) {
        self.blank();
        self.put(mark);
        self.whitespace = false;
    }

    fn blank(&mut self) {
        if !self.whitespace {
            self.put(" ");
        }
    }

    /// Moves to the current indentation, on a new line if the line is not empty.
    fn line(&mut self) {
        let indent = self.indent.unwrap_or(0);
        if !self.indention || self.column > indent || (self.column == indent && !self.whitespace) {
            self.out.push('\n');
            self.column = 0;
        }
        while self.column < indent {
            self.put(" ");
        }
        (self.whitespace, self.indention) = (true, true);
    }

    fn deepen(&mut self) {
        self.indent = Some(self.indent.map_or(0, |indent| indent + INDENT));
    }

    fn put(&mut self, text: &str) {
        self.out.push_str(text);
        self.column += if text.is_ascii() {
            text.len()
        } else {
            text.chars().count()
        };
    }

    fn put_char(&mut self, c: char) {
        self.out.push(c);
        self.column += 1;
    }
}
