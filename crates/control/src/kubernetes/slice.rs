//! Endpoints that are named rather than selected: slices of services without a selector.
//!
//! Slices of services with a selector say again what their pods say themselves, so they are not looked at. An endpoint
//! at a pod's address is that pod; any other is a workload of its own, outside the mesh, one for each namespace that
//! names it. Pure.

use super::service::{self, Service};
use super::world::Key;
use crate::mesh::{Document, Name, Workload};
use remora_pod::{object, view};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Some endpoints of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slice {
    /// Name of the service, in the slice's namespace.
    service: String,
    ports: Vec<Port>,
    endpoints: BTreeMap<IpAddr, Endpoint>,
}

/// A port of the service, by its name there, and where it leads.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Port {
    name: String,
    /// `None`: the same number.
    target: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Endpoint {
    ready: bool,
    node: String,
}

impl Slice {
    /// `None`: it belongs to no service, or its endpoints have no addresses.
    pub(super) fn read(document: &Value) -> Option<Self> {
        // k8s: names instead of addresses are for others than the cluster's own traffic; kube-proxy skips them too.
        if !matches!(document["addressType"].as_str(), Some("IPv4" | "IPv6")) {
            return None;
        }
        let service =
            object::label(document, "kubernetes.io/service-name").filter(|name| !name.is_empty())?;
        let mut endpoints = BTreeMap::new();
        for one in view::list(document, &["endpoints"]) {
            let endpoint = Endpoint {
                // k8s: what is not said is ready.
                ready: one["conditions"]["ready"].as_bool() != Some(false),
                node: view::text(one, &["nodeName"]).unwrap_or_default().to_owned(),
            };
            let addresses = view::list(one, &["addresses"]).iter();
            for address in addresses.filter_map(|text| text.as_str()?.parse().ok()) {
                // Twice in one slice, as while a pod is exchanged: whoever is ready counts.
                let kept = endpoints.entry(address).or_insert_with(|| endpoint.clone());
                if endpoint.ready && !kept.ready {
                    *kept = endpoint.clone();
                }
            }
        }
        Some(Self {
            service: service.to_owned(),
            ports: view::list(document, &["ports"])
                .iter()
                .filter_map(port_of)
                .collect(),
            endpoints,
        })
    }

    /// Where a port of the service leads, by the port's name and number.
    pub(super) fn target(&self, name: &str, number: u16) -> Option<u16> {
        let port = self.ports.iter().find(|port| port.name == name)?;
        Some(port.target.unwrap_or(number))
    }
}

fn port_of(port: &Value) -> Option<Port> {
    if !matches!(port["protocol"].as_str(), None | Some("TCP")) {
        return None;
    }
    Some(Port {
        name: port["name"].as_str().unwrap_or_default().to_owned(),
        target: port["port"]
            .as_u64()
            .and_then(|n| u16::try_from(n).ok())
            .filter(|n| *n > 0),
    })
}

/// What services look like to slices.
pub(super) type Services = BTreeMap<Key, Service>;
/// Services of a workload, with `PORT:TARGET` mappings.
type Membership = BTreeMap<String, Vec<String>>;

/// All slices, and which workloads were told because of them.
#[derive(Debug, Default)]
pub(super) struct Slices {
    known: BTreeMap<Key, Slice>,
    /// Which slices name an address.
    named: BTreeMap<IpAddr, BTreeSet<Key>>,
    /// Addresses that must be looked at again.
    stale: BTreeSet<IpAddr>,
    /// Workloads of their own, by namespace and address.
    told: BTreeMap<(IpAddr, String), String>,
}

