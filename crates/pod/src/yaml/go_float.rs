//! Floats as Go prints them.

use serde_json::Number;

/// `strconv.FormatFloat(x, 'g', -1, 64)`: shortest digits, exponent form below 1e-4 and from 1e6 on.
pub(super) fn shortest(value: f64) -> String {
    general(&format!("{value:e}"))
}

/// The same for a float that was narrowed to 32 bits, which Go does to floats used as keys.
#[expect(clippy::cast_possible_truncation, reason = "Go narrows the same way")]
pub(super) fn shortest_f32(value: f64) -> String {
    general(&format!("{:e}", value as f32))
}

/// From Rust's `d.ddde-n` to Go's `%g`.
fn general(scientific: &str) -> String {
    let Some((mantissa, power)) = scientific.split_once('e') else {
        return scientific.to_owned();
    };
    let power: i32 = power.parse().unwrap_or(0);
    if !(-4..6).contains(&power) {
        let sign = if power < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", power.unsigned_abs());
    }
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or(0));
    if power < 0 {
        return format!("{sign}0.{}{digits}", zeros(-power - 1));
    }
    let whole = usize::try_from(power).unwrap_or(0) + 1;
    match digits.split_at_checked(whole) {
        Some((whole, "")) => format!("{sign}{whole}"),
        Some((whole, fraction)) => format!("{sign}{whole}.{fraction}"),
        None => format!(
            "{sign}{digits}{}",
            zeros(power + 1 - i32::try_from(digits.len()).unwrap_or(0))
        ),
    }
}

/// The JSON number a float becomes. A whole number becomes an integer, because Go writes `1.0` to JSON as `1`
/// and reads that back as an integer. `None` for infinity and not-a-number.
pub(super) fn to_number(value: f64) -> Option<Number> {
    if value.fract() == 0.0 && value.abs() < 18_446_744_073_709_551_616.0 {
        let text = format!("{value:.0}");
        if let Ok(whole) = text.parse::<i64>() {
            return Some(whole.into());
        }
        if let Ok(whole) = text.parse::<u64>() {
            return Some(whole.into());
        }
    }
    Number::from_f64(value)
}
