//! Callers known by their service account tokens, which the API server judges.
//!
//! Callers are not known before that, so what they can make the API server do is bounded: a token that cannot be good is
//! refused here ([`claims`]), the same token is reviewed once at a time and its refusal remembered for seconds, so many
//! reviews run at once for all callers and for one source address, and a source with many wrong tokens waits
//! ([`failures`]).

mod claims;
mod failures;

use super::beside::{self, Bound};
use crate::token::{Authenticator, Unidentified};
use failures::Failures;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use remora_http::{Permit, SourceLimiter};
use remora_mtls::SpiffeId;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{Semaphore, SemaphorePermit};

// istio: what the tokens of sidecars are for.
const AUDIENCE: &str = "istio-ca";
/// A token that was good is believed this long: a proxy that asks for a certificate and for discovery is asked about
/// once. Short, because a pod that is gone must not get certificates for long.
const BELIEVED: Duration = Duration::from_secs(10);
/// A token that was refused is refused this long without asking again.
const REFUSED: Duration = Duration::from_secs(5);
/// Tokens that are remembered, good ones and refused ones each.
const MAX_REMEMBERED: usize = 10_000;
/// Reviews at once, for all callers and for one source address. Behind one address may be a node with many pods.
const REVIEWS: usize = 64;
const REVIEWS_PER_SOURCE: usize = 32;
/// For a review, from the request to the answer.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// Who owns a token.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    id: SpiffeId,
    /// The pod to which it is bound: it ends with it.
    pod: Option<Bound>,
}

/// Verdicts that are still good, by a keyed hash: tokens themselves are not kept.
struct Memory<T>(Mutex<HashMap<u64, (T, Instant)>>);

impl<T: Clone> Memory<T> {
    fn get(&self, key: u64, now: Instant) -> Option<T> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (verdict, until) = known.get(&key)?;
        (*until > now).then(|| verdict.clone())
    }

    fn put(&self, key: u64, verdict: T, now: Instant, until: Instant) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_REMEMBERED {
            known.retain(|_, (_, until)| *until > now);
        }
        if known.len() < MAX_REMEMBERED {
            known.insert(key, (verdict, until));
        }
    }
}

/// Asks the API server.
pub(super) struct Reviewed {
    api: Api<DynamicObject>,
    resource: ApiResource,
    client: kube::Client,
    trust_domain: String,
    known: Memory<Owner>,
    refused: Memory<String>,
    hasher: RandomState,
    /// Reviews at work, by the token's hash: others who show the same token wait for the verdict.
    at_work: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<()>>>>,
    reviews: Semaphore,
    per_source: Arc<SourceLimiter>,
    failures: Mutex<Failures>,
}

impl Reviewed {
    pub(super) fn new(client: kube::Client, trust_domain: &str) -> Self {
        let resource = super::watch::resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews");
        Self {
            api: Api::all_with(client.clone(), &resource),
            resource,
            client,
            trust_domain: trust_domain.to_owned(),
            known: Memory(Mutex::default()),
            refused: Memory(Mutex::default()),
            hasher: RandomState::new(),
            at_work: Mutex::default(),
            reviews: Semaphore::new(REVIEWS),
            per_source: SourceLimiter::new(REVIEWS_PER_SOURCE),
            failures: Mutex::default(),
        }
    }

    /// What is known of a token without asking.
    fn remembered(&self, key: u64) -> Option<Result<Owner, Unidentified>> {
        let now = Instant::now();
        if let Some(owner) = self.known.get(key, now) {
            return Some(Ok(owner));
        }
        let why = self.refused.get(key, now)?;
        Some(Err(Unidentified::Refused(why)))
    }

    async fn owner(&self, token: &str, source: Option<IpAddr>) -> Result<Owner, Unidentified> {
        let key = self.hasher.hash_one(token);
        if let Some(verdict) = self.remembered(key) {
            return verdict;
        }
        if let Some(why) = claims::refusal(token, SystemTime::now()) {
            return Err(Unidentified::Refused(why.to_owned()));
        }
        let _permits = self.permits(source).await?;
        let flight = Flight::join(self, key);
        let _turn = flight.turn.lock().await;
        // Another request with this token may have had its verdict meanwhile.
        if let Some(verdict) = self.remembered(key) {
            return verdict;
        }
        let asked = Instant::now();
        let verdict = self.review(token).await;
        let now = Instant::now();
        match &verdict {
            Ok(owner) => self.known.put(key, owner.clone(), now, asked + BELIEVED),
            Err(Unidentified::Refused(why)) => {
                self.refused.put(key, why.clone(), now, now + REFUSED);
                if let Some(source) = source {
                    self.failures().failed(source, now);
                }
            }
            Err(Unidentified::Unavailable(_)) => {}
        }
        verdict
    }

    /// The right to a review, for a client at this address.
    async fn permits(
        &self,
        source: Option<IpAddr>,
    ) -> Result<(SemaphorePermit<'_>, Option<Permit>), Unidentified> {
        let busy = |why: &str| Unidentified::Unavailable(why.to_owned());
        let of_source = match source {
            Some(source) if !self.failures().allow(source, Instant::now()) => {
                return Err(busy("too many wrong tokens from this address; try again later"));
            }
            Some(source) => {
                let permit = self.per_source.try_acquire(source);
                Some(permit.ok_or_else(|| busy("too many tokens of this address are being reviewed"))?)
            }
            None => None,
        };
        let review = tokio::time::timeout(REVIEW_TIMEOUT, self.reviews.acquire()).await;
        let Ok(Ok(review)) = review else {
            return Err(busy("too many tokens are being reviewed"));
        };
        Ok((review, of_source))
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn review(&self, token: &str) -> Result<Owner, Unidentified> {
        let mut question = DynamicObject::new("", &self.resource)
            .data(json!({"spec": {"token": token, "audiences": [AUDIENCE]}}));
        question.metadata.name = None;
        let parameters = PostParams::default();
        let review = self.api.create(&parameters, &question);
        let unavailable = |why: &dyn std::fmt::Display| Unidentified::Unavailable(why.to_string());
        let answer = tokio::time::timeout(REVIEW_TIMEOUT, review)
            .await
            .map_err(|_| unavailable(&"the API server does not answer"))?
            .map_err(|error| unavailable(&error))?;
        verdict(&answer.data, &self.trust_domain).map_err(Unidentified::Refused)
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

/// A place among the requests that show one token.
struct Flight<'a> {
    reviewed: &'a Reviewed,
    key: u64,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl<'a> Flight<'a> {
    fn join(reviewed: &'a Reviewed, key: u64) -> Self {
        let mut at_work = reviewed.at_work.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = Arc::clone(at_work.entry(key).or_default());
        Self { reviewed, key, turn }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut at_work = self
            .reviewed
            .at_work
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // The map's and this one: no other request waits.
        if Arc::strong_count(&self.turn) <= 2 {
            at_work.remove(&self.key);
        }
    }
}

#[tonic::async_trait]
impl Authenticator for Reviewed {
    async fn identify(&self, token: &str) -> Result<SpiffeId, Unidentified> {
        self.owner(token, None).await.map(|owner| owner.id)
    }

    async fn identify_from(&self, token: &str, source: IpAddr) -> Result<SpiffeId, Unidentified> {
        self.owner(token, Some(source)).await.map(|owner| owner.id)
    }

    /// Asked of the API server each time: a node's proxy asks rarely, and for every workload to be known here by its
    /// node would cost more.
    async fn is_beside(&self, token: &str, workload: &SpiffeId) -> Result<(), Unidentified> {
        let owner = self.owner(token, None).await?;
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
mod tests;
