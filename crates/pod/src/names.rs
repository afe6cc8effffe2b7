//! The kinds of names Kubernetes accepts.
//!
//! Each check returns the rule that is broken, worded so that it can follow the name in a message.

/// A broken rule, e.g. `must be at most 63 characters`.
pub type Rule = &'static str;

/// A DNS-1123 label: container names, volume names, namespaces.
pub fn dns_label(name: &str) -> Result<(), Rule> {
    if name.is_empty() {
        return Err("must not be empty");
    }
    if name.len() > 63 {
        return Err("must be at most 63 characters");
    }
    if is_label(name) {
        Ok(())
    } else {
        Err("must consist of lower case letters, digits or '-', and start and end with a letter or digit")
    }
}

fn is_label(name: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    has_ends(name, alphanumeric) && name.bytes().all(|b| alphanumeric(b) || b == b'-')
}

/// A DNS-1123 subdomain: names of most objects, prefixes of label keys.
pub fn dns_subdomain(name: &str) -> Result<(), Rule> {
    if name.is_empty() {
        return Err("must not be empty");
    }
    if name.len() > 253 {
        return Err("must be at most 253 characters");
    }
    if name.split('.').all(is_label) {
        Ok(())
    } else {
        Err(
            "must consist of lower case letters, digits, '-' or '.', and each part must start and end with a letter or digit",
        )
    }
}

/// The value of a label; may be empty.
pub fn label_value(value: &str) -> Result<(), Rule> {
    if value.len() > 63 {
        return Err("must be at most 63 characters");
    }
    if value.is_empty() || is_qualified_part(value) {
        Ok(())
    } else {
        Err("must consist of letters, digits, '-', '_' or '.', and start and end with a letter or digit")
    }
}

fn is_qualified_part(text: &str) -> bool {
    has_ends(text, |b| b.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn has_ends(text: &str, accept: impl Fn(u8) -> bool) -> bool {
    text.bytes().next().is_some_and(&accept) && text.bytes().next_back().is_some_and(accept)
}

/// A qualified name: keys of labels and annotations, names of resources; `[prefix/]name`.
pub fn qualified_name(name: &str) -> Result<(), Rule> {
    let (prefix, name) = match name.split_once('/') {
        None => (None, name),
        Some((prefix, name)) => (Some(prefix), name),
    };
    if prefix.is_some_and(|prefix| dns_subdomain(prefix).is_err()) {
        return Err("must have a DNS subdomain before the '/'");
    }
    if name.is_empty() {
        return Err("must not be empty");
    }
    if name.contains('/') {
        return Err("must have at most one '/'");
    }
    if name.len() > 63 {
        return Err("must be at most 63 characters after the prefix");
    }
    if is_qualified_part(name) {
        Ok(())
    } else {
        Err("must consist of letters, digits, '-', '_' or '.', and start and end with a letter or digit")
    }
}

/// The key of an annotation: a qualified name whose letters may be of either case in the prefix too.
pub fn annotation_key(key: &str) -> Result<(), Rule> {
    // k8s: ValidateAnnotations lowers the key before it checks it.
    qualified_name(&key.to_ascii_lowercase())
}

/// The name of an environment variable, in the relaxed form API servers accept since 1.30: printable ASCII
/// without `=`.
pub fn env_name(name: &str) -> Result<(), Rule> {
    if name.is_empty() {
        return Err("must not be empty");
    }
    if name.bytes().all(|b| matches!(b, b' '..=b'~') && b != b'=') {
        Ok(())
    } else {
        Err("must consist of printable ASCII characters other than '='")
    }
}

/// The name of a port: letters, digits and single dashes, with at least one letter.
pub fn port_name(name: &str) -> Result<(), Rule> {
    if name.is_empty() || name.len() > 15 {
        return Err("must be 1 to 15 characters");
    }
    if !name
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    {
        return Err("must consist of lower case letters, digits or '-'");
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        return Err("must contain a letter");
    }
    if name.contains("--") || name.starts_with('-') || name.ends_with('-') {
        return Err("must not start or end with '-' or contain '--'");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Check = fn(&str) -> Result<(), Rule>;

    #[test]
    fn accepted_and_refused() {
        let long = "a".repeat(64);
        let wide = format!("{}.b", "a".repeat(252));
        let cases: [(Check, &[&str], &[&str]); 7] = [
            (
                dns_label,
                &["a", "a-b", "0", "istio-proxy"],
                &["", "A", "a_b", "-a", "a-", "a.b", "a\n", &long],
            ),
            (
                dns_subdomain,
                &["a", "a.b-c.d"],
                &["", "a..b", ".a", "a.", "A.b", &wide],
            ),
            (
                label_value,
                &["", "a", "A_b.c-d", "1"],
                &["-a", "a-", "a b", "a/b", "é", &long],
            ),
            (
                qualified_name,
                &["a", "A_b", "x.y/A-b"],
                &["", "/a", "a/", "a/b/c", "X.y/a", "-a", "a b", &long],
            ),
            (annotation_key, &["a", "Example.Com/Name"], &["", "/a", "a b/c"]),
            (
                env_name,
                &["A", "a.b-c", "_", "1A", "a b"],
                &["", "A=B", "A\n", "é"],
            ),
            (
                port_name,
                &["http", "h2-c", "a1"],
                &["", "1", "-a", "a-", "a--b", "A", "abcdefghijklmnop", "a_b"],
            ),
        ];
        for (check, good, bad) in cases {
            for name in good {
                assert_eq!(check(name), Ok(()), "{name}");
            }
            for name in bad {
                assert!(check(name).is_err(), "{name}");
            }
        }
    }
}
