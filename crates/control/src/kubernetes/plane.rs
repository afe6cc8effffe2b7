//! A control plane fed by a cluster: discovery, certificates, webhooks, and what they keep there.

use super::keep::{self, KeepError, OWNER};
use super::sources::{Names, Source, SourceError, Sources};
use super::tokens::Reviewed;
use super::watch::{Seen, Watched, resource};
use super::world::{Key, Kind, World, key_of};
use crate::chain::Chain;
use crate::plane::{self, Plane, PlaneError};
use crate::webhook::{Limits, Rules, Webhook};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Changes that come together are told together.
const TOGETHER: Duration = Duration::from_millis(50);

/// How a control plane of a cluster behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its own namespace: config maps, the root certificate, policies for everybody.
    pub namespace: String,
    /// Empty: the default one.
    pub revision: String,
    /// The name of the cluster, in identities of workloads.
    pub cluster: String,
    /// `cluster.local`.
    pub domain: String,
    /// Certificates and where it is reached.
    pub plane: plane::Settings,
}

/// Something worth a line.
#[derive(Debug)]
pub enum Notice {
    /// What discovery serves.
    Served(String),
    /// What discovery could not do.
    Trouble(String),
    /// A kind cannot be watched just now.
    Unseen {
        /// Which.
        what: String,
        /// What the API server said.
        why: String,
    },
    /// New rules cannot be used; the old ones stay in force.
    Kept(SourceError),
    /// An object cannot be expressed.
    Inexpressible(String),
    /// Something could not be written; it is tried again.
    Unwritten(KeepError),
    /// Everything was seen once.
    Ready,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unseen { what, why } => write!(f, "cannot see {what}: {why}"),
            Self::Kept(error) => write!(f, "keeping the rules of before: {}", Chain(error)),
            Self::Served(what) | Self::Trouble(what) | Self::Inexpressible(what) => f.write_str(what),
            Self::Unwritten(error) => Chain(error).fmt(f),
            Self::Ready => f.write_str("the cluster was read; ready"),
        }
    }
}

impl Notice {
    /// Whether somebody should look at it.
    pub fn is_trouble(&self) -> bool {
        !matches!(self, Self::Served(_) | Self::Ready)
    }
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Mesh(Kind),
    Rules(Source),
    /// Nodes are both.
    Nodes,
    Webhooks(Admission),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Admission {
    Mutating,
    Validating,
}

/// A control plane of a cluster.
pub struct Cluster {
    client: kube::Client,
    settings: Settings,
    plane: Arc<Plane>,
    webhook: Arc<Webhook>,
    notice: Arc<dyn Fn(&Notice) + Send + Sync>,
    ready: watch::Sender<bool>,
}

/// The control plane cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The root certificate.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// Everything else.
    #[error(transparent)]
    Plane(#[from] PlaneError),
}

impl Cluster {
    /// Gets the root certificate, or makes it. Nothing is served yet.
    pub async fn open(
        client: kube::Client,
        settings: Settings,
        notice: impl Fn(&Notice) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let notice: Arc<dyn Fn(&Notice) + Send + Sync> = Arc::new(notice);
        let authority = keep::authority(&client, &settings.namespace).await?;
        let tokens = Arc::new(Reviewed::new(client.clone(), &settings.plane.trust_domain));
        let told = Arc::clone(&notice);
        let plane = Plane::new(
            authority,
            tokens,
            settings.plane.clone(),
            move |said: &plane::Notice| {
                let text = said.to_string();
                told(&match said {
                    plane::Notice::Mesh { .. } => Notice::Served(text),
                    plane::Notice::Kept(_) | plane::Notice::Refused { .. } => Notice::Trouble(text),
                });
            },
        )?;
        Ok(Self {
            client,
            settings,
            plane: Arc::new(plane),
            webhook: Arc::new(Webhook::new(Rules::default(), Limits::default())),
            notice,
            ready: watch::channel(false).0,
        })
    }

    /// Discovery and certificates.
    pub fn plane(&self) -> &Arc<Plane> {
        &self.plane
    }

    /// The webhooks.
    pub fn webhook(&self) -> &Arc<Webhook> {
        &self.webhook
    }

    /// Becomes true when everything was seen once: what is served before is not whole.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Follows the cluster for ever.
    pub async fn follow(&self) {
        let (tell, told) = mpsc::channel(256);
        let watching: Vec<_> = self
            .watched()
            .into_iter()
            .map(|watched| tokio::spawn(watched.follow(self.client.clone(), tell.clone())))
            .collect();
        drop(tell);
        Follower::new(self).run(told).await;
        for task in watching {
            task.abort();
        }
    }

