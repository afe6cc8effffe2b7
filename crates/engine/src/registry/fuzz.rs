//! Challenges of strangers.

use super::challenge;
use super::trust::{Answered, Decision, Origin, Plain, decide};
use http::Uri;

/// The registry's address, redirects on the way, and the last line: what the last host wants to see.
///
/// # Panics
///
/// If a credential would go to a host that may not have it.
pub fn challenge(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let mut lines: Vec<&str> = text.lines().take(8).collect();
    let header = lines.pop().unwrap_or_default();
    let insecure = ["lab.example:5000".to_owned()];
    let plain = Plain { insecure: &insecure };
    let uris: Option<Vec<Uri>> = lines.iter().map(|line| line.parse().ok()).collect();
    let Some((home_uri, hops)) = uris.as_ref().and_then(|uris| uris.split_first()) else {
        return;
    };
    let Some(home) = Origin::of(home_uri) else { return };
    let mut answered = Answered::at_home(&home);
    for uri in hops {
        let Some(origin) = Origin::of(uri) else { return };
        if plain.leads(&answered.by, &origin).is_err() {
            return;
        }
        let fallen = answered.by != origin && scheme(uri) == "http";
        assert!(!fallen || scheme(home_uri) == "http", "a redirect took TLS away");
        answered.moved(origin);
    }
    let Some(challenge) = challenge::parse(header) else {
        return;
    };
    let Ok(decision) = decide(&home, &answered, &challenge, plain) else {
        return;
    };
    for hop in hops {
        assert_eq!(
            key(hop),
            key(home_uri),
            "{hop} gets an answer with credentials of {home}"
        );
    }
    if let Decision::Token(realm) = decision {
        let (host, _) = key(&realm).1;
        let local = host == "localhost" || host.starts_with("127.") || host == "[::1]";
        let protected = scheme(&realm) == "https"
            || key(&realm) == key(home_uri)
            || (scheme(home_uri) == "http" && (local || host == "lab.example"));
        assert!(protected, "credentials of {home} go to {realm}");
    }
}

fn scheme(uri: &Uri) -> String {
    uri.scheme_str().unwrap_or_default().to_ascii_lowercase()
}

/// What makes two addresses the same, in other words than the code under test has.
fn key(uri: &Uri) -> (String, (String, u16)) {
    let usual = if scheme(uri) == "https" { 443 } else { 80 };
    let host = uri.host().unwrap_or_default().to_ascii_lowercase();
    (scheme(uri), (host, uri.port_u16().unwrap_or(usual)))
}
