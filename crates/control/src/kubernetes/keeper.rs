//! Has the cluster keep what the control plane needs there: the root certificate in its Secret, a copy of it in every
//! namespace, and webhook configurations that trust it. What fails is tried again with growing waits; nobody else
//! waits meanwhile.

use super::keep::{self, KeepError, Trusted};
use super::plane::{Admission, Notice};
use super::root::{self, Waits};
use super::watch::resource;
use super::world::key_of;
use crate::chain::Chain;
use crate::plane::Plane;
use kube::api::ApiResource;
use remora_mtls::Authority;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Conflicts that go on for so long have another reason than haste.
const CONFLICTS_LAST: Duration = Duration::from_secs(5);
/// How often it is looked whether a step of the root's exchange is due.
const LOOK: Duration = Duration::from_mins(10);

/// What is there, and so what must be written.
#[derive(Debug)]
pub(super) enum Order {
    Namespace(String),
    NoNamespace(String),
    /// All there are.
    Namespaces(BTreeSet<String>),
    Copy(Value),
    NoCopy(String),
    /// All namespaces that have one.
    Copies(BTreeSet<String>),
    /// They cannot be seen, and are written unseen.
    UnseenCopies,
    Webhook(Admission, Value),
    NoWebhook(Admission, String),
    /// All there are.
    Webhooks(Admission, BTreeSet<String>),
    Root(Value),
    NoRoot,
}

/// Where orders are given.
pub(super) struct Orders(pub(super) mpsc::UnboundedSender<Order>);

impl Orders {
    pub(super) fn send(&self, order: Order) {
        // Nobody takes them any more when everything ends.
        let _ = self.0.send(order);
    }
}

/// Writes.
pub(super) struct Keeper {
    client: kube::Client,
    namespace: String,
    plane: Arc<Plane>,
    notice: Arc<dyn Fn(&Notice) + Send + Sync>,
    waits: Waits,
    /// The cluster role of the installation, also in the name under which copies are written.
    role: String,
    namespaces: BTreeSet<String>,
    /// What namespaces have.
    copies: BTreeMap<String, String>,
    /// Whether that is all there is: what is not known may be there all the same.
    listed: bool,
    webhooks: BTreeMap<(Admission, String), Value>,
    secret: Option<Value>,
    /// The Secret was there and is gone.
    lost: bool,
    pause: Duration,
    /// What was told last: the same again is not told.
    said: BTreeSet<String>,
}

