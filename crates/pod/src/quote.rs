//! Foreign text in messages.

/// Characters of a foreign text that a message repeats.
const MOST: usize = 80;

/// A text in quotes, escaped, and not a megabyte long.
pub(crate) fn quote(text: &str) -> String {
    match text.char_indices().nth(MOST) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or("")),
    }
}

/// A value as JSON, not longer than a quoted text.
pub(crate) fn brief(value: &serde_json::Value) -> String {
    let json = value.to_string();
    match json.char_indices().nth(MOST) {
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
        assert_eq!(quote(&"é".repeat(1 << 20)).chars().count(), super::MOST + 3);
    }
}
