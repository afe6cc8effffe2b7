//! `$(NAME)` in commands, arguments and values.

/// Replaces references that are known; others stay as they are written. `$$` is a dollar sign.
///
/// k8s: one pass, and what a reference brings in is not looked at again.
pub fn expand(text: &str, look: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match look(name) {
                Some(value) => out.push_str(&value),
                None => out.extend(["$(", name, ")"]),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn references_escapes_and_everything_else() {
        let look = |name: &str| (name == "A").then(|| "$(B)".to_owned());
        let cases = [
            ("x $(A) y", "x $(B) y"),
            ("$(C)", "$(C)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$$(B)"),
            ("$x $", "$x $"),
            ("$(A", "$(A"),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(expand(text, look), expected, "{text}");
        }
    }
}
