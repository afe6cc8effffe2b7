//! A control plane fed by a cluster: discovery, certificates, webhooks, and what they keep there.

use super::follower::Follower;
use super::keep::{self, KeepError};
use super::keeper::{Keeper, Orders};
use super::policies::Report;
use super::root::Waits;
use super::sources::{Source, SourceError};
use super::status_writer::{Pending, StatusWriter};
use super::tokens::Reviewed;
use super::watch::{Watched, resource};
use super::world::Kind;
use crate::chain::Chain;
use crate::plane::{self, Plane, PlaneError};
use crate::webhook::{Limits, Rules, Webhook};
use kube::api::ApiResource;
use remora_mtls::{InvalidSpiffeId, TrustDomains};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How long a second root is believed before it signs: sidecars learn roots with their certificates.
const INTRODUCED: Duration = Duration::from_hours(24);

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
    /// A policy is not enforced as written.
    Policy(Report),
    /// Something could not be written; it is tried again.
    Unwritten(KeepError),
    /// The status conditions of a kind of policies cannot be written. The policies are enforced all the same.
    StatusNotWritten {
        /// Which kind.
        kind: Kind,
        /// What the API server said.
        why: String,
    },
    /// Everything was seen once.
    Ready,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unseen { what, why } => write!(f, "cannot see {what}: {why}"),
            Self::Kept(error) => write!(f, "keeping the rules of before: {}", Chain(error)),
            Self::Served(what) | Self::Trouble(what) | Self::Inexpressible(what) => f.write_str(what),
            Self::Policy(report) => report.fmt(f),
            Self::Unwritten(error) => Chain(error).fmt(f),
            Self::StatusNotWritten { kind, why } => {
                write!(
                    f,
                    "cannot write the status of {}: {why}",
                    named(What::Mesh(*kind))
                )
            }
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
pub(super) enum What {
    Mesh(Kind),
    Rules(Source),
    /// Nodes are both.
    Nodes,
    Webhooks(Admission),
    /// The Secret of the root certificate.
    Root,
    /// What every namespace has of it.
    Copies,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Admission {
    Mutating,
    Validating,
}

/// A control plane of a cluster.
pub struct Cluster {
    client: kube::Client,
    pub(super) settings: Settings,
    /// The trust domain of the settings, without the aliases that only `MeshConfig` knows.
    pub(super) trust_domains: TrustDomains,
    plane: Arc<Plane>,
    webhook: Arc<Webhook>,
    notice: Arc<dyn Fn(&Notice) + Send + Sync>,
    pub(super) ready: watch::Sender<bool>,
}

/// The control plane cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The root certificate.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// The name of the trust domain.
    #[error("use the trust domain")]
    TrustDomain(#[from] InvalidSpiffeId),
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
        let trust_domains = TrustDomains::new::<&str>(&settings.plane.trust_domain, &[])?;
        let authority = keep::authority(&client, &settings.namespace).await?;
        let tokens = Arc::new(Reviewed::new(client.clone(), &settings.plane.trust_domain));
        let told = Arc::clone(&notice);
        let mut plane = Plane::new(
            authority,
            tokens,
            settings.plane.clone(),
            move |said: &plane::Notice| {
                let text = said.to_string();
                told(&match said {
                    plane::Notice::Mesh { .. } => Notice::Served(text),
                    plane::Notice::Kept(_) | plane::Notice::Policy(_) | plane::Notice::Refused { .. } => {
                        Notice::Trouble(text)
                    }
                });
            },
        )?;
        // istio: the account of its proxies of nodes, beside the control plane.
        plane.node_proxies(vec![format!("{}/ztunnel", settings.namespace)]);
        Ok(Self {
            client,
            settings,
            trust_domains,
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
        let mut tasks: Vec<_> = self
            .watched()
            .into_iter()
            .map(|watched| tokio::spawn(watched.follow(self.client.clone(), tell.clone())))
            .collect();
        drop(tell);
        let (orders, taken) = mpsc::unbounded_channel();
        tasks.push(tokio::spawn(self.keeper().run(taken)));
        let verdicts = Arc::new(Pending::default());
        let writer = StatusWriter::new(
            self.client.clone(),
            Arc::clone(&self.notice),
            Arc::clone(&verdicts),
        );
        tasks.push(tokio::spawn(writer.run()));
        Follower::new(self, Orders(orders), verdicts).run(told).await;
        for task in tasks {
            task.abort();
        }
    }

    fn keeper(&self) -> Keeper {
        let waits = Waits {
            introduced: INTRODUCED.max(self.settings.plane.certificate_life),
            switched: self.settings.plane.longest_certificate_life,
        };
        Keeper::new(
            self.client.clone(),
            &self.settings.namespace,
            Arc::clone(&self.plane),
            Arc::clone(&self.notice),
            waits,
            crate::install::role(&self.settings.revision, &self.settings.namespace),
        )
    }

    fn watched(&self) -> Vec<Watched<What>> {
        let all = |what, group, version, kind, plural| Watched {
            what,
            resource: resource(group, version, kind, plural),
            namespace: None,
            labels: None,
            name: None,
        };
        let policies = |kind| Watched {
            what: What::Mesh(kind),
            resource: policy_resource(kind),
            namespace: None,
            labels: None,
            name: None,
        };
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
            policies(Kind::AuthorizationPolicy),
            policies(Kind::PeerAuthentication),
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
            all(What::Root, "", "v1", "Secret", "secrets"),
            all(What::Copies, "", "v1", "ConfigMap", "configmaps"),
        ];
        for watched in &mut list {
            match watched.what {
                What::Rules(Source::ConfigMap) => watched.namespace = Some(self.settings.namespace.clone()),
                What::Root => {
                    watched.namespace = Some(self.settings.namespace.clone());
                    watched.name = Some(keep::SECRET);
                }
                What::Copies => watched.name = Some(keep::COPY),
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

    pub(super) fn tell(&self, notice: &Notice) {
        (self.notice)(notice);
    }
}

/// The API of a kind of policies.
pub(super) fn policy_resource(kind: Kind) -> ApiResource {
    let (kind, plural) = match kind {
        Kind::PeerAuthentication => ("PeerAuthentication", "peerauthentications"),
        _ => ("AuthorizationPolicy", "authorizationpolicies"),
    };
    resource("security.istio.io", "v1", kind, plural)
}

/// Slices that somebody else than Kubernetes made of a selector's pods.
const NAMED: &str = "endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io";

pub(super) fn named(what: What) -> &'static str {
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
        What::Root => "the secret of the root certificate",
        What::Copies => "copies of the root certificate",
        What::Webhooks(Admission::Mutating) => "mutating webhook configurations",
        What::Webhooks(Admission::Validating) => "validating webhook configurations",
    }
}
