//! A cluster as proxies must know it, kept up to date object by object.
//!
//! Objects come as JSON in any order and any number of times; [`World::changes`] gives the documents that became
//! different since it was asked last. Of an object only what matters is kept. A pod is looked at again when
//! something it depends on changes: services and policies of its namespace, policies of the root namespace, its node,
//! slices that name its address.
//!
//! Pure: whoever watches the API server feeds it.

use super::pod::{self, Pod};
use super::pods::{Place, Pods};
use super::policies::{Affected, Changes, Policies, Report};
use super::service::{self, Service};
use super::shared::Shared;
use super::slice::{self, Slice, Slices};
use super::status_writer::Verdicts;
use crate::mesh::{Document, Name, Workload};
use crate::policy::Mesh;
use remora_mtls::TrustDomains;
use remora_pod::object;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Pods.
    Pod,
    /// Services.
    Service,
    /// Endpoints of services without a selector.
    EndpointSlice,
    /// Nodes, for where pods are.
    Node,
    /// Who may connect.
    AuthorizationPolicy,
    /// Who must show a certificate.
    PeerAuthentication,
}

/// `NAMESPACE`, `NAME`; the namespace of a node is empty.
pub type Key = (String, String);

/// Where a node is: region, zone, subzone.
type Locality = Vec<String>;

/// A cluster.
#[derive(Debug)]
pub struct World {
    /// What uids of workloads begin with.
    cluster: String,
    domain: String,
    pods: Pods,
    shared: Shared,
    services: BTreeMap<Key, Service>,
    slices: Slices,
    nodes: HashMap<String, Locality>,
    policies: Policies,
    /// Namespaces whose pods must be looked at again, and single pods.
    stale_namespaces: BTreeSet<String>,
    stale_pods: BTreeSet<Place>,
    changed: BTreeMap<Name, Option<Document>>,
}

impl World {
    /// An empty cluster, called so. Policies of the root namespace are everybody's.
    pub fn new(cluster: &str, root_namespace: &str, domain: &str, trust_domains: TrustDomains) -> Self {
        let mesh = Mesh {
            root_namespace: root_namespace.to_owned(),
            trust_domains,
        };
        Self {
            cluster: cluster.to_owned(),
            domain: domain.to_owned(),
            pods: Pods::default(),
            shared: Shared::default(),
            services: BTreeMap::new(),
            slices: Slices::default(),
            nodes: HashMap::new(),
            policies: Policies::new(mesh),
            stale_namespaces: BTreeSet::new(),
            stale_pods: BTreeSet::new(),
            changed: BTreeMap::new(),
        }
    }

    /// An object is there, new or changed.
    pub fn put(&mut self, kind: Kind, document: &Value) {
        let key = key_of(document);
        match kind {
            Kind::Pod => match Pod::read(document, &mut self.shared) {
                Some(pod) => self.put_pod(&key, pod),
                None => self.remove(kind, &key),
            },
            Kind::Service => match Service::read(document) {
                Some(service) => self.put_service(key, service),
                None => self.remove(kind, &key),
            },
            Kind::EndpointSlice => match Slice::read(document) {
                Some(slice) => self.slices.put(key, slice),
                None => self.slices.remove(&key),
            },
            Kind::Node => self.put_node(key.1, pod::locality_of(document)),
            Kind::AuthorizationPolicy => {
                let update = self.policies.put_authorization(key, document);
                self.policies_changed(update);
            }
            Kind::PeerAuthentication => {
                let affected = self.policies.put_peer(key, document);
                self.policies_changed((Changes::new(), affected));
            }
        }
    }

    /// An object is gone.
    pub fn remove(&mut self, kind: Kind, key: &Key) {
        match kind {
            Kind::Pod => {
                if let Some(pod) = self.pods.remove(key) {
                    self.slices.touched(&pod.addresses);
                    let uid = pod::uid(&self.cluster, &key.0, &key.1);
                    self.changed.insert(Name::Address(uid), None);
                }
            }
            Kind::Service => {
                if self.services.remove(key).is_some() {
                    let name = service::key_of(key, &self.domain);
                    self.changed.insert(Name::Address(name), None);
                    self.stale_namespaces.insert(key.0.clone());
                }
            }
            Kind::EndpointSlice => self.slices.remove(key),
            Kind::Node => self.put_node(key.1.clone(), Locality::new()),
            Kind::AuthorizationPolicy | Kind::PeerAuthentication => {
                let update = self.policies.remove(kind, key);
                self.policies_changed(update);
            }
        }
    }

    /// All objects of a kind are these: whatever else was known is gone. For the start of a watch, and after a gap.
    pub fn retain(&mut self, kind: Kind, there: &BTreeSet<Key>) {
        let known: Vec<Key> = match kind {
            Kind::Pod => {
                let all = self.pods.iter();
                all.map(|(namespace, name, _)| (namespace.to_string(), name.to_string()))
                    .collect()
            }
            Kind::Service => self.services.keys().cloned().collect(),
            Kind::EndpointSlice => self.slices.keys().cloned().collect(),
            Kind::Node => self
                .nodes
                .keys()
                .map(|name| (String::new(), name.clone()))
                .collect(),
            Kind::AuthorizationPolicy | Kind::PeerAuthentication => self.policies.keys(kind),
        };
        for key in known.into_iter().filter(|key| !there.contains(key)) {
            self.remove(kind, &key);
        }
    }

    fn put_pod(&mut self, key: &Key, pod: Pod) {
        let before = self.pods.get(&key.0, &key.1);
        if before == Some(&pod) {
            return;
        }
        if before.is_none_or(|before| before.addresses != pod.addresses || before.shared != pod.shared) {
            self.slices
                .touched(before.map_or(&[], |before| &before.addresses));
            self.slices.touched(&pod.addresses);
        }
        let place = self.pods.insert(key, pod);
        if !self.stale_namespaces.contains(&*place.0) {
            self.stale_pods.insert(place);
        }
    }

