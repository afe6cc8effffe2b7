//! Amounts of resources: `100m`, `1.5Gi`, `2e3`.
//!
//! [`Quantity`] holds the value exactly down to a billionth and prints the form Kubernetes prints: no fraction,
//! the largest suffix that keeps it whole, the family of suffixes the user chose. Finer amounts round up, binary
//! amounts beyond 2^63-1 are capped, and a text that Kubernetes takes for canonical already stays as it is
//! (`1.105` does, `1.5` becomes `1500m`): all as the API server does.

use std::fmt;
use std::str::FromStr;

use crate::quote::quote;

/// Billionths per unit.
const NANOS: i128 = 1_000_000_000;
/// Largest binary amount, in whole units.
const MAX_BINARY_UNITS: i128 = (1 << 63) - 1;
/// Digits after the point that are read exactly; the rest only rounds up.
const FRACTION_DIGITS: usize = 18;

/// Which family of suffixes an amount is printed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// `n u m k M G T P E`
    Decimal,
    /// `e3`
    Exponent,
    /// `Ki Mi Gi Ti Pi Ei`
    Binary,
}

/// An amount of a resource. Ordered by amount; `1Gi` equals `1024Mi`.
#[derive(Debug, Clone)]
pub struct Quantity {
    nanos: i128,
    format: Format,
    /// The text as given, when it is printed as it is.
    kept: Option<Box<str>>,
}

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// The text is empty.
    #[error("quantity is empty")]
    Empty,
    /// No number at the start.
    #[error("quantity {} does not start with a number", quote(.0))]
    Number(String),
    /// An unknown suffix.
    #[error("quantity {} has unknown suffix {}", quote(.text), quote(.suffix))]
    Suffix {
        /// The whole text.
        text: String,
        /// The part that is not known.
        suffix: String,
    },
}

impl ParseQuantityError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some("write a number with one of the suffixes m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei, or none")
    }
}

impl Quantity {
    /// A whole number of units.
    pub fn units(units: i64) -> Self {
        Self {
            nanos: i128::from(units) * NANOS,
            format: Format::Decimal,
            kept: None,
        }
    }

    /// The amount in thousandths, rounded up; what the kubelet uses for CPU.
    pub fn millis(&self) -> i128 {
        round_up(self.nanos, NANOS / 1000)
    }

    /// The amount in whole units, rounded up; what is used for memory.
    pub fn value(&self) -> i128 {
        round_up(self.nanos, NANOS)
    }

    /// Whether the amount is zero.
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// Whether the amount is negative, which no resource may be.
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// Divides and rounds away from zero.
fn round_up(amount: i128, by: i128) -> i128 {
    let quotient = amount / by;
    if amount % by == 0 {
        quotient
    } else {
        quotient + amount.signum()
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(ParseQuantityError::Empty);
        }
        let (negative, unsigned) = match text.as_bytes() {
            [b'-', ..] => (true, text.get(1..).unwrap_or("")),
            [b'+', ..] => (false, text.get(1..).unwrap_or("")),
            _ => (false, text),
        };
        let end = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at_checked(end).unwrap_or((unsigned, ""));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(ParseQuantityError::Number(text.to_owned()));
        }
        let (format, scale) = scale(suffix).ok_or_else(|| ParseQuantityError::Suffix {
            text: text.to_owned(),
            suffix: suffix.to_owned(),
        })?;
        let exact = nanos(whole, fraction, scale);
        let nanos = match format {
            Format::Binary => exact.min(MAX_BINARY_UNITS * NANOS),
            Format::Decimal | Format::Exponent => exact,
        };
        // Beyond 10^29 only the text still says how much it is.
        let keep = is_kept(whole, fraction, scale) || nanos == i128::MAX;
        Ok(Self {
            nanos: if negative { -nanos } else { nanos },
            format,
            kept: keep.then(|| text.into()),
        })
    }
}

/// What a suffix does to a number.
#[derive(Debug, Clone, Copy)]
enum Scale {
    /// Times ten to this power.
    Ten(i64),
    /// Times two to this power.
    Two(u32),
}

fn scale(suffix: &str) -> Option<(Format, Scale)> {
    let ten = |power| Some((Format::Decimal, Scale::Ten(power)));
    let two = |power| Some((Format::Binary, Scale::Two(power)));
    match suffix {
        "n" => ten(-9),
        "u" => ten(-6),
        "m" => ten(-3),
        "" => ten(0),
        "k" => ten(3),
        "M" => ten(6),
        "G" => ten(9),
        "T" => ten(12),
        "P" => ten(15),
        "E" => ten(18),
        "Ki" => two(10),
        "Mi" => two(20),
        "Gi" => two(30),
        "Ti" => two(40),
        "Pi" => two(50),
        "Ei" => two(60),
        _ => {
            let power = suffix.strip_prefix(['e', 'E'])?;
            Some((Format::Exponent, Scale::Ten(power.parse().ok()?)))
        }
    }
}

/// Whether Kubernetes takes a text for canonical and does not touch it. The rule is cheap rather than exact.
fn is_kept(whole: &str, fraction: &str, scale: Scale) -> bool {
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        stripped => stripped,
    };
    match scale {
        Scale::Two(power) => {
            let room = i64::from(power) * 3 / 10 + 1 + i64::try_from(whole.len()).unwrap_or(i64::MAX);
            fraction.is_empty() && room <= 15 && whole.parse::<u64>().is_ok_and(|value| value & 7 != 0)
        }
        Scale::Ten(power) => {
            let digits = format!("{whole}{fraction}");
            let power = power - i64::try_from(fraction.len()).unwrap_or(0);
            let fits = digits.len() <= 18 && power >= -9 && power % 3 == 0;
            fits && !digits.ends_with("000") && !digits.starts_with('0')
        }
    }
}

