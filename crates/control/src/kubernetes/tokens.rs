//! Callers known by their service account tokens, which the API server judges.

use crate::token::{Authenticator, Unidentified};
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use remora_mtls::SpiffeId;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

// istio: what the tokens of sidecars are for.
const AUDIENCE: &str = "istio-ca";
/// A token that was good is believed this long: a proxy that asks for a certificate and for discovery is asked about
/// once. Short, because a pod that is gone must not get certificates for long.
const BELIEVED: Duration = Duration::from_secs(10);
const MOST: usize = 10_000;

/// Asks the API server.
pub(super) struct Reviewed {
    api: Api<DynamicObject>,
    resource: ApiResource,
    trust_domain: String,
    /// By a keyed hash: tokens themselves are not kept.
    known: Mutex<HashMap<u64, (SpiffeId, Instant)>>,
    hasher: RandomState,
}

impl Reviewed {
    pub(super) fn new(client: kube::Client, trust_domain: &str) -> Self {
        let resource = super::watch::resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews");
        Self {
            api: Api::all_with(client, &resource),
            resource,
            trust_domain: trust_domain.to_owned(),
            known: Mutex::default(),
            hasher: RandomState::new(),
        }
    }

    fn remembered(&self, key: u64, now: Instant) -> Option<SpiffeId> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(&key)
            .filter(|(_, until)| *until > now)
            .map(|(id, _)| id.clone())
    }

    fn remember(&self, key: u64, id: &SpiffeId, now: Instant) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.retain(|_, (_, until)| *until > now);
        }
        if known.len() < MOST {
            known.insert(key, (id.clone(), now + BELIEVED));
        }
    }
}

#[tonic::async_trait]
impl Authenticator for Reviewed {
    async fn identify(&self, token: &str) -> Result<SpiffeId, Unidentified> {
        let (key, now) = (self.hasher.hash_one(token), Instant::now());
        if let Some(id) = self.remembered(key, now) {
            return Ok(id);
        }
        let question = DynamicObject::new("", &self.resource)
            .data(json!({"spec": {"token": token, "audiences": [AUDIENCE]}}));
        let mut question = question;
        question.metadata.name = None;
        let answer = self
            .api
            .create(&PostParams::default(), &question)
            .await
            .map_err(|error| Unidentified::Unavailable(error.to_string()))?;
        let id = verdict(&answer.data, &self.trust_domain).map_err(Unidentified::Refused)?;
        self.remember(key, &id, now);
        Ok(id)
    }
}

/// Whose token it is, by the API server's answer.
fn verdict(review: &Value, trust_domain: &str) -> Result<SpiffeId, String> {
    let status = &review["status"];
    if status["authenticated"].as_bool() != Some(true) {
        let why = status["error"]
            .as_str()
            .unwrap_or("the API server does not know it");
        return Err(format!("the token is not valid: {why}"));
    }
    let audiences = status["audiences"].as_array();
    if !audiences.is_some_and(|list| list.iter().any(|a| a == AUDIENCE)) {
        return Err(format!("the token is not for {AUDIENCE}"));
    }
    let user = status["user"]["username"].as_str().unwrap_or_default();
    let account = user
        .strip_prefix("system:serviceaccount:")
        .and_then(|rest| rest.split_once(':'));
    let Some((namespace, account)) = account else {
        return Err(format!("{user:?} is no service account"));
    };
    SpiffeId::of_service_account(trust_domain, namespace, account).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::verdict;
    use serde_json::{Value, json};

    fn answer(status: &Value) -> Result<String, String> {
        verdict(&json!({"status": status}), "td").map(|id| id.to_string())
    }

    #[test]
    fn a_service_account_is_an_identity() {
        let good = json!({"authenticated": true, "audiences": ["istio-ca"],
            "user": {"username": "system:serviceaccount:shop:cart"}});
        assert_eq!(answer(&good).unwrap(), "spiffe://td/ns/shop/sa/cart");
    }

    #[test]
    fn everything_else_is_nobody() {
        let refused = |status: Value| answer(&status).unwrap_err();
        assert!(refused(json!({"authenticated": false, "error": "expired"})).contains("expired"));
        assert!(refused(json!({})).contains("not valid"));
        let user = json!({"username": "system:serviceaccount:shop:cart"});
        assert!(refused(json!({"authenticated": true, "user": user})).contains("istio-ca"));
        assert!(
            refused(json!({"authenticated": true, "audiences": ["kubernetes"], "user": user}))
                .contains("istio-ca")
        );
        let admin = json!({"username": "admin"});
        assert!(
            refused(json!({"authenticated": true, "audiences": ["istio-ca"], "user": admin}))
                .contains("no service account")
        );
    }
}