impl Slices {
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.known.keys()
    }

    pub(super) fn put(&mut self, key: Key, slice: Slice) {
        if self.known.get(&key) == Some(&slice) {
            return;
        }
        self.remove(&key);
        for address in slice.endpoints.keys() {
            self.named.entry(*address).or_default().insert(key.clone());
            self.stale.insert(*address);
        }
        self.known.insert(key, slice);
    }

    pub(super) fn remove(&mut self, key: &Key) {
        let Some(slice) = self.known.remove(key) else {
            return;
        };
        for address in slice.endpoints.keys() {
            self.stale.insert(*address);
            if let Some(slices) = self.named.get_mut(address) {
                slices.remove(key);
                if slices.is_empty() {
                    self.named.remove(address);
                }
            }
        }
    }

    /// A pod came or went, or has other addresses.
    pub(super) fn touched(&mut self, addresses: &[IpAddr]) {
        let named = addresses
            .iter()
            .filter(|address| self.named.contains_key(*address));
        self.stale.extend(named);
    }

    /// The services of a namespace changed.
    pub(super) fn touched_in(&mut self, namespace: &str) {
        let from = (namespace.to_owned(), String::new());
        let inside = self
            .known
            .range(from..)
            .take_while(|((there, _), _)| there == namespace);
        self.stale
            .extend(inside.flat_map(|(_, slice)| slice.endpoints.keys().copied()));
    }

    /// Addresses to look at again; nothing is stale afterwards.
    pub(super) fn take_stale(&mut self) -> BTreeSet<IpAddr> {
        std::mem::take(&mut self.stale)
    }

    /// The services a pod is behind because slices name its addresses.
    pub(super) fn memberships(&self, addresses: &[IpAddr], services: &Services, domain: &str) -> Membership {
        let mut all = Membership::new();
        for address in addresses {
            for key in self.named.get(address).into_iter().flatten() {
                if let Some(told) = self
                    .membership(key, *address, services, domain)
                    .filter(Told::counts)
                {
                    all.insert(told.service, told.ports);
                }
            }
        }
        all
    }

    /// What became of the workload of an address that no pod has (`free`), or that one has now.
    pub(super) fn outside(
        &mut self,
        address: IpAddr,
        free: bool,
        cluster: &str,
        services: &Services,
        domain: &str,
    ) -> Vec<(Name, Option<Workload>)> {
        let mut wanted: BTreeMap<String, Workload> = BTreeMap::new();
        if free {
            for (namespace, (key, entries)) in self.entries(address, services, domain) {
                wanted.insert(namespace, workload(cluster, &key, address, entries));
            }
        }
        let before: Vec<(IpAddr, String)> = self
            .told
            .range((address, String::new())..)
            .map(|(key, _)| key.clone())
            .take_while(|(other, _)| *other == address)
            .collect();
        let mut changes = Vec::new();
        for key in before {
            let still = wanted.get(&key.1).and_then(|workload| workload.uid.clone());
            let uid = self.told.remove(&key).filter(|uid| Some(uid) != still.as_ref());
            changes.extend(uid.map(|uid| (Name::Address(uid), None)));
        }
        for (namespace, workload) in wanted {
            let uid = workload.uid.clone().unwrap_or_default();
            self.told.insert((address, namespace), uid.clone());
            changes.push((Name::Address(uid), Some(workload)));
        }
        changes
    }

    /// What slices say of an address, by namespace, with the first of the slices.
    fn entries(
        &self,
        address: IpAddr,
        services: &Services,
        domain: &str,
    ) -> BTreeMap<String, (Key, Vec<Told>)> {
        let mut all: BTreeMap<String, (Key, Vec<Told>)> = BTreeMap::new();
        for key in self.named.get(&address).into_iter().flatten() {
            if let Some(told) = self.membership(key, address, services, domain) {
                let (_, entries) = all
                    .entry(key.0.clone())
                    .or_insert_with(|| (key.clone(), Vec::new()));
                entries.push(told);
            }
        }
        all
    }

    fn membership(&self, key: &Key, address: IpAddr, services: &Services, domain: &str) -> Option<Told> {
        let slice = self.known.get(key)?;
        let endpoint = slice.endpoints.get(&address)?;
        let service_key = (key.0.clone(), slice.service.clone());
        let service = services.get(&service_key)?;
        Some(Told {
            ports: service.ports_of(slice)?,
            service: service::key_of(&service_key, domain),
            ready: endpoint.ready,
            anyhow: service.not_ready_too(),
            node: endpoint.node.clone(),
        })
    }
}

/// What a slice says of an address.
struct Told {
    service: String,
    ports: Vec<String>,
    ready: bool,
    /// Whether the service wants those that are not ready as well.
    anyhow: bool,
    node: String,
}

impl Told {
    fn counts(&self) -> bool {
        self.ready || self.anyhow
    }
}

/// A workload that is known by its address only. Where no service wants it, it is behind all of them and unhealthy.
fn workload(cluster: &str, key: &Key, address: IpAddr, entries: Vec<Told>) -> Workload {
    let wanted = entries.iter().any(Told::counts);
    let mut workload = Workload {
        uid: Some(uid(cluster, key, address)),
        addresses: vec![address],
        cluster: cluster.to_owned(),
        healthy: entries.iter().any(|told| told.ready),
        ..Workload::named(&key.1, &key.0)
    };
    for told in entries.into_iter().filter(|told| !wanted || told.counts()) {
        workload.node = told.node;
        workload.services.insert(told.service, told.ports);
    }
    workload
}

// istio: `CLUSTER/GROUP/KIND/NAMESPACE/NAME/ADDRESS`.
fn uid(cluster: &str, (namespace, name): &Key, address: IpAddr) -> String {
    format!("{cluster}/discovery.k8s.io/EndpointSlice/{namespace}/{name}/{address}")
}

/// The documents of changes.
pub(super) fn documents(
    changes: Vec<(Name, Option<Workload>)>,
) -> impl Iterator<Item = (Name, Option<Document>)> {
    changes
        .into_iter()
        .map(|(name, workload)| (name, workload.map(Document::Workload)))
}
