//! Durations as Go writes them: `1h15m30.918s`, `300ms`, `-1.5h`.

use thiserror::Error;

use crate::quote::quote;

const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseDurationError {
    /// Not a sequence of numbers with units.
    #[error("invalid duration {}", quote(.0))]
    Invalid(String),
    /// A number without its unit.
    #[error("missing unit in duration {}", quote(.0))]
    MissingUnit(String),
    /// A unit Go does not have.
    #[error("unknown unit {} in duration {}", quote(.unit), quote(.text))]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// The unit.
        unit: String,
    },
    /// More than 64 bits of nanoseconds.
    #[error("duration {} is out of range", quote(.0))]
    OutOfRange(String),
}

impl ParseDurationError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some("write a number and one of the units ns, us, ms, s, m, h, for example 30s or 1m30s")
    }
}

/// Nanoseconds of a duration, as Go's `time.ParseDuration`.
pub fn parse(text: &str) -> Result<i64, ParseDurationError> {
    let invalid = || ParseDurationError::Invalid(text.to_owned());
    let out_of_range = || ParseDurationError::OutOfRange(text.to_owned());
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if unsigned == "0" {
        return Ok(0);
    }
    if unsigned.is_empty() {
        return Err(invalid());
    }
    let mut total = 0_i128;
    let mut rest = unsigned;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), digits);
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let end = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(end).unwrap_or((after, ""));
        let nanos = nanos_per(unit, text)?;
        total = part(whole, fraction, nanos)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(out_of_range)?;
        rest = after;
    }
    let signed = if text.starts_with('-') { -total } else { total };
    i64::try_from(signed).map_err(|_| out_of_range())
}

fn digits(text: &str) -> (&str, &str) {
    let end = text
        .bytes()
        .position(|b| !b.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

fn nanos_per(unit: &str, text: &str) -> Result<i128, ParseDurationError> {
    if unit.is_empty() {
        return Err(ParseDurationError::MissingUnit(text.to_owned()));
    }
    UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, nanos)| *nanos)
        .ok_or_else(|| ParseDurationError::UnknownUnit {
            text: text.to_owned(),
            unit: unit.to_owned(),
        })
}

/// One number with its unit. Digits finer than a nanosecond are cut off, as in Go.
fn part(whole: &str, fraction: &str, nanos: i128) -> Option<i128> {
    let units: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut sum = units.checked_mul(nanos)?;
    let mut step = nanos;
    let (mut below, mut scale) = (0_i128, 1_i128);
    for digit in fraction.bytes().take(15) {
        below = below * 10 + i128::from(digit - b'0');
        scale *= 10;
    }
    step = step.checked_mul(below)? / scale;
    sum = sum.checked_add(step)?;
    Some(sum)
}

/// A duration as Go's `Duration.String` prints it: `1m30s`, `1.5s`, `300ms`, `0s`.
pub fn format(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let amount = nanos.unsigned_abs();
    let small = |unit: u64, name: &str| format!("{sign}{}{name}", decimal(amount, unit));
    match amount {
        0 => "0s".to_owned(),
        1..1_000 => small(1, "ns"),
        1_000..1_000_000 => small(1_000, "µs"),
        1_000_000..1_000_000_000 => small(1_000_000, "ms"),
        _ => {
            let seconds = amount / 1_000_000_000;
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            let rest = decimal(amount % 60_000_000_000, 1_000_000_000);
            match (hours, minutes) {
                (0, 0) => format!("{sign}{rest}s"),
                (0, _) => format!("{sign}{minutes}m{rest}s"),
                _ => format!("{sign}{hours}h{minutes}m{rest}s"),
            }
        }
    }
}

/// `amount / unit` with as many digits after the point as it needs; `unit` is a power of ten.
fn decimal(amount: u64, unit: u64) -> String {
    let (whole, below) = (amount / unit, amount % unit);
    if below == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{below:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_go_parses() {
        let cases = [
            ("0", 0),
            ("5s", 5_000_000_000),
            ("30s", 30_000_000_000),
            ("1m30s", 90_000_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("-1.5s", -1_500_000_000),
            ("+5us", 5_000),
            ("5µs", 5_000),
            ("1h15m30.918273645s", 4_530_918_273_645),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("0.9999999999999999999s", 999_999_999),
        ];
        for (text, nanos) in cases {
            assert_eq!(parse(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        for text in [
            "",
            "3",
            "-",
            "s",
            ".",
            "-.",
            ".s",
            "+.s",
            "1d",
            "\u{85}85",
            "9223372036854775808ns",
            "3000000h",
            "1 s",
            "5s ",
            "5s\n",
            "1e3s",
            "99999999999999999999999999999999999999999999s",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn prints_as_go_prints() {
        for text in [
            "0s",
            "1ns",
            "1.1µs",
            "2.2ms",
            "3.3s",
            "4m5s",
            "4m5.001s",
            "5h6m7.001s",
            "1h0m0s",
            "-1m0s",
            "8m0.000000001s",
        ] {
            assert_eq!(format(parse(text).unwrap()), text);
        }
        assert_eq!(format(i64::MIN), "-2562047h47m16.854775808s");
    }
}
