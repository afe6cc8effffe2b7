//! What a registry says when it wants to know who asks.

/// A demand for credentials.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// Name and password with every request.
    Basic,
    /// A token from somebody else.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

/// Reads a `WWW-Authenticate` header; `None` for schemes we do not have.
pub(super) fn parse(header: &str) -> Option<Challenge> {
    let header = header.trim();
    let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service, mut scope) = (None, None, None);
    for (key, value) in parameters(rest) {
        match key.to_ascii_lowercase().as_str() {
            "realm" => realm = Some(value),
            "service" => service = Some(value),
            "scope" => scope = Some(value),
            _ => {}
        }
    }
    Some(Challenge::Bearer {
        realm: realm?,
        service,
        scope,
    })
}

/// `key="value", key=value` pairs; commas may stand inside quotes.
fn parameters(mut text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while let Some((key, rest)) = text.split_once('=') {
        let key = key.trim_matches([' ', ',', '\t']).to_owned();
        let (value, after) = if let Some(quoted) = rest.strip_prefix('"') {
            quoted.split_once('"').unwrap_or((quoted, ""))
        } else {
            rest.split_once(',').unwrap_or((rest, ""))
        };
        found.push((key, value.trim().to_owned()));
        text = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_and_basic() {
        let header = r#"Bearer realm="https://auth.example.com/token",service="reg,istry",scope="repository:a/b:pull,push""#;
        let expected = Challenge::Bearer {
            realm: "https://auth.example.com/token".into(),
            service: Some("reg,istry".into()),
            scope: Some("repository:a/b:pull,push".into()),
        };
        assert_eq!(parse(header), Some(expected));
        assert_eq!(parse("basic realm=x"), Some(Challenge::Basic));
        assert_eq!(parse("Basic"), Some(Challenge::Basic));
        for bad in [
            "",
            "Digest realm=x",
            "Bearer",
            "Bearer service=\"x\"",
            "Bearer realm",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let loose = parse("bearer  realm=http://x/t , error=\"invalid\"");
        assert!(matches!(loose, Some(Challenge::Bearer { realm, .. }) if realm == "http://x/t"));
    }
}
