//! Tokens of service accounts: made here, and known again by the control plane of the same run.
//!
//! They look like a cluster's, so that programs that read the claims find them. Nobody but the run that made them can
//! make them, because nobody else knows its secret.

use std::time::{Duration, SystemTime};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::volumes::Grant;

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Why a token is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It was made by somebody else, or changed.
    #[error("the token is none of this run's")]
    Foreign,
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
}

/// Makes tokens and knows them again.
#[derive(Debug, Clone)]
pub struct Mint {
    key: hmac::Key,
}

impl Mint {
    /// Tokens of one run. `secret` is what nobody can guess.
    pub fn new(secret: &[u8]) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, secret),
        }
    }

    /// The token of a service account.
    pub fn token(&self, namespace: &str, account: &str, grant: &Grant, now: SystemTime) -> String {
        let head = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "typ": "JWT"}).to_string());
        let body = URL_SAFE_NO_PAD.encode(claims(namespace, account, grant, now).to_string());
        let signed = format!("{head}.{body}");
        let tag = hmac::sign(&self.key, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
    }

    /// Namespace and name of the account that a token belongs to.
    pub fn read(&self, token: &str, now: SystemTime) -> Result<(String, String), TokenError> {
        let (signed, tag) = token.rsplit_once('.').ok_or(TokenError::Foreign)?;
        let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| TokenError::Foreign)?;
        hmac::verify(&self.key, signed.as_bytes(), &tag).map_err(|_| TokenError::Foreign)?;
        let claims = signed.split('.').nth(1).and_then(|body| {
            let body = URL_SAFE_NO_PAD.decode(body).ok()?;
            serde_json::from_slice::<Value>(&body).ok()
        });
        let claims = claims.ok_or(TokenError::Foreign)?;
        let ends = claims.get("exp").and_then(Value::as_u64).unwrap_or_default();
        if ends <= seconds(now) {
            return Err(TokenError::Expired);
        }
        let text = |path: &str| claims.pointer(path).and_then(Value::as_str).map(str::to_owned);
        text("/kubernetes.io/namespace")
            .zip(text("/kubernetes.io/serviceaccount/name"))
            .ok_or(TokenError::Foreign)
    }
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_secs()
}

fn claims(namespace: &str, account: &str, grant: &Grant, now: SystemTime) -> Value {
    let audience = if grant.audience.is_empty() {
        ISSUER
    } else {
        &grant.audience
    };
    let now = seconds(now);
    json!({
        "aud": [audience],
        "exp": now + grant.life.as_secs(),
        "iat": now,
        "iss": ISSUER,
        "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": account}},
        "sub": format!("system:serviceaccount:{namespace}:{account}"),
    })
}

#[cfg(test)]
mod tests {
    use super::{Mint, TokenError};
    use crate::volumes::Grant;
    use std::time::{Duration, SystemTime};

    fn grant(audience: &str) -> Grant {
        Grant {
            audience: audience.to_owned(),
            life: Duration::from_mins(10),
        }
    }

    #[test]
    fn tokens_are_known_again_until_their_time_is_over() {
        let (mint, now) = (
            Mint::new(b"one"),
            SystemTime::UNIX_EPOCH + Duration::from_secs(1000),
        );
        let token = mint.token("shop", "cart", &grant("istio-ca"), now);
        let after = |seconds| now + Duration::from_secs(seconds);
        let who = ("shop".to_owned(), "cart".to_owned());
        assert_eq!(mint.read(&token, after(599)), Ok(who));
        assert_eq!(mint.read(&token, after(600)), Err(TokenError::Expired));
    }

    #[test]
    fn nobody_else_makes_them() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let mint = Mint::new(b"one");
        let token = mint.token("shop", "cart", &grant(""), now);
        let other = Mint::new(b"two").token("shop", "cart", &grant(""), now);
        let richer = mint.token("shop", "bank", &grant(""), now);
        // The claims of one with the signature of another.
        let (signed, _) = richer.rsplit_once('.').unwrap();
        let (_, tag) = token.rsplit_once('.').unwrap();
        for wrong in [
            other,
            format!("{signed}.{tag}"),
            String::new(),
            "a.b.c".to_owned(),
        ] {
            assert_eq!(mint.read(&wrong, now), Err(TokenError::Foreign), "{wrong}");
        }
        assert_ne!(token, mint.token("shop", "cart", &grant("istio-ca"), now));
    }
}
