//! What a plain scalar means: go-yaml v2's reading of YAML 1.1.
//!
//! The same answer serves both directions: the reader turns `0644` into 420, the writer puts the *string*
//! `0644` in quotes because of it.

use super::error::Fault;

/// A scalar, resolved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    /// Text that looks like a date. Stays text when read, but is quoted when written.
    Timestamp,
    Text,
}

/// Resolves an untagged plain scalar.
pub(super) fn resolve(text: &str) -> Scalar {
    let Some(first) = text.bytes().next() else {
        return Scalar::Null;
    };
    match first {
        b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~' => word(text),
        b'.' => match text {
            ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" => Scalar::Float(f64::INFINITY),
            _ if is_decimal(text) => finite(text),
            _ => Scalar::Text,
        },
        b'+' | b'-' | b'0'..=b'9' => number(text),
        _ => Scalar::Text,
    }
}

fn word(text: &str) -> Scalar {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Scalar::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Scalar::Bool(false)
        }
        "~" | "null" | "Null" | "NULL" => Scalar::Null,
        _ => Scalar::Text,
    }
}

fn number(text: &str) -> Scalar {
    match text {
        "+.inf" | "+.Inf" | "+.INF" => return Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Scalar::Float(f64::NEG_INFINITY),
        _ => {}
    }
    if is_timestamp(text) {
        return Scalar::Timestamp;
    }
    let stripped;
    let plain = if text.contains('_') {
        stripped = text.replace('_', "");
        &stripped
    } else {
        text
    };
    if let Some(integer) = integer(plain) {
        return integer;
    }
    if is_decimal(plain) {
        return finite(plain);
    }
    Scalar::Text
}

/// Go's `strconv.ParseInt(s, 0, 64)`, then `ParseUint`: 0b, 0o, 0x and plain 0 choose the base.
fn integer(text: &str) -> Option<Scalar> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let (base, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, digits.get(2..)?),
        [b'0', b'b' | b'B', ..] => (2, digits.get(2..)?),
        [b'0', b'o' | b'O', ..] => (8, digits.get(2..)?),
        [b'0', _, ..] => (8, digits.get(1..)?),
        _ => (10, digits),
    };
    // from_str_radix would take another sign.
    if !digits.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return None;
    }
    match u64::from_str_radix(digits, base) {
        Ok(value) if negative => 0_i64.checked_sub_unsigned(value).map(Scalar::Int),
        // An explicit plus is only known to ParseInt, so it ends with the range of i64.
        Ok(value) => match i64::try_from(value) {
            Ok(value) => Some(Scalar::Int(value)),
            Err(_) if text.starts_with('+') => None,
            Err(_) => Some(Scalar::Uint(value)),
        },
        Err(_) => None,
    }
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_decimal(text: &str) -> bool {
    let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, rest) = digits(rest);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(after) => digits(after),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return false;
    }
    match rest.strip_prefix(['e', 'E']) {
        None => rest.is_empty(),
        Some(exponent) => {
            let (power, rest) = digits(exponent.strip_prefix(['-', '+']).unwrap_or(exponent));
            !power.is_empty() && rest.is_empty()
        }
    }
}

