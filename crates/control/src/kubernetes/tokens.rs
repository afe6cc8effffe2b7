//! Callers known by their service account tokens, which the API server judges.

use super::beside::{self, Bound};
use crate::token::{Authenticator, Unidentified};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
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

/// Who owns a token.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    id: SpiffeId,
    /// The pod to which it is bound: it ends with it.
    pod: Option<Bound>,
}

/// Asks the API server.
pub(super) struct Reviewed {
    api: Api<DynamicObject>,
    resource: ApiResource,
    client: kube::Client,
    trust_domain: String,
    /// By a keyed hash: tokens themselves are not kept.
    known: Mutex<HashMap<u64, (Owner, Instant)>>,
    hasher: RandomState,
}

impl Reviewed {
    pub(super) fn new(client: kube::Client, trust_domain: &str) -> Self {
        let resource = super::watch::resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews");
        Self {
            api: Api::all_with(client.clone(), &resource),
            resource,
            client,
            trust_domain: trust_domain.to_owned(),
            known: Mutex::default(),
            hasher: RandomState::new(),
        }
    }

    fn remembered(&self, key: u64, now: Instant) -> Option<Owner> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(&key)
            .filter(|(_, until)| *until > now)
            .map(|(owner, _)| owner.clone())
    }

    fn remember(&self, key: u64, owner: &Owner, now: Instant) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.retain(|_, (_, until)| *until > now);
        }
        if known.len() < MOST {
            known.insert(key, (owner.clone(), now + BELIEVED));
        }
    }

    async fn owner(&self, token: &str) -> Result<Owner, Unidentified> {
        let (key, now) = (self.hasher.hash_one(token), Instant::now());
        if let Some(owner) = self.remembered(key, now) {
            return Ok(owner);
        }
        let mut question = DynamicObject::new("", &self.resource)
            .data(json!({"spec": {"token": token, "audiences": [AUDIENCE]}}));
        question.metadata.name = None;
        let answer = self
            .api
            .create(&PostParams::default(), &question)
            .await
            .map_err(|error| Unidentified::Unavailable(error.to_string()))?;
        let owner = verdict(&answer.data, &self.trust_domain).map_err(Unidentified::Refused)?;
        self.remember(key, &owner, now);
        Ok(owner)
    }

    /// Pods of a node, or of a namespace by name.
    async fn pods(&self, namespace: Option<&str>, fields: &str) -> Result<Vec<Value>, Unidentified> {
        let pods = super::watch::resource("", "v1", "Pod", "pods");
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &pods),
            None => Api::all_with(self.client.clone(), &pods),
        };
        let unavailable = |error: String| Unidentified::Unavailable(error);
        let list = api.list(&ListParams::default().fields(fields)).await;
        let list = list.map_err(|error| unavailable(error.to_string()))?;
        let values = list.items.into_iter().map(serde_json::to_value);
        values
            .collect::<Result<_, _>>()
            .map_err(|error| unavailable(error.to_string()))
    }
}

#[tonic::async_trait]
impl Authenticator for Reviewed {
    async fn identify(&self, token: &str) -> Result<SpiffeId, Unidentified> {
        self.owner(token).await.map(|owner| owner.id)
    }

    /// Asked of the API server each time: a node's proxy asks rarely, and for every workload to be known here by its
    /// node would cost more.
    async fn is_beside(&self, token: &str, workload: &SpiffeId) -> Result<(), Unidentified> {
        let owner = self.owner(token).await?;
        let refused = Unidentified::Refused;
        let Some(pod) = &owner.pod else {
            return Err(refused("its token is not bound to a pod".to_owned()));
        };
        let (namespace, account) = owner.id.service_account().unwrap_or_default();
        let own = self
            .pods(Some(namespace), &format!("metadata.name={}", pod.name))
            .await?;
        let node = beside::node_of(&own, pod, account).map_err(refused)?;
        let there = self.pods(None, &format!("spec.nodeName={node}")).await?;
        let wanted = workload.service_account().unwrap_or_default();
        beside::has(&there, wanted, &node).map_err(refused)
    }
}

/// Whose token it is, by the API server's answer.
fn verdict(review: &Value, trust_domain: &str) -> Result<Owner, String> {
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
    let id =
        SpiffeId::of_service_account(trust_domain, namespace, account).map_err(|error| error.to_string())?;
    let pod = beside::bound(&status["user"]["extra"]);
    Ok(Owner { id, pod })
}

#[cfg(test)]
mod tests {
    use super::verdict;
    use serde_json::{Value, json};

    fn answer(status: &Value) -> Result<String, String> {
        verdict(&json!({"status": status}), "td").map(|owner| owner.id.to_string())
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