    fn watched(&self) -> Vec<Watched<What>> {
        let all = |what, group, version, kind, plural| Watched {
            what,
            resource: resource(group, version, kind, plural),
            namespace: None,
            labels: None,
        };
        let istio = "security.istio.io";
        let admission = "admissionregistration.k8s.io";
        let (mutating, validating) = (Admission::Mutating, Admission::Validating);
        let mut list = vec![
            all(What::Mesh(Kind::Pod), "", "v1", "Pod", "pods"),
            all(What::Mesh(Kind::Service), "", "v1", "Service", "services"),
            all(
                What::Mesh(Kind::EndpointSlice),
                "discovery.k8s.io",
                "v1",
                "EndpointSlice",
                "endpointslices",
            ),
            all(What::Nodes, "", "v1", "Node", "nodes"),
            all(
                What::Rules(Source::Namespace),
                "",
                "v1",
                "Namespace",
                "namespaces",
            ),
            all(
                What::Mesh(Kind::AuthorizationPolicy),
                istio,
                "v1",
                "AuthorizationPolicy",
                "authorizationpolicies",
            ),
            all(
                What::Mesh(Kind::PeerAuthentication),
                istio,
                "v1",
                "PeerAuthentication",
                "peerauthentications",
            ),
            all(
                What::Rules(Source::Instrumentation),
                "opentelemetry.io",
                "v1alpha1",
                "Instrumentation",
                "instrumentations",
            ),
            all(
                What::Rules(Source::ConfigMap),
                "",
                "v1",
                "ConfigMap",
                "configmaps",
            ),
            all(
                What::Webhooks(mutating),
                admission,
                "v1",
                "MutatingWebhookConfiguration",
                "mutatingwebhookconfigurations",
            ),
            all(
                What::Webhooks(validating),
                admission,
                "v1",
                "ValidatingWebhookConfiguration",
                "validatingwebhookconfigurations",
            ),
        ];
        for watched in &mut list {
            match watched.what {
                What::Rules(Source::ConfigMap) => watched.namespace = Some(self.settings.namespace.clone()),
                // Of the cluster's own controller: they repeat what pods say, and are many.
                What::Mesh(Kind::EndpointSlice) => watched.labels = Some(NAMED.to_owned()),
                // istio: only configurations of the own revision.
                What::Webhooks(_) => {
                    watched.labels = Some(format!("app=sidecar-injector,istio.io/rev={}", self.revision()));
                }
                _ => {}
            }
        }
        list
    }

    fn revision(&self) -> &str {
        match self.settings.revision.as_str() {
            "" => "default",
            revision => revision,
        }
    }

    fn tell(&self, notice: &Notice) {
        (self.notice)(notice);
    }
}

/// Slices that somebody else than Kubernetes made of a selector's pods.
const NAMED: &str = "endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io";

/// What must have been seen before anything that is served is whole. Kinds of others may be unknown to the cluster.
const NEEDED: [What; 6] = [
    What::Mesh(Kind::Pod),
    What::Mesh(Kind::Service),
    What::Mesh(Kind::EndpointSlice),
    What::Nodes,
    What::Rules(Source::Namespace),
    What::Rules(Source::ConfigMap),
];

/// Takes events, keeps the plane, the rules and the cluster's copies in step.
struct Follower<'a> {
    cluster: &'a Cluster,
    world: World,
    sources: Sources,
    /// Kinds being listed, with what was listed so far.
    listing: BTreeMap<What, BTreeSet<Key>>,
    complete: BTreeSet<What>,
    rules_stale: bool,
    /// Namespaces that have the roots.
    copied: BTreeSet<String>,
    roots: String,
    said: BTreeMap<What, String>,
}

