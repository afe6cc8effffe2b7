//! Writes the status conditions of policies.
//!
//! Nothing waits for these writes: the follower leaves the newest verdict of each policy and goes on. One write is in
//! flight at a time, so a cluster with many policies does not burden its API server. A control plane that may not
//! write conditions enforces policies all the same.

use super::conditions::{Finding, Target, Verdict};
use super::keep::OWNER;
use super::plane::{Notice, policy_resource};
use super::world::Kind;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Permissions and CRDs change seldom, and there may be many policies.
const REFUSED_PAUSE: Duration = Duration::from_mins(10);
/// An API server that does not answer must not hold up the other policies.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The newest verdict of each policy; `None`: the policy is gone.
pub(super) type Verdicts = BTreeMap<Target, Option<Verdict>>;

/// Verdicts that the writer did not look at yet. At most one for each policy, however slow the API server is.
#[derive(Debug, Default)]
pub(super) struct Pending {
    verdicts: Mutex<Verdicts>,
    changed: Notify,
}

impl Pending {
    pub(super) fn add(&self, verdicts: Verdicts) {
        if !verdicts.is_empty() {
            let mut pending = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
            pending.extend(verdicts);
            self.changed.notify_one();
        }
    }

    fn take(&self) -> Verdicts {
        std::mem::take(&mut *self.verdicts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What came of a write.
enum Outcome {
    Written,
    /// The object changed or is gone. The watch brings its next version.
    Outdated,
    /// The API server does not accept it, and will not accept it again.
    Invalid(String),
    /// It may be accepted later.
    Failed(String),
    /// The control plane lacks the permission, or the kind has no status subresource.
    Refused(String),
}

pub(super) struct StatusWriter {
    client: kube::Client,
    notice: Arc<dyn Fn(&Notice) + Send + Sync>,
    pending: Arc<Pending>,
    /// What this replica wrote, or found already written.
    written: BTreeMap<Target, Finding>,
    /// Verdicts to write again, and when.
    failed: Verdicts,
    again: Instant,
    pause: Duration,
    /// Kinds whose trouble was logged.
    logged: BTreeSet<Kind>,
}

impl StatusWriter {
    pub(super) fn new(
        client: kube::Client,
        notice: Arc<dyn Fn(&Notice) + Send + Sync>,
        pending: Arc<Pending>,
    ) -> Self {
        Self {
            client,
            notice,
            pending,
            written: BTreeMap::new(),
            failed: Verdicts::new(),
            again: Instant::now(),
            pause: FIRST_PAUSE,
            logged: BTreeSet::new(),
        }
    }

    pub(super) async fn run(mut self) {
        let pending = Arc::clone(&self.pending);
        loop {
            let verdicts = tokio::select! {
                () = pending.changed.notified() => pending.take(),
                () = tokio::time::sleep_until(self.again), if !self.failed.is_empty() => {
                    self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                    std::mem::take(&mut self.failed)
                }
            };
            for (target, verdict) in verdicts {
                self.settle(target, verdict).await;
            }
            if self.failed.is_empty() {
                self.pause = FIRST_PAUSE;
            }
        }
    }

    async fn settle(&mut self, target: Target, verdict: Option<Verdict>) {
        self.failed.remove(&target);
        let Some(verdict) = verdict else {
            self.written.remove(&target);
            return;
        };
        let Some(patch) = verdict.patch(self.written.get(&target), &now()) else {
            self.written.insert(target, verdict.finding);
            return;
        };
        match self.write(&target, &patch).await {
            Outcome::Written => {
                self.logged.remove(&target.0);
                self.written.insert(target, verdict.finding);
            }
            Outcome::Outdated => {}
            Outcome::Invalid(why) => self.log(target.0, why),
            Outcome::Failed(why) => {
                self.log(target.0, why);
                self.retry(target, verdict, self.pause);
            }
            Outcome::Refused(why) => {
                self.log(target.0, why);
                self.retry(target, verdict, REFUSED_PAUSE);
            }
        }
    }

    /// The shortest pause decides when all of them are tried again.
    fn retry(&mut self, target: Target, verdict: Verdict, pause: Duration) {
        let due = Instant::now() + pause;
        self.again = if self.failed.is_empty() {
            due
        } else {
            due.min(self.again)
        };
        self.failed.insert(target, Some(verdict));
    }

    async fn write(&self, (kind, (namespace, name)): &Target, patch: &Value) -> Outcome {
        let resource = policy_resource(*kind);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let parameters = PatchParams {
            field_manager: Some(OWNER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(patch);
        let writing = api.patch_status(name, &parameters, &patch);
        match tokio::time::timeout(REQUEST_TIMEOUT, writing).await {
            Ok(Ok(_)) => Outcome::Written,
            Ok(Err(kube::Error::Api(status))) => match status.code {
                409 => Outcome::Outdated,
                404 => missing(&api, name).await,
                403 => Outcome::Refused(status.message.clone()),
                400 | 422 => Outcome::Invalid(status.message.clone()),
                _ => Outcome::Failed(status.message.clone()),
            },
            Ok(Err(error)) => Outcome::Failed(error.to_string()),
            Err(_) => Outcome::Failed("the API server did not answer in time".to_owned()),
        }
    }

    fn log(&mut self, kind: Kind, why: String) {
        if self.logged.insert(kind) {
            (self.notice)(&Notice::StatusNotWritten { kind, why });
        }
    }
}

/// k8s: the API server answers alike whether the object is gone or its CRD has no status subresource.
async fn missing(api: &Api<DynamicObject>, name: &str) -> Outcome {
    match tokio::time::timeout(REQUEST_TIMEOUT, api.get_opt(name)).await {
        Ok(Ok(Some(_))) => Outcome::Refused("its CRD has no status subresource".to_owned()),
        Ok(Ok(None)) => Outcome::Outdated,
        _ => Outcome::Failed("the API server did not say whether the object is gone".to_owned()),
    }
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
