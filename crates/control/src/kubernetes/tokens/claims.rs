//! What a token says of itself, before the API server is asked whether that is true.
//!
//! Nothing here is believed: a token that passes is reviewed. One that does not could not have passed the review, so a
//! client without any token cannot make the API server work.

use super::AUDIENCE;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tokens of service accounts have about a thousand bytes.
const LONGEST_TOKEN: usize = 16 << 10;
/// Clocks differ; the API server's decides.
const CLOCK_SKEW: Duration = Duration::from_mins(1);

/// Why a token cannot be a good one.
pub(super) fn refusal(token: &str, now: SystemTime) -> Option<&'static str> {
    let Some(claims) = claims(token) else {
        return Some("the token is not a JSON web token");
    };
    let for_us = match &claims["aud"] {
        Value::String(audience) => audience == AUDIENCE,
        Value::Array(list) => list.iter().any(|audience| audience == AUDIENCE),
        _ => false,
    };
    if !for_us {
        return Some("the token is not for istio-ca");
    }
    // k8s: tokens that are requested for an audience always end.
    let Some(expiry) = claims["exp"].as_f64().filter(|expiry| *expiry >= 0.0) else {
        return Some("the token says no time at which it ends");
    };
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    if expiry + CLOCK_SKEW.as_secs_f64() < now.as_secs_f64() {
        return Some("the token has expired");
    }
    None
}

fn claims(token: &str) -> Option<Value> {
    if token.len() > LONGEST_TOKEN {
        return None;
    }
    let mut parts = token.split('.');
    let (_, payload, _, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else {
        return None;
    };
    let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
    serde_json::from_slice(&payload).ok().filter(Value::is_object)
}

#[cfg(test)]
mod tests {
    use super::{LONGEST_TOKEN, URL_SAFE_NO_PAD, refusal};
    use base64::Engine as _;
    use serde_json::{Value, json};
    use std::time::{Duration, UNIX_EPOCH};

    fn token(claims: &Value) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    #[test]
    fn only_an_unexpired_token_for_us_is_worth_a_review() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let why = |claims: Value| refusal(&token(&claims), now);
        assert_eq!(why(json!({"aud": ["istio-ca"], "exp": 1_000_600})), None);
        assert_eq!(why(json!({"aud": "istio-ca", "exp": 1_000_600})), None);
        assert_eq!(
            why(json!({"aud": ["istio-ca"], "exp": 999_970})),
            None,
            "clocks differ"
        );
        for (claims, expected) in [
            (json!({"aud": ["istio-ca"], "exp": 900_000}), "has expired"),
            (json!({"aud": ["istio-ca"]}), "no time"),
            (json!({"aud": ["istio-ca"], "exp": "soon"}), "no time"),
            (json!({"aud": ["api"], "exp": 1_000_600}), "not for istio-ca"),
            (json!({"exp": 1_000_600}), "not for istio-ca"),
        ] {
            assert!(why(claims.clone()).unwrap().contains(expected), "{claims}");
        }
        for text in [
            "",
            "guess",
            "a.b",
            "a.b.c",
            "e30.e30.e30.e30",
            &"x".repeat(1 << 20),
        ] {
            assert!(refusal(text, now).is_some(), "{}", &text[..text.len().min(20)]);
        }
        assert!(refusal(&token(&json!([1])), now).is_some());
    }

    #[test]
    fn a_token_ends_when_every_clock_that_may_be_right_says_so() {
        let at = |seconds| {
            let claims = json!({"aud": ["istio-ca"], "exp": 1000});
            refusal(&token(&claims), UNIX_EPOCH + Duration::from_secs(seconds))
        };
        assert_eq!(at(1060), None);
        assert_eq!(at(1061), Some("the token has expired"));
    }

    #[test]
    fn a_token_that_is_too_long_is_not_read() {
        let now = UNIX_EPOCH;
        let mut long = token(&json!({"aud": ["istio-ca"], "exp": 1000}));
        long.extend(std::iter::repeat_n('x', LONGEST_TOKEN - long.len()));
        assert_eq!(refusal(&long, now), None);
        long.push('x');
        assert!(refusal(&long, now).is_some());
    }
}