impl<'a> Follower<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let settings = &cluster.settings;
        let suffix = |name: &str| match settings.revision.as_str() {
            "" => name.to_owned(),
            revision => format!("{name}-{revision}"),
        };
        Self {
            cluster,
            world: World::new(&settings.cluster, &settings.namespace, &settings.domain),
            sources: Sources::new(Names {
                mesh: suffix("istio"),
                injector: suffix("istio-sidecar-injector"),
                revision: settings.revision.clone(),
            }),
            listing: BTreeMap::new(),
            complete: BTreeSet::new(),
            rules_stale: true,
            copied: BTreeSet::new(),
            roots: cluster.plane.roots(),
            said: BTreeMap::new(),
        }
    }

    async fn run(mut self, mut told: mpsc::Receiver<(What, Seen)>) {
        while let Some((what, seen)) = told.recv().await {
            self.take(what, seen).await;
            // A rollout is many changes: they are told as one.
            let end = tokio::time::sleep(TOGETHER);
            tokio::pin!(end);
            loop {
                tokio::select! {
                    () = &mut end => break,
                    more = told.recv() => match more {
                        Some((what, seen)) => self.take(what, seen).await,
                        None => return,
                    },
                }
            }
            self.publish().await;
        }
    }

    async fn take(&mut self, what: What, seen: Seen) {
        match seen {
            Seen::Begin => drop(self.listing.insert(what, BTreeSet::new())),
            Seen::Put(document) => {
                if let Some(listed) = self.listing.get_mut(&what) {
                    listed.insert(key_of(&document));
                }
                self.put(what, *document).await;
            }
            Seen::Gone(key) => self.remove(what, &key),
            Seen::Complete => {
                if let Some(there) = self.listing.remove(&what) {
                    self.retain(what, &there);
                }
                self.complete.insert(what);
                self.said.remove(&what);
            }
            Seen::Failed(why) => {
                if self.said.get(&what) != Some(&why) {
                    self.cluster.tell(&Notice::Unseen {
                        what: named(what).to_owned(),
                        why: why.clone(),
                    });
                    self.said.insert(what, why);
                }
            }
        }
    }

    async fn put(&mut self, what: What, document: Value) {
        match what {
            What::Mesh(kind) => self.world.put(kind, &document),
            What::Rules(source) => self.rules_stale |= self.sources.put(source, document),
            What::Nodes => {
                self.world.put(Kind::Node, &document);
                self.rules_stale |= self.sources.put(Source::Node, document);
            }
            What::Webhooks(admission) => self.trust(admission, &document).await,
        }
    }

    fn remove(&mut self, what: What, key: &Key) {
        match what {
            What::Mesh(kind) => self.world.remove(kind, key),
            What::Rules(source) => {
                self.rules_stale |= self.sources.remove(source, key);
                if source == Source::Namespace {
                    self.copied.remove(&key.1);
                }
            }
            What::Nodes => {
                self.world.remove(Kind::Node, key);
                self.rules_stale |= self.sources.remove(Source::Node, key);
            }
            What::Webhooks(_) => {}
        }
    }

    fn retain(&mut self, what: What, there: &BTreeSet<Key>) {
        match what {
            What::Mesh(kind) => self.world.retain(kind, there),
            What::Rules(source) => self.rules_stale |= self.sources.retain(source, there),
            What::Nodes => {
                self.world.retain(Kind::Node, there);
                self.rules_stale |= self.sources.retain(Source::Node, there);
            }
            What::Webhooks(_) => {}
        }
    }

    /// Tells proxies, webhooks and namespaces what became of it.
    async fn publish(&mut self) {
        for (name, error) in self.cluster.plane.amend(self.world.changes()) {
            self.cluster
                .tell(&Notice::Inexpressible(format!("{name:?}: {error}")));
        }
        if std::mem::take(&mut self.rules_stale) {
            match self.sources.rules() {
                Ok(rules) => self.cluster.webhook.publish(rules),
                Err(error) => self.cluster.tell(&Notice::Kept(error)),
            }
        }
        self.copy_roots().await;
        let whole = NEEDED.iter().all(|what| self.complete.contains(what));
        let first = self
            .cluster
            .ready
            .send_if_modified(|ready| !std::mem::replace(ready, whole) && whole);
        if first {
            self.cluster.tell(&Notice::Ready);
        }
    }

    async fn copy_roots(&mut self) {
        let roots = self.cluster.plane.roots();
        if roots != self.roots {
            self.roots = roots;
            self.copied.clear();
        }
        let missing: Vec<String> = self
            .sources
            .namespaces()
            .filter(|namespace| !self.copied.contains(*namespace))
            .map(str::to_owned)
            .collect();
        for namespace in missing {
            match keep::copy_roots(&self.cluster.client, &namespace, &self.roots).await {
                Ok(()) => drop(self.copied.insert(namespace)),
                Err(error) => self.cluster.tell(&Notice::Unwritten(error)),
            }
        }
    }

    /// Makes the API server trust our certificate.
    async fn trust(&self, admission: Admission, configuration: &Value) {
        let Some(change) = keep::bundles(configuration, &self.roots) else {
            return;
        };
        let (kind, plural) = match admission {
            Admission::Mutating => ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
            Admission::Validating => (
                "ValidatingWebhookConfiguration",
                "validatingwebhookconfigurations",
            ),
        };
        let kind = resource("admissionregistration.k8s.io", "v1", kind, plural);
        let api: Api<DynamicObject> = Api::all_with(self.cluster.client.clone(), &kind);
        let (_, name) = key_of(configuration);
        let Ok(patch) = serde_json::from_value(change) else {
            return;
        };
        let parameters = PatchParams {
            field_manager: Some(OWNER.to_owned()),
            ..PatchParams::default()
        };
        let patched = api.patch(&name, &parameters, &Patch::Json::<()>(patch)).await;
        match patched {
            // Somebody else changed it: the change is seen in a moment, and this is done again.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {}
            Err(source) => self.cluster.tell(&Notice::Unwritten(KeepError::Api {
                doing: format!("write the CA bundle of {name}"),
                source: Box::new(source),
            })),
            Ok(_) => {}
        }
    }
}

fn named(what: What) -> &'static str {
    match what {
        What::Mesh(Kind::Pod) => "pods",
        What::Mesh(Kind::Service) => "services",
        What::Mesh(Kind::EndpointSlice) => "endpoint slices",
        What::Mesh(Kind::Node) | What::Nodes | What::Rules(Source::Node) => "nodes",
        What::Mesh(Kind::AuthorizationPolicy) => "authorization policies",
        What::Mesh(Kind::PeerAuthentication) => "peer authentications",
        What::Rules(Source::Namespace) => "namespaces",
        What::Rules(Source::Instrumentation) => "instrumentations",
        What::Rules(Source::ConfigMap) => "config maps",
        What::Webhooks(Admission::Mutating) => "mutating webhook configurations",
        What::Webhooks(Admission::Validating) => "validating webhook configurations",
    }
}
