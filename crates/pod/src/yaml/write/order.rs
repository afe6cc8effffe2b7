//! The order in which Go prints the keys of a map: numbers inside keys count as numbers, letters come last.

use std::cmp::Ordering;

use serde_json::{Map, Value};

/// The entries in Go's order. They come sorted by bytes, which nearly always is that order already.
pub(super) fn natural(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let entries: Vec<(&String, &Value)> = map.iter().collect();
    if entries.is_sorted_by(|a, b| compare(a.0, b.0).is_lt()) {
        return entries;
    }
    merge_sort(entries)
}

/// Go's comparison is no total order for digit runs beyond 64 bits, and `slice::sort_by` may panic on such.
/// A plain merge sort only ever yields some permutation.
fn merge_sort<'a>(entries: Vec<(&'a String, &'a Value)>) -> Vec<(&'a String, &'a Value)> {
    if entries.len() < 2 {
        return entries;
    }
    let mut left = entries;
    let right = left.split_off(left.len() / 2);
    let total = left.len() + right.len();
    let mut left = merge_sort(left).into_iter().peekable();
    let mut right = merge_sort(right).into_iter().peekable();
    let mut merged = Vec::with_capacity(total);
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let from = if compare(b.0, a.0).is_lt() {
            &mut right
        } else {
            &mut left
        };
        merged.extend(from.next());
    }
    merged.extend(left);
    merged.extend(right);
    merged
}

fn compare(a: &str, b: &str) -> Ordering {
    let common = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    // Back to the start of a character when the difference is in the middle of one.
    let start = (0..=common).rev().find(|at| a.is_char_boundary(*at)).unwrap_or(0);
    let (same, a) = a.split_at_checked(start).unwrap_or(("", a));
    let b = b.get(start..).unwrap_or("");
    let (Some(x), Some(y)) = (a.chars().next(), b.chars().next()) else {
        return a.len().cmp(&b.len());
    };
    match (x.is_alphabetic(), y.is_alphabetic()) {
        (true, true) => x.cmp(&y),
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) => {
            // A zero that continues a number must not be taken for a leading one.
            let continues = (x == '0' || y == '0')
                && same
                    .bytes()
                    .rev()
                    .take_while(u8::is_ascii_digit)
                    .any(|digit| digit != b'0');
            let of_a = run(a, continues);
            let of_b = run(b, continues);
            of_a.cmp(&of_b).then(x.cmp(&y))
        }
    }
}

/// Value (wrapping, as in Go) and length of the digits at the start.
fn run(text: &str, continues: bool) -> (i64, usize) {
    let digits = text.bytes().take_while(u8::is_ascii_digit);
    digits.fold((i64::from(continues), 0), |(value, length), digit| {
        (
            value.wrapping_mul(10).wrapping_add(i64::from(digit - b'0')),
            length + 1,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_as_go_orders_them() {
        let ordered = [
            "", "1", "2", "10", "a-b", "a.b", "a/b", "a_b", "a1", "a2", "a10", "a100", "a10b", "aB", "aa",
            "ab", "b1", "b01", "é",
        ];
        for (i, a) in ordered.iter().enumerate() {
            for (j, b) in ordered.iter().enumerate() {
                assert_eq!(compare(a, b), i.cmp(&j), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn sorting_survives_numbers_beyond_64_bits() {
        let map: Map<String, Value> = (0..200_u32)
            .map(|n| {
                (
                    format!("k{}", "9".repeat(n as usize % 40 + 1) + &n.to_string()),
                    n.into(),
                )
            })
            .collect();
        let mut keys: Vec<&String> = natural(&map).into_iter().map(|(key, _)| key).collect();
        keys.sort();
        assert_eq!(keys, map.keys().collect::<Vec<_>>());
    }
}
