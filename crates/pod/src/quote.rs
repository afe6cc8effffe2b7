//! Untrusted text in messages.

/// Maximum number of characters of an untrusted text that a message repeats.
const MAX_QUOTED_CHARS: usize = 80;

/// A text in quotes, escaped and shortened.
pub(crate) fn quote(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or("")),
    }
}

/// A value as JSON, not longer than a quoted text.
pub(crate) fn brief(value: &serde_json::Value) -> String {
    let json = value.to_string();
    match json.char_indices().nth(MAX_QUOTED_CHARS) {
        None => json,
        Some((end, _)) => format!("{}…", json.get(..end).unwrap_or("")),
    }
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn long_and_hostile_texts() {
        assert_eq!(quote("a\n\"b"), r#""a\n\"b""#);
        assert_eq!(
            quote(&"é".repeat(1 << 20)).chars().count(),
            super::MAX_QUOTED_CHARS + 3
        );
    }
}
