//! Takes what happens in a cluster and keeps discovery and the webhooks' rules in step.

use super::keeper::{Order, Orders};
use super::plane::{Cluster, Notice, What, named};
use super::policies::document_name;
use super::sources::{Names, Source, Sources};
use super::status_writer::Pending;
use super::watch::Seen;
use super::world::{Key, Kind, World, key_of};
use crate::mesh::Name;
use crate::policy::Mesh;
use remora_mtls::TrustDomains;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Changes that come together are told together.
const TOGETHER: Duration = Duration::from_millis(50);

/// What must have been seen before anything that is served is whole. Kinds of others may be unknown to the cluster.
const NEEDED: [What; 6] = [
    What::Mesh(Kind::Pod),
    What::Mesh(Kind::Service),
    What::Mesh(Kind::EndpointSlice),
    What::Nodes,
    What::Rules(Source::Namespace),
    What::Rules(Source::ConfigMap),
];

/// Takes events, keeps the plane and the rules in step, and has others written.
pub(super) struct Follower<'a> {
    cluster: &'a Cluster,
    world: World,
    sources: Sources,
    /// Kinds being listed, with what was listed so far.
    listing: BTreeMap<What, BTreeSet<Key>>,
    complete: BTreeSet<What>,
    rules_stale: bool,
    /// Whether there are rules.
    usable: bool,
    /// What is wrong with the config maps, as it was told.
    mistake: String,
    orders: Orders,
    /// Where verdicts for the status of policies go.
    verdicts: Arc<Pending>,
    /// Policies that cannot be expressed: proxies do not have them as written.
    inexpressible: BTreeSet<Name>,
    said: BTreeMap<What, String>,
}

impl<'a> Follower<'a> {
    pub(super) fn new(cluster: &'a Cluster, orders: Orders, verdicts: Arc<Pending>) -> Self {
        let settings = &cluster.settings;
        let suffix = |name: &str| match settings.revision.as_str() {
            "" => name.to_owned(),
            revision => format!("{name}-{revision}"),
        };
        Self {
            cluster,
            world: World::new(
                &settings.cluster,
                &settings.namespace,
                &settings.domain,
                cluster.trust_domains.clone(),
            ),
            sources: Sources::new(Names {
                mesh: suffix("istio"),
                injector: suffix("istio-sidecar-injector"),
                revision: settings.revision.clone(),
            }),
            listing: BTreeMap::new(),
            complete: BTreeSet::new(),
            rules_stale: true,
            usable: false,
            mistake: String::new(),
            orders,
            verdicts,
            inexpressible: BTreeSet::new(),
            said: BTreeMap::new(),
        }
    }

    pub(super) async fn run(mut self, mut told: mpsc::Receiver<(What, Seen)>) {
        while let Some((what, seen)) = told.recv().await {
            self.take(what, seen);
            // A rollout is many changes: they are told as one.
            let end = tokio::time::sleep(TOGETHER);
            tokio::pin!(end);
            loop {
                tokio::select! {
                    () = &mut end => break,
                    more = told.recv() => match more {
                        Some((what, seen)) => self.take(what, seen),
                        None => return,
                    },
                }
            }
            self.publish();
        }
    }