    fn put_service(&mut self, key: Key, service: Service) {
        if self.services.get(&key) == Some(&service) {
            return;
        }
        let document = Document::Service(service.document(&key, &self.domain));
        self.changed.insert(document.name(), Some(document));
        self.stale_namespaces.insert(key.0.clone());
        self.services.insert(key, service);
    }

    fn put_node(&mut self, name: String, locality: Locality) {
        let before = self.nodes.get(&name);
        if before == Some(&locality) || (before.is_none() && locality.is_empty()) {
            return;
        }
        let there = self.pods.iter().filter(|(_, _, pod)| *pod.node == *name);
        self.stale_pods
            .extend(there.map(|(namespace, name, _)| (Arc::clone(namespace), Arc::clone(name))));
        if locality.is_empty() {
            self.nodes.remove(&name);
        } else {
            self.nodes.insert(name, locality);
        }
    }

    fn policies_changed(&mut self, (changes, affected): (Changes, Affected)) {
        self.changed.extend(changes);
        match affected {
            Affected::Nothing => {}
            Affected::Namespace(namespace) => drop(self.stale_namespaces.insert(namespace)),
            Affected::Everything => self.stale_namespaces.extend(self.pods.namespaces()),
        }
    }

    /// The trust domain of the mesh and its aliases are these from now on.
    pub fn trust(&mut self, trust_domains: TrustDomains) {
        for update in self.policies.trust(trust_domains) {
            self.policies_changed(update);
        }
    }

    /// Policies that were seen for the first time or changed since the last call, with what is not enforced as
    /// written.
    #[must_use = "what is not taken is forgotten"]
    pub fn reports(&mut self) -> Vec<Report> {
        self.policies.reports()
    }

    /// Policies that were seen or removed since the last call, with what their status says and must say.
    #[must_use = "what is not taken is forgotten"]
    pub(super) fn verdicts(&mut self) -> Verdicts {
        self.policies.verdicts()
    }

    /// What became different since the last time, with its name; a name may come twice, and then the last counts.
    /// Documents are made as they are asked for: there is no second cluster in memory.
    #[must_use = "what is not taken is forgotten"]
    pub fn changes(&mut self) -> impl Iterator<Item = (Name, Option<Document>)> {
        for namespace in &self.stale_namespaces {
            self.slices.touched_in(namespace);
        }
        self.settle_slices();
        self.changed.extend(self.policies.settle());
        let changed = std::mem::take(&mut self.changed);
        let whole = std::mem::take(&mut self.stale_namespaces);
        let mut single = std::mem::take(&mut self.stale_pods);
        single.retain(|(namespace, _)| !whole.contains(&**namespace));
        let world = &*self;
        let inside = whole.into_iter().flat_map(move |namespace| {
            let pods = world.pods.inside(&namespace);
            pods.map(|(name, pod)| world.workload(&namespace, name, pod))
                .collect::<Vec<_>>()
        });
        let single = single.into_iter().filter_map(move |(namespace, name)| {
            // It may be gone by now.
            let pod = world.pods.get(&namespace, &name)?;
            Some(world.workload(&namespace, &name, pod))
        });
        let workloads = inside.chain(single).map(|workload| {
            let document = Document::Workload(workload);
            (document.name(), Some(document))
        });
        changed.into_iter().chain(workloads)
    }

    /// Addresses that slices name: of pods, which are behind other services now, or of nobody here.
    fn settle_slices(&mut self) {
        let stale = self.slices.take_stale();
        if stale.is_empty() {
            return;
        }
        let mut held = BTreeSet::new();
        for (namespace, name, pod) in self.pods.iter().filter(|(_, _, pod)| !pod.shared) {
            for address in pod.addresses.iter().filter(|address| stale.contains(*address)) {
                held.insert(*address);
                self.stale_pods.insert((Arc::clone(namespace), Arc::clone(name)));
            }
        }
        for address in stale {
            let free = !held.contains(&address);
            let mut changes = self
                .slices
                .outside(address, free, &self.cluster, &self.services, &self.domain);
            for (_, workload) in &mut changes {
                if let Some(workload) = workload
                    && let Some(locality) = self.nodes.get(&workload.node)
                {
                    locality.clone_into(&mut workload.locality);
                }
            }
            self.changed.extend(slice::documents(changes));
        }
    }

    fn workload(&self, namespace: &str, name: &str, pod: &Pod) -> Workload {
        let mut workload = pod.document(&self.cluster, namespace, name);
        if let Some(locality) = self.nodes.get(&*pod.node) {
            locality.clone_into(&mut workload.locality);
        }
        let from = (namespace.to_owned(), String::new());
        let services = self
            .services
            .range(from..)
            .take_while(|((there, _), _)| there == namespace);
        for (service_key, service) in services {
            if let Some(ports) = service.ports_on(pod) {
                let name = service::key_of(service_key, &self.domain);
                workload.services.insert(name, ports);
            }
        }
        if !pod.shared {
            let named = self
                .slices
                .memberships(&pod.addresses, &self.services, &self.domain);
            workload.services.extend(named);
        }
        let demand = self.policies.demand(namespace, &pod.labels);
        workload.policies = demand.policies;
        workload.strict_by = demand.strict_by;
        workload
    }
}

pub(super) fn key_of(document: &Value) -> Key {
    (
        object::namespace(document).to_owned(),
        object::name(document).to_owned(),
    )
}

#[cfg(test)]
#[path = "world_tests.rs"]
mod tests;
