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
/// For whom the tokens of proxies are. The volume that `remora inject` adds asks for this audience, as Istio's does.
const AUDIENCE: &str = "istio-ca";

/// Why a token is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It was made by somebody else, or changed.
    #[error("the token is none of this run's")]
    Foreign,
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
    /// It is a token of this run for another purpose, such as an application's token for the API server.
    #[error("the token is not for {AUDIENCE}")]
    Audience,
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
        self.sign(&claims(namespace, account, grant, now))
    }

    fn sign(&self, claims: &Value) -> String {
        let head = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "typ": "JWT"}).to_string());
        let body = URL_SAFE_NO_PAD.encode(claims.to_string());
        let signed = format!("{head}.{body}");
        let tag = hmac::sign(&self.key, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
    }

    /// Namespace and name of the account that a token for the control plane belongs to.
    ///
    /// Other tokens of the run are refused: an application shows its API token to other servers, and none of them may
    /// get a mesh certificate with it.
    pub fn read(&self, token: &str, now: SystemTime) -> Result<(String, String), TokenError> {
        let (signed, tag) = token.rsplit_once('.').ok_or(TokenError::Foreign)?;
        let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| TokenError::Foreign)?;
        hmac::verify(&self.key, signed.as_bytes(), &tag).map_err(|_| TokenError::Foreign)?;
        let claims = signed.split('.').nth(1).and_then(|body| {
            let body = URL_SAFE_NO_PAD.decode(body).ok()?;
            serde_json::from_slice::<Value>(&body).ok()
        });
        let claims = claims.ok_or(TokenError::Foreign)?;
        if claims.get("iss").and_then(Value::as_str) != Some(ISSUER) {
            return Err(TokenError::Foreign);
        }
        let ends = claims.get("exp").and_then(Value::as_u64).unwrap_or_default();
        if ends <= seconds(now) {
            return Err(TokenError::Expired);
        }
        let audiences = claims.get("aud").and_then(Value::as_array);
        if !audiences.is_some_and(|list| list.iter().any(|audience| audience == AUDIENCE)) {
            return Err(TokenError::Audience);
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
    use super::{Mint, TokenError, claims};
    use crate::volumes::Grant;
    use serde_json::{Value, json};
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
    fn only_tokens_for_the_control_plane_get_an_identity() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let mint = Mint::new(b"one");
        let read = |claims: &Value| mint.read(&mint.sign(claims), now);
        for audience in ["", "vault", "istio-ca.example", "ISTIO-CA"] {
            let token = mint.token("shop", "cart", &grant(audience), now);
            assert_eq!(mint.read(&token, now), Err(TokenError::Audience), "{audience}");
        }
        let good = claims("shop", "cart", &grant("istio-ca"), now);
        assert!(read(&good).is_ok());
        let with = |key: &str, value: Value| {
            let mut claims = good.clone();
            claims[key] = value;
            read(&claims)
        };
        assert!(with("aud", json!(["api", "istio-ca"])).is_ok());
        for none in [json!([]), json!("istio-ca"), json!([["istio-ca"]]), Value::Null] {
            assert_eq!(with("aud", none.clone()), Err(TokenError::Audience), "{none}");
        }
        for stranger in [json!("https://other.example"), json!(""), Value::Null] {
            assert_eq!(
                with("iss", stranger.clone()),
                Err(TokenError::Foreign),
                "{stranger}"
            );
        }
        for nobody in [json!({}), json!({"namespace": "shop"}), Value::Null] {
            assert_eq!(
                with("kubernetes.io", nobody.clone()),
                Err(TokenError::Foreign),
                "{nobody}"
            );
        }
        for never in [json!("soon"), json!(1000), Value::Null] {
            assert_eq!(with("exp", never.clone()), Err(TokenError::Expired), "{never}");
        }
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