    fn take(&mut self, what: What, seen: Seen) {
        match seen {
            Seen::Begin => drop(self.listing.insert(what, BTreeSet::new())),
            Seen::Put(document) => {
                if let Some(listed) = self.listing.get_mut(&what) {
                    listed.insert(key_of(&document));
                }
                self.put(what, *document);
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
                if what == What::Copies {
                    // Then they are written unseen.
                    self.orders.send(Order::UnseenCopies);
                }
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

    fn put(&mut self, what: What, document: Value) {
        match what {
            What::Mesh(kind) => self.world.put(kind, &document),
            What::Rules(source) => {
                if source == Source::Namespace {
                    self.orders.send(Order::Namespace(key_of(&document).1));
                }
                self.rules_stale |= self.sources.put(source, document);
            }
            What::Nodes => {
                self.world.put(Kind::Node, &document);
                self.rules_stale |= self.sources.put(Source::Node, document);
            }
            What::Webhooks(admission) => self.orders.send(Order::Webhook(admission, document)),
            What::Root => self.orders.send(Order::Root(document)),
            What::Copies => self.orders.send(Order::Copy(document)),
        }
    }

    fn remove(&mut self, what: What, key: &Key) {
        match what {
            What::Mesh(kind) => self.world.remove(kind, key),
            What::Rules(source) => {
                self.rules_stale |= self.sources.remove(source, key);
                if source == Source::Namespace {
                    self.orders.send(Order::NoNamespace(key.1.clone()));
                }
            }
            What::Nodes => {
                self.world.remove(Kind::Node, key);
                self.rules_stale |= self.sources.remove(Source::Node, key);
            }
            What::Webhooks(admission) => self.orders.send(Order::NoWebhook(admission, key.1.clone())),
            What::Root => self.orders.send(Order::NoRoot),
            What::Copies => self.orders.send(Order::NoCopy(key.0.clone())),
        }
    }

    fn retain(&mut self, what: What, there: &BTreeSet<Key>) {
        match what {
            What::Mesh(kind) => self.world.retain(kind, there),
            What::Rules(source) => {
                if source == Source::Namespace {
                    let names = there.iter().map(|(_, name)| name.clone()).collect();
                    self.orders.send(Order::Namespaces(names));
                }
                self.rules_stale |= self.sources.retain(source, there);
            }
            What::Nodes => {
                self.world.retain(Kind::Node, there);
                self.rules_stale |= self.sources.retain(Source::Node, there);
            }
            What::Copies => {
                let namespaces = there.iter().map(|(namespace, _)| namespace.clone()).collect();
                self.orders.send(Order::Copies(namespaces));
            }
            What::Root if there.is_empty() => self.orders.send(Order::NoRoot),
            What::Root => {}
            What::Webhooks(admission) => {
                let names = there.iter().map(|(_, name)| name.clone()).collect();
                self.orders.send(Order::Webhooks(admission, names));
            }
        }
    }

    /// Tells proxies, webhooks and namespaces what became of it.
    fn publish(&mut self) {
        // Before all config maps were seen they say nothing about what is meant.
        let known = self.complete.contains(&What::Rules(Source::ConfigMap));
        if known && std::mem::take(&mut self.rules_stale) {
            self.publish_rules();
        }
        let inexpressible = &mut self.inexpressible;
        let changes = self.world.changes();
        let changes = changes.inspect(|(name, _)| {
            inexpressible.remove(name);
        });
        for (name, error) in self.cluster.plane().amend(changes) {
            self.cluster
                .tell(&Notice::Inexpressible(format!("{name:?}: {error}")));
            self.inexpressible.insert(name);
        }
        for report in self.world.reports() {
            if !report.problems.is_empty() {
                self.cluster.tell(&Notice::Policy(report));
            }
        }
        // Before the mesh configuration is known, its trust domain aliases are not.
        if self.usable {
            self.publish_verdicts();
        }
        // Config maps that could never be used: pods must not get a sidecar that nobody described.
        let whole = self.usable && NEEDED.iter().all(|what| self.complete.contains(what));
        let first = self
            .cluster
            .ready
            .send_if_modified(|ready| !std::mem::replace(ready, whole) && whole);
        if first {
            self.cluster.tell(&Notice::Ready);
        }
    }

    fn publish_verdicts(&mut self) {
        let mut verdicts = self.world.verdicts();
        verdicts.retain(|(kind, key), verdict| {
            // Its status must not say that it is enforced.
            verdict.is_none() || !self.inexpressible.contains(&document_name(*kind, key))
        });
        self.verdicts.add(verdicts);
    }

    fn publish_rules(&mut self) {
        let (rules, wrong) = self.sources.rules();
        if let Some(mut rules) = rules {
            let aliases = &rules.settings.mesh.document()["trustDomainAliases"];
            let trust_domains = with_aliases(&self.cluster.trust_domains, aliases);
            self.world.trust(trust_domains.clone());
            rules.policies = Mesh {
                root_namespace: self.cluster.settings.namespace.clone(),
                trust_domains,
            };
            self.cluster.webhook().publish(rules);
            self.usable = true;
        }
        let wrong = wrong.map(Notice::Kept);
        let text = wrong.as_ref().map(Notice::to_string).unwrap_or_default();
        if let Some(wrong) = wrong.filter(|_| text != self.mistake) {
            self.cluster.tell(&wrong);
        }
        self.mistake = text;
    }
}

/// The aliases of `MeshConfig`. One that is no trust domain is left out: no certificate can name it.
fn with_aliases(own: &TrustDomains, aliases: &Value) -> TrustDomains {
    let listed = aliases.as_array().into_iter().flatten().filter_map(Value::as_str);
    let sound: Vec<&str> = listed
        .filter(|alias| TrustDomains::new(own.own(), &[alias]).is_ok())
        .collect();
    TrustDomains::new(own.own(), &sound).unwrap_or_else(|_| own.clone())
}