impl Keeper {
    pub(super) fn new(
        client: kube::Client,
        namespace: &str,
        plane: Arc<Plane>,
        notice: Arc<dyn Fn(&Notice) + Send + Sync>,
        waits: Waits,
        role: String,
    ) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            plane,
            notice,
            waits,
            role,
            namespaces: BTreeSet::new(),
            copies: BTreeMap::new(),
            listed: false,
            webhooks: BTreeMap::new(),
            secret: None,
            lost: false,
            pause: FIRST_PAUSE,
            said: BTreeSet::new(),
        }
    }

    pub(super) async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut again = Instant::now() + LOOK;
        loop {
            let order = tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => Some(order),
                    None => return,
                },
                () = tokio::time::sleep_until(again) => None,
            };
            for order in order
                .into_iter()
                .chain(std::iter::from_fn(|| orders.try_recv().ok()))
            {
                self.note(order);
            }
            again = Instant::now() + self.write().await;
        }
    }

    fn note(&mut self, order: Order) {
        match order {
            Order::Namespace(name) => drop(self.namespaces.insert(name)),
            Order::NoNamespace(name) => {
                self.namespaces.remove(&name);
                self.copies.remove(&name);
            }
            Order::Namespaces(there) => self.namespaces = there,
            Order::Copy(map) => {
                let content = map["data"][keep::COPY_KEY]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                self.copies.insert(key_of(&map).0, content);
            }
            Order::NoCopy(namespace) => drop(self.copies.remove(&namespace)),
            Order::Copies(there) => {
                self.listed = true;
                self.copies.retain(|namespace, _| there.contains(namespace));
            }
            Order::UnseenCopies => self.listed = true,
            Order::Webhook(admission, configuration) => {
                let (_, name) = key_of(&configuration);
                self.webhooks.insert((admission, name), configuration);
            }
            Order::NoWebhook(admission, name) => drop(self.webhooks.remove(&(admission, name))),
            Order::Webhooks(admission, there) => self
                .webhooks
                .retain(|(other, name), _| *other != admission || there.contains(name)),
            Order::Root(secret) => self.adopt(secret),
            Order::NoRoot => {
                self.lost = true;
                self.secret = None;
            }
        }
    }

    /// The Secret says what the root is, whoever wrote it.
    fn adopt(&mut self, secret: Value) {
        self.lost = false;
        match root::authority(&secret) {
            Ok(next) if next.state() == self.plane.kept() => {}
            Ok(next) => {
                let taken = self
                    .plane
                    .with_authority(|authority| authority.replace_roots_with(next));
                self.tell(&match taken {
                    Ok(()) => {
                        Notice::Served("the root certificate's secret changed, and is followed".to_owned())
                    }
                    Err(error) => Notice::Trouble(Chain(&error).to_string()),
                });
            }
            Err(problem) => self.tell(&Notice::Unwritten(KeepError::Secret {
                namespace: self.namespace.clone(),
                problem: format!("{problem}; keeping the root of before"),
            })),
        }
        self.secret = Some(secret);
    }

    /// Writes what is missing; gives how long to wait before looking again.
    async fn write(&mut self) -> Duration {
        let roots = self.plane.roots();
        let mut failures = Vec::new();
        failures.extend(self.write_root().await.err());
        // Nobody can create a pod before this is right.
        failures.extend(self.write_bundles(&roots).await);
        failures.extend(self.write_copies(&roots).await);
        let failed = !failures.is_empty();
        let said = std::mem::take(&mut self.said);
        for failure in failures {
            // Others write, too: that is nothing to tell while it does not last.
            if failure.is_conflict() && self.pause < CONFLICTS_LAST {
                continue;
            }
            let text = Chain(&failure).to_string();
            if !said.contains(&text) {
                self.tell(&Notice::Unwritten(failure));
            }
            self.said.insert(text);
        }
        if !failed {
            self.pause = FIRST_PAUSE;
            return LOOK;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        pause
    }

    async fn write_bundles(&mut self, roots: &str) -> Vec<KeepError> {
        let mut failures = Vec::new();
        let mut gone = Vec::new();
        for (key, configuration) in &mut self.webhooks {
            let kind = resource_of(key.0);
            match keep::trust(&self.client, &kind, configuration, roots).await {
                Ok(Trusted::Already) => {}
                Ok(Trusted::Now(written)) => *configuration = written,
                Ok(Trusted::Gone) => gone.push(key.clone()),
                Err(error) => failures.push(error),
            }
        }
        for key in gone {
            self.webhooks.remove(&key);
        }
        failures
    }

    async fn write_copies(&mut self, roots: &str) -> Vec<KeepError> {
        let mut failures = Vec::new();
        let stale = |namespace: &&String| self.copies.get(*namespace).is_none_or(|copy| copy != roots);
        let missing: Vec<&String> = self
            .namespaces
            .iter()
            .filter(stale)
            .filter(|_| self.listed)
            .collect();
        if missing.is_empty() {
            return failures;
        }
        let owner = keep::owner(&self.client, &self.role).await;
        let writer = format!("remora-{}", self.role);
        for namespace in missing {
            match keep::copy_roots(&self.client, namespace, roots, (&writer, owner.as_ref())).await {
                Ok(()) => drop(self.copies.insert(namespace.clone(), roots.to_owned())),
                Err(error) => failures.push(error),
            }
        }
        failures
    }

    /// Puts a lost Secret back, or makes the step of an exchange that is due.
    async fn write_root(&self) -> Result<(), KeepError> {
        let now = SystemTime::now();
        if self.lost {
            let authority = Authority::from_state(&self.plane.kept())?;
            let fields = root::made(&authority, now);
            return match keep::create(&self.client, &self.namespace, fields).await {
                Err(error) if error.is_conflict() => Ok(()),
                other => other,
            };
        }
        let Some(secret) = &self.secret else {
            return Ok(());
        };
        match root::step(secret, self.waits, now)? {
            Some(next) => keep::replace(&self.client, &self.namespace, next).await,
            None => Ok(()),
        }
    }

    fn tell(&self, notice: &Notice) {
        (self.notice)(notice);
    }
}

fn resource_of(admission: Admission) -> ApiResource {
    let (kind, plural) = match admission {
        Admission::Mutating => ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
        Admission::Validating => (
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
        ),
    };
    resource("admissionregistration.k8s.io", "v1", kind, plural)
}
