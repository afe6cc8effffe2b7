//! JSON documents, with marks.
//!
//! `kubectl` hands a document that starts with `{` to a JSON reader. YAML is nearly, but not quite, a superset:
//! tabs as indentation and surrogate pairs in escapes are where it fails. This reader only finds the tokens;
//! strings and numbers are read by `serde_json`.

use serde_json::{Map, Value};

use super::error::{Fault, ReadError};
use super::marks::{Mark, Marks};
use super::read::Budget;

/// Why it is not JSON, or not acceptable.
pub(super) enum Failure {
    /// Not JSON; it may still be YAML in flow style.
    NotJson,
    /// JSON, but refused.
    Refused(ReadError),
}

type Outcome<T> = Result<T, Failure>;

pub(super) fn parse(text: &str, first_line: u32, budget: &mut Budget) -> Outcome<(Value, Marks)> {
    let mut reader = Reader {
        text,
        at: 0,
        line: first_line,
        column: 0,
        counted: 0,
        budget,
    };
    let document = reader.value(0)?;
    reader.skip_blanks();
    if reader.at == text.len() {
        Ok(document)
    } else {
        Err(Failure::NotJson)
    }
}

struct Reader<'a, 'b> {
    text: &'a str,
    at: usize,
    line: u32,
    /// Characters of the current line before `counted`.
    column: u32,
    /// How far `column` was counted. Counting goes on from here: a whole document may be one line.
    counted: usize,
    budget: &'b mut Budget,
}

impl<'a> Reader<'a, '_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\r' => self.at += 1,
                b'\n' => {
                    self.at += 1;
                    self.line = self.line.saturating_add(1);
                    self.column = 0;
                    self.counted = self.at;
                }
                _ => break,
            }
        }
    }

    fn mark(&mut self) -> Mark {
        let more = self
            .text
            .get(self.counted..self.at)
            .map_or(0, |part| part.chars().count());
        self.column = self
            .column
            .saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        self.counted = self.at;
        Mark {
            line: self.line,
            column: self.column.saturating_add(1),
        }
    }

    fn expect(&mut self, byte: u8) -> Outcome<()> {
        self.skip_blanks();
        if self.peek() != Some(byte) {
            return Err(Failure::NotJson);
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Outcome<(Value, Marks)> {
        self.skip_blanks();
        let mark = self.mark();
        let refuse = |fault| Failure::Refused(ReadError::new(fault, mark));
        self.budget.depth(depth).map_err(refuse)?;
        let start = self.at;
        let node = match self.peek().ok_or(Failure::NotJson)? {
            b'{' => self.object(mark, depth)?,
            b'[' => self.list(mark, depth)?,
            b'"' => (Value::from(self.string()?), Marks::scalar(mark)),
            _ => (self.literal()?, Marks::scalar(mark)),
        };
        let bytes = if node.0.is_string() { self.at - start } else { 0 };
        self.budget
            .spend(1, bytes)
            .map_err(|fault| Failure::Refused(ReadError::new(fault, mark)))?;
        Ok(node)
    }

    fn object(&mut self, mark: Mark, depth: usize) -> Outcome<(Value, Marks)> {
        self.at += 1;
        let mut map = Map::new();
        let mut fields: Vec<(Box<str>, Marks)> = Vec::new();
        self.skip_blanks();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok((Value::Object(map), Marks::object(mark, fields)));
        }
        loop {
            self.skip_blanks();
            let at = self.mark();
            let key = self.string()?;
            self.expect(b':')?;
            if map.contains_key(&key) {
                let first_line = fields.iter().find(|f| *f.0 == key).map_or(0, |f| f.1.key().line);
                return Err(Failure::Refused(ReadError::new(
                    Fault::DuplicateKey { key, first_line },
                    at,
                )));
            }
            let (value, marks) = self.value(depth + 1).map_err(|failure| below(failure, &key))?;
            fields.push((key.as_str().into(), marks.with_key(at)));
            map.insert(key, value);
            if !self.another(b'}')? {
                return Ok((Value::Object(map), Marks::object(mark, fields)));
            }
        }
    }

    fn list(&mut self, mark: Mark, depth: usize) -> Outcome<(Value, Marks)> {
        self.at += 1;
        let (mut items, mut marks) = (Vec::new(), Vec::new());
        self.skip_blanks();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok((Value::Array(items), Marks::list(mark, marks)));
        }
        loop {
            let (value, mark_of_value) = self.value(depth + 1).map_err(|failure| match failure {
                Failure::Refused(error) => Failure::Refused(error.below(items.len())),
                Failure::NotJson => Failure::NotJson,
            })?;
            items.push(value);
            marks.push(mark_of_value);
            if !self.another(b']')? {
                return Ok((Value::Array(items), Marks::list(mark, marks)));
            }
        }
    }

    /// After a member: a comma or the closing bracket.
    fn another(&mut self, close: u8) -> Outcome<bool> {
        self.skip_blanks();
        let byte = self.peek().ok_or(Failure::NotJson)?;
        self.at += 1;
        match byte {
            b',' => Ok(true),
            _ if byte == close => Ok(false),
            _ => Err(Failure::NotJson),
        }
    }

    fn string(&mut self) -> Outcome<String> {
        let rest = self.text.get(self.at..).unwrap_or("");
        let bytes = rest.as_bytes();
        if bytes.first() != Some(&b'"') {
            return Err(Failure::NotJson);
        }
        let mut end = 1;
        loop {
            match bytes.get(end).ok_or(Failure::NotJson)? {
                b'"' => break,
                b'\\' => end += 2,
                _ => end += 1,
            }
        }
        let token = rest.get(..=end).ok_or(Failure::NotJson)?;
        self.at += token.len();
        serde_json::from_str(token).map_err(|_| Failure::NotJson)
    }

    /// A number, `true`, `false` or `null`.
    fn literal(&mut self) -> Outcome<Value> {
        let rest: &'a str = self.text.get(self.at..).unwrap_or("");
        let end = rest
            .bytes()
            .position(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')));
        let token = rest.get(..end.unwrap_or(rest.len())).unwrap_or("");
        self.at += token.len();
        let value: Value = serde_json::from_str(token).map_err(|_| Failure::NotJson)?;
        Ok(match value.as_f64() {
            Some(float) if value.is_f64() => {
                super::go_float::to_number(float).map_or(Value::Null, Value::Number)
            }
            _ => value,
        })
    }
}

fn below(failure: Failure, key: &str) -> Failure {
    match failure {
        Failure::Refused(error) => Failure::Refused(error.below(key)),
        Failure::NotJson => Failure::NotJson,
    }
}