/// The amount in billionths, rounded up; `i128::MAX` when it does not fit.
fn nanos(whole: &str, fraction: &str, scale: Scale) -> i128 {
    let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|b| b - b'0').collect();
    let zeros = digits.iter().take_while(|digit| **digit == 0).count();
    let significant = digits.get(zeros..).unwrap_or(&[]);
    if significant.is_empty() {
        return 0;
    }
    let power = match scale {
        Scale::Ten(power) => power,
        Scale::Two(_) => 0,
    };
    let lead = i64::try_from(whole.len()).unwrap_or(i64::MAX) - i64::try_from(zeros).unwrap_or(0);
    // The position of the decimal point in `significant`, after the decimal suffix has moved it.
    let point = lead.saturating_add(power);
    if point > 38 {
        return i128::MAX;
    }
    let digit_at = |at: i64| {
        usize::try_from(at)
            .ok()
            .and_then(|at| significant.get(at))
            .copied()
            .unwrap_or(0)
    };
    let units = (0..point).fold(0_i128, |sum, at| {
        sum.saturating_mul(10).saturating_add(i128::from(digit_at(at)))
    });
    // 18 digits of the fraction, and whether anything follows.
    let start = point.max(-64);
    let exact = i64::try_from(FRACTION_DIGITS).unwrap_or(18);
    let tail = (start..start + exact).fold(0_i128, |sum, at| sum * 10 + i128::from(digit_at(at)));
    let from = usize::try_from((start + exact).max(0)).unwrap_or(0);
    let more = significant
        .get(from..)
        .is_some_and(|rest| rest.iter().any(|digit| *digit != 0));
    let factor = match scale {
        Scale::Ten(_) => 1_i128,
        Scale::Two(power) => 1 << power,
    };
    let of_tail = round_up(tail * factor, 1_000_000_000).max(i128::from(more));
    units
        .saturating_mul(factor)
        .saturating_mul(NANOS)
        .saturating_add(of_tail)
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = &self.kept {
            return f.write_str(text);
        }
        if self.nanos == 0 {
            return f.write_str("0");
        }
        // Fewer than 1024 bytes have no binary suffix, nor has what is no whole number of bytes.
        if self.format == Format::Binary && self.nanos.abs() >= 1024 * NANOS && self.nanos % NANOS == 0 {
            let (amount, steps) = reduce(self.value(), 1024, 6);
            let suffix = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
                .get(steps)
                .copied()
                .unwrap_or("");
            return write!(f, "{amount}{suffix}");
        }
        let exponent = self.format == Format::Exponent;
        let (amount, steps) = reduce(self.nanos, 1000, if exponent { 12 } else { 9 });
        match (exponent, i64::try_from(steps).unwrap_or(0) * 3 - 9) {
            (true, 0) => write!(f, "{amount}"),
            (true, power) => write!(f, "{amount}e{power}"),
            (false, _) => {
                let suffix = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"]
                    .get(steps)
                    .copied()
                    .unwrap_or("");
                write!(f, "{amount}{suffix}")
            }
        }
    }
}

/// Divides by `base` as often as there is no remainder, at most `limit` times.
fn reduce(mut amount: i128, base: i128, limit: usize) -> (i128, usize) {
    let mut steps = 0;
    while steps < limit && amount % base == 0 {
        amount /= base;
        steps += 1;
    }
    (amount, steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_forms() {
        let cases = [
            ("0", "0"),
            ("0Mi", "0"),
            ("2000m", "2"),
            ("100m", "100m"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("5.", "5."),
            ("1.0", "1"),
            ("5000e3", "5e6"),
            ("+1", "+1"),
            ("-1.5", "-1500m"),
            ("1.105", "1.105"),
            ("372.0e1", "372.0e1"),
            ("00100m", "00100m"),
            ("008Mi", "8Mi"),
            ("1000", "1k"),
            ("1024", "1024"),
            ("100000", "100k"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1023Ki", "1023Ki"),
            ("1e3", "1e3"),
            ("12E2", "1200"),
            ("1500e0", "1500e0"),
            ("1E", "1E"),
            ("1.0001Ki", "1024102400u"),
            ("0.1n", "1n"),
            ("1e-12", "1e-9"),
            ("128974848", "128974848"),
            ("129M", "129M"),
            ("123Mi", "123Mi"),
            ("9223372036854775808", "9223372036854775808"),
            ("1e1000000", "1e1000000"),
            ("3906E", "3906E"),
            ("1e-1000000", "1e-9"),
            ("100000Ei", "9223372036854775807"),
            ("0.000000000000000000000000000001", "1n"),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<Quantity>().unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            " ",
            "m",
            "-",
            ".",
            "1.2.3",
            "100m\r",
            "100m\t",
            "100m\0",
            "100 m",
            " 1",
            "1 ",
            "1Kj",
            "1K",
            "1ki",
            "e3",
            "1e",
            "1e+",
            "1e1.5",
            "invalid",
            "100m\"\n  - name: x",
            "１",
            "1e99999999999999999999",
            "NaN",
            "0x10",
            "1--",
        ] {
            assert!(text.parse::<Quantity>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn compares_by_amount() {
        let parse = |text: &str| text.parse::<Quantity>().unwrap();
        assert_eq!(parse("1Gi"), parse("1024Mi"));
        assert_eq!(parse("0.1"), parse("100m"));
        assert!(parse("1G") < parse("1Gi"));
        assert!(parse("-1").is_negative());
        assert_eq!(
            (parse("1.5").millis(), parse("1.5").value(), parse("1n").millis()),
            (1500, 2, 1)
        );
    }
}
