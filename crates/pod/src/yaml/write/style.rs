//! Which quotes a scalar needs.

use crate::yaml::scalar::{self, Scalar};

/// How a scalar is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    SingleQuoted,
    DoubleQuoted,
    /// `|`
    Literal,
}

/// Chooses as go-yaml does: a text that would be read as something else gets double quotes, several lines make
/// a literal block, characters with a meaning for YAML at their place get single quotes, and what neither block
/// nor single quotes can hold gets double quotes with escapes.
pub(super) fn choose(text: &str, is_key: bool, in_line: bool) -> Style {
    let shape = Shape::of(text);
    if shape.special || shape.separators {
        return Style::DoubleQuoted;
    }
    if text.contains('\n') {
        let block = !in_line && !shape.trailing_space && !shape.space_before_break;
        return if block {
            Style::Literal
        } else {
            Style::DoubleQuoted
        };
    }
    if scalar::resolve(text) != Scalar::Text || scalar::is_base60(text) || (is_key && text == "<<") {
        return Style::DoubleQuoted;
    }
    if shape.leading_space || shape.trailing_space || shape.indicators {
        Style::SingleQuoted
    } else {
        Style::Plain
    }
}

/// Whether a key cannot be on one line with its value.
pub(super) fn is_multiline(text: &str) -> bool {
    text.chars()
        .any(|c| matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}'))
}

/// What matters about a text.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each named by the YAML rules"
)]
struct Shape {
    /// Something needs an escape.
    special: bool,
    /// Unicode line or paragraph separators: line breaks in YAML 1.1, ordinary characters in 1.2.
    separators: bool,
    leading_space: bool,
    trailing_space: bool,
    /// A blank at the end of a line.
    space_before_break: bool,
    /// Characters that have a meaning in YAML at their position.
    indicators: bool,
}

impl Shape {
    fn of(text: &str) -> Self {
        let mut shape = Self {
            leading_space: text.starts_with(' '),
            trailing_space: text.ends_with(' '),
            indicators: text.starts_with("---") || text.starts_with("..."),
            ..Self::default()
        };
        let mut before = None;
        let mut rest = text.chars().peekable();
        while let Some(c) = rest.next() {
            let next = rest.peek().copied();
            shape.special |= !is_printable(c);
            shape.separators |= matches!(c, '\u{2028}' | '\u{2029}');
            shape.space_before_break |= c == ' ' && next == Some('\n');
            shape.indicators |= is_indicator(c, before, next);
            before = Some(c);
        }
        shape
    }
}

fn is_indicator(c: char, before: Option<char>, next: Option<char>) -> bool {
    let blank_follows = next.is_none_or(|c| matches!(c, ' ' | '\t'));
    match (c, before) {
        (
            '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`',
            None,
        ) => true,
        ('?' | '-', None) | (':', _) => blank_follows,
        ('#', Some(before)) => matches!(before, ' ' | '\t' | '\n'),
        _ => false,
    }
}

/// go-yaml's idea of printable: no tab, and nothing beyond the basic multilingual plane.
fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && c != '\u{feff}'
}

/// The escape for a character inside double quotes, if it needs one.
pub(super) fn escape(c: char) -> Option<String> {
    let short = match c {
        '\0' => "\\0",
        '\u{7}' => "\\a",
        '\u{8}' => "\\b",
        '\t' => "\\t",
        '\n' => "\\n",
        '\u{b}' => "\\v",
        '\u{c}' => "\\f",
        '\r' => "\\r",
        '\u{1b}' => "\\e",
        '"' => "\\\"",
        '\\' => "\\\\",
        '\u{85}' => "\\N",
        '\u{2028}' => "\\L",
        '\u{2029}' => "\\P",
        _ if is_printable(c) => return None,
        _ => {
            let code = u32::from(c);
            return Some(match code {
                0..=0xff => format!("\\x{code:02X}"),
                0x100..=0xffff => format!("\\u{code:04X}"),
                _ => format!("\\U{code:08X}"),
            });
        }
    };
    Some(short.to_owned())
}

/// What follows the `|`: an indent when the text itself starts with a blank, and how the end is kept.
pub(super) fn block_hints(text: &str) -> &'static str {
    let indent = text.starts_with([' ', '\n']);
    match (
        indent,
        text.ends_with('\n'),
        text.ends_with("\n\n") || text == "\n",
    ) {
        (false, false, _) => "-",
        (false, true, false) => "",
        (false, true, true) => "+",
        (true, false, _) => "2-",
        (true, true, false) => "2",
        (true, true, true) => "2+",
    }
}
