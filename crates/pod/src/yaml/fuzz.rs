//! The property a fuzzer checks: for all input, reading ends with a value or an error, and a value that was read is
//! written as a text that reads back as the same value.

use super::{Limits, parse, split, write};

/// Feeds bytes through splitting, reading and writing.
///
/// # Panics
/// When a text that was written does not read back as the value it was written from, or when the pieces do not
/// add up to the input: that is what a fuzzer is looking for.
#[expect(clippy::panic, reason = "a fuzzer learns of a broken promise by a panic")]
pub fn round_trip(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut length = 0;
    for raw in split(&text) {
        length += raw.text.len();
        let limits = Limits {
            nodes: 100_000,
            text: 1 << 22,
            ..Limits::default()
        };
        let Ok(Some(document)) = parse(&raw, limits) else {
            continue;
        };
        let written = write(&document.value);
        match super::parse_str(&written) {
            Ok(Some(again)) if again.value == document.value => {}
            other => panic!("{written:?} reads back as {other:?}"),
        }
    }
    assert_eq!(length, text.len(), "documents do not add up to the input");
}