fn digits(text: &str) -> (&str, &str) {
    let end = text
        .bytes()
        .position(|b| !b.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// Go refuses numbers out of range, which leaves them text.
fn finite(text: &str) -> Scalar {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Scalar::Float(value),
        _ => Scalar::Text,
    }
}

/// YAML 1.1 numbers in base 60 (`12:30:45`). go-yaml reads them as text but quotes them for other readers.
pub(super) fn is_base60(text: &str) -> bool {
    let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut parts = rest.split(':');
    let Some(first) = parts.next() else { return false };
    let starts = first.bytes().next().is_some_and(|b| b.is_ascii_digit());
    if !starts || !first.bytes().all(|b| b.is_ascii_digit() || b == b'_') {
        return false;
    }
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return false;
    };
    let last = match last.split_once('.') {
        None => last,
        Some((seconds, fraction)) if fraction.bytes().all(|b| b.is_ascii_digit() || b == b'_') => seconds,
        Some(_) => return false,
    };
    middle
        .iter()
        .copied()
        .chain([last])
        .all(|part| matches!(part.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9']))
}

/// The forms go-yaml takes for a time: `2006-1-2`, `2006-1-2 15:4:5.9`, `2006-1-2T15:4:5.9Z07:00` (or `t`).
fn is_timestamp(text: &str) -> bool {
    let Some((year, rest)) = text.split_once('-') else {
        return false;
    };
    if year.len() != 4 || !year.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let Some((month, rest)) = up_to_two(rest).and_then(|(m, rest)| Some((m, rest.strip_prefix('-')?))) else {
        return false;
    };
    let Some((day, rest)) = up_to_two(rest) else {
        return false;
    };
    if !(1..=12).contains(&month) || day < 1 || day > days(year.parse().unwrap_or(0), month) {
        return false;
    }
    if rest.is_empty() {
        return true;
    }
    if let Some(clock) = rest.strip_prefix(' ') {
        return clock_time(clock).is_some_and(str::is_empty);
    }
    rest.strip_prefix(['T', 't'])
        .and_then(clock_time)
        .is_some_and(is_zone)
}

fn days(year: u32, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        _ => 31,
    }
}

/// One or two digits.
fn up_to_two(text: &str) -> Option<(u32, &str)> {
    let count = text.bytes().take(2).take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at_checked(count)?;
    Some((number.parse().ok()?, rest))
}

/// `15:4:5.999999999`; returns what follows.
fn clock_time(text: &str) -> Option<&str> {
    let (hour, rest) = up_to_two(text)?;
    let (minute, rest) = up_to_two(rest.strip_prefix(':')?)?;
    let (second, rest) = up_to_two(rest.strip_prefix(':')?)?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    match rest.strip_prefix(['.', ',']) {
        None => Some(rest),
        Some(after) => {
            let (fraction, rest) = digits(after);
            (1..=9).contains(&fraction.len()).then_some(rest)
        }
    }
}

fn is_zone(text: &str) -> bool {
    if text == "Z" {
        return true;
    }
    let Some(offset) = text.strip_prefix(['+', '-']) else {
        return false;
    };
    let Some((hour, minute)) = offset.split_once(':') else {
        return false;
    };
    let within = |part: &str, most: u32| part.len() == 2 && part.parse::<u32>().is_ok_and(|n| n <= most);
    within(hour, 24) && within(minute, 60)
}

/// Resolves a scalar with an explicit core tag (`str`, `int`, …), as go-yaml does: the value must be of that
/// kind by itself; only an integer may be taken for a float.
pub(super) fn resolve_tagged(tag: &str, text: &str) -> Result<Scalar, Fault> {
    let found = match (tag, resolve(text)) {
        ("str", _) => return Ok(Scalar::Text),
        ("float", Scalar::Int(value)) => Scalar::Float(approximate(value)),
        ("float", float @ Scalar::Float(_)) => float,
        ("int", int @ (Scalar::Int(_) | Scalar::Uint(_))) => int,
        ("bool", bool @ Scalar::Bool(_)) => bool,
        ("null", Scalar::Null) => Scalar::Null,
        ("timestamp", Scalar::Timestamp) => Scalar::Timestamp,
        _ => {
            return Err(Fault::TagMismatch {
                tag: format!("!!{tag}"),
                text: text.to_owned(),
            });
        }
    };
    Ok(found)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the user asked for a float; Go rounds the same way"
)]
fn approximate(value: i64) -> f64 {
    value as f64
}

/// Decodes the text of a `!!binary` scalar. Line breaks inside are ignored, as Go's decoder does.
pub(super) fn base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let symbols: Vec<u8> = text.bytes().filter(|b| !matches!(b, b'\n' | b'\r')).collect();
    let body = symbols
        .len()
        .checked_sub(symbols.iter().rev().take_while(|b| **b == b'=').count())?;
    if !symbols.len().is_multiple_of(4) || symbols.len() - body > 2 {
        return None;
    }
    for group in symbols.get(..body)?.chunks(4) {
        let mut bits = 0_u32;
        for symbol in group {
            bits = bits << 6 | sextet(*symbol)?;
        }
        bits <<= 6 * (4 - group.len());
        let bytes = bits.to_be_bytes();
        out.extend(bytes.iter().skip(1).take(group.len().saturating_sub(1)));
    }
    Some(out)
}

fn sextet(symbol: u8) -> Option<u32> {
    let value = match symbol {
        b'A'..=b'Z' => symbol - b'A',
        b'a'..=b'z' => symbol - b'a' + 26,
        b'0'..=b'9' => symbol - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}
