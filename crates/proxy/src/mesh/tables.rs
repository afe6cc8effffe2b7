//! The tables behind a [`super::Mesh`], kept consistent under every change.

use super::hosts;
use super::read::ReadError;
use super::{Destination, Service, Workload};
use crate::balance::{Endpoint, Load};
use crate::policy::{self, Connection, Ground, Judgement, Part, Policy, Scope, Verdict};
use remora_xds::Message;
use remora_xds::proto::security::{Authorization, Scope as ProtoScope};
use remora_xds::proto::workload::Address;
use remora_xds::proto::workload::address::Type;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// A workload, and what is remembered of its ports.
#[derive(Debug)]
struct Known {
    workload: Arc<Workload>,
    loads: BTreeMap<u16, Arc<Load>>,
}

type Ports = BTreeMap<u16, Arc<[Endpoint]>>;

#[derive(Debug)]
pub(super) struct Tables {
    /// Policies of this namespace may be for all workloads.
    root_namespace: String,
    workloads: HashMap<String, Known>,
    pub(super) services: HashMap<String, Arc<Service>>,
    by_address: HashMap<IpAddr, String>,
    by_service_address: HashMap<IpAddr, String>,
    /// Keys of services by host name in small letters: several namespaces may describe one host.
    pub(super) by_hostname: HashMap<String, BTreeSet<String>>,
    /// Workloads of a service, in order of uid.
    pub(super) members: HashMap<String, BTreeSet<String>>,
    /// Endpoints of a service by port, made from the tables above.
    endpoints: HashMap<String, Ports>,
    /// Services whose endpoints have to be made again.
    stale: BTreeSet<String>,
    policies: BTreeMap<String, Policy>,
    /// Never understood, with the workloads that are closed because of it.
    broken: BTreeMap<String, Broken>,
    /// By uid of a workload, the `PeerAuthentication` that requires mutual TLS and is not enforced as written.
    strict_by: HashMap<String, String>,
}

/// A policy that was never understood.
#[derive(Debug)]
struct Broken {
    reach: Reach,
    why: String,
}

// istio: the name of the policy that requires mutual TLS, the same for all workloads.
const STATIC_STRICT: &str = "/istio_converted_static_strict";

/// The workloads a policy that is not understood may have been meant for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reach {
    Everything,
    Namespace(String),
    /// Those that name it.
    Named,
}

impl Reach {
    /// The scope decides, if it can be read. Otherwise the namespace does, which the name of the resource begins with.
    fn of(name: &str, message: Option<&Authorization>, root_namespace: &str) -> Self {
        let scope = message.and_then(|message| ProtoScope::try_from(message.scope).ok());
        let namespace = message
            .map(|message| message.namespace.as_str())
            .filter(|namespace| !namespace.is_empty())
            .or_else(|| name.split_once('/').map(|(namespace, _)| namespace))
            .filter(|namespace| !namespace.is_empty());
        match (scope, namespace) {
            (Some(ProtoScope::WorkloadSelector), _) => Self::Named,
            (Some(ProtoScope::Namespace), Some(namespace)) => Self::Namespace(namespace.to_owned()),
            // Without a scope it may be global where its namespace may be the root namespace.
            (None, Some(namespace)) if ![root_namespace, USUAL_ROOT].contains(&namespace) => {
                Self::Namespace(namespace.to_owned())
            }
            _ => Self::Everything,
        }
    }

    fn contains(&self, name: &str, workload: &Workload) -> bool {
        // A workload that names it is closed in any case.
        workload.policies.iter().any(|named| named == name)
            || match self {
                Self::Everything => true,
                Self::Namespace(namespace) => *namespace == workload.namespace,
                Self::Named => false,
            }
    }
}

// istio: the root namespace unless another is configured. It counts in any case: where the sidecar took the control
// plane's namespace for the root namespace, that may be a guess.
pub(super) const USUAL_ROOT: &str = "istio-system";

impl Tables {
    pub(super) fn new(root_namespace: &str) -> Self {
        Self {
            root_namespace: root_namespace.to_owned(),
            workloads: HashMap::new(),
            services: HashMap::new(),
            by_address: HashMap::new(),
            by_service_address: HashMap::new(),
            by_hostname: HashMap::new(),
            members: HashMap::new(),
            endpoints: HashMap::new(),
            stale: BTreeSet::new(),
            policies: BTreeMap::new(),
            broken: BTreeMap::new(),
            strict_by: HashMap::new(),
        }
    }

    pub(super) fn address(&mut self, name: &str, bytes: &[u8]) -> Result<(), ReadError> {
        let message = Address::decode(bytes).map_err(|_| ReadError::Decode)?;
        match message.r#type.ok_or(ReadError::Empty)? {
            Type::Workload(mut message) => {
                let strict_by = std::mem::take(&mut message.strict_by);
                let workload = Workload::new(message)?;
                let loads = self.remove_address(name);
                self.insert_workload(name, workload, loads);
                if !strict_by.is_empty() {
                    self.strict_by.insert(name.to_owned(), strict_by);
                }
            }
            Type::Service(message) => {
                let service = Service::new(message)?;
                self.remove_address(name);
                self.insert_service(name, service);
            }
        }
        Ok(())
    }

    fn insert_workload(&mut self, name: &str, workload: Workload, loads: BTreeMap<u16, Arc<Load>>) {
        if !workload.host_network {
            for address in &workload.addresses {
                // An address that is used again belongs to whom discovery named last.
                self.by_address.insert(*address, name.to_owned());
            }
        }
        for service in workload.services.keys() {
            let members = self.members.entry(service.clone()).or_default();
            members.insert(name.to_owned());
            self.stale.insert(service.clone());
        }
        let workload = Arc::new(workload);
        self.workloads.insert(name.to_owned(), Known { workload, loads });
    }

    fn insert_service(&mut self, name: &str, service: Service) {
        for address in &service.addresses {
            self.by_service_address.insert(*address, name.to_owned());
        }
        let named = self
            .by_hostname
            .entry(hosts::normal(&service.hostname))
            .or_default();
        named.insert(name.to_owned());
        self.stale.insert(service.key.clone());
        self.services.insert(name.to_owned(), Arc::new(service));
    }

    /// Gives what is remembered of a workload, for whoever takes its place.
    pub(super) fn remove_address(&mut self, name: &str) -> BTreeMap<u16, Arc<Load>> {
        if let Some(old) = self.services.remove(name) {
            self.forget_service(name, &old);
        }
        let Some(Known { workload, loads }) = self.workloads.remove(name) else {
            return BTreeMap::new();
        };
        self.strict_by.remove(name);
        for address in &workload.addresses {
            if self.by_address.get(address).is_some_and(|owner| owner == name) {
                self.by_address.remove(address);
            }
        }
        for service in workload.services.keys() {
            if let Some(members) = self.members.get_mut(service) {
                members.remove(name);
            }
            self.stale.insert(service.clone());
        }
        loads
    }

    fn forget_service(&mut self, name: &str, old: &Service) {
        for address in &old.addresses {
            let owner = self.by_service_address.get(address);
            if owner.is_some_and(|owner| owner == name) {
                self.by_service_address.remove(address);
            }
        }
        let hostname = hosts::normal(&old.hostname);
        if let Some(named) = self.by_hostname.get_mut(&hostname) {
            named.remove(name);
            if named.is_empty() {
                self.by_hostname.remove(&hostname);
            }
        }
        self.stale.insert(old.key.clone());
    }

    /// Makes the endpoints of services that changed. Once after many changes: a service may have many workloads.
    pub(super) fn settle(&mut self) {
        for key in std::mem::take(&mut self.stale) {
            let ports = self.made(&key);
            if ports.is_empty() {
                self.endpoints.remove(&key);
            } else {
                self.endpoints.insert(key, ports);
            }
        }
    }

    fn made(&mut self, key: &str) -> Ports {
        let declared = self
            .services
            .get(key)
            .map(|s| s.ports.clone())
            .unwrap_or_default();
        let target = |port: u16| declared.iter().find(|p| p.port == port).map_or(0, |p| p.target);
        let mut ports: BTreeMap<u16, Vec<Endpoint>> = BTreeMap::new();
        for uid in self.members.get(key).into_iter().flatten() {
            let Some(known) = self.workloads.get_mut(uid) else {
                continue;
            };
            let workload = Arc::clone(&known.workload);
            let mut add = |port: u16, own: u16| {
                let own = if own == 0 { target(port) } else { own };
                let load = Arc::clone(known.loads.entry(own).or_default());
                ports.entry(port).or_default().push(Endpoint {
                    workload: Arc::clone(&workload),
                    port: own,
                    load,
                });
            };
            match workload.services.get(key).map(Vec::as_slice) {
                // It takes the service's ports as they are.
                None | Some([]) => declared.iter().for_each(|p| add(p.port, 0)),
                Some(own) => own.iter().for_each(|(port, own)| add(*port, *own)),
            }
        }
        ports
            .into_iter()
            .map(|(port, list)| (port, list.into()))
            .collect()
    }

    pub(super) fn policy(&mut self, name: &str, bytes: &[u8]) -> Result<(), ReadError> {
        let message = Authorization::decode(bytes).ok();
        let reach = Reach::of(name, message.as_ref(), &self.root_namespace);
        let read = message
            .ok_or(ReadError::Decode)
            .and_then(|message| Ok(Policy::new(message)?));
        match read {
            Ok(policy) => {
                self.broken.remove(name);
                self.policies.insert(name.to_owned(), policy);
                Ok(())
            }
            Err(error) => {
                if !self.policies.contains_key(name) {
                    let why = error.to_string();
                    self.broken.insert(name.to_owned(), Broken { reach, why });
                }
                Err(error)
            }
        }
    }

    pub(super) fn remove_policy(&mut self, name: &str) {
        self.policies.remove(name);
        self.broken.remove(name);
    }

    pub(super) fn workload(&self, address: IpAddr) -> Option<Arc<Workload>> {
        self.by_uid(self.by_address.get(&address)?)
    }

    pub(super) fn by_uid(&self, uid: &str) -> Option<Arc<Workload>> {
        self.workloads.get(uid).map(|known| Arc::clone(&known.workload))
    }

    pub(super) fn service(&self, key: &str) -> Option<Arc<Service>> {
        self.services.get(key).cloned()
    }

    /// The service with a DNS name; of several, the one of a namespace, else the first by key.
    pub(super) fn service_named(&self, hostname: &str, namespace: &str) -> Option<Arc<Service>> {
        let mut found = self
            .by_hostname
            .get(&hosts::normal(hostname))?
            .iter()
            .filter_map(|key| self.service(key));
        let first = found.next()?;
        if first.namespace == namespace {
            return Some(first);
        }
        Some(found.find(|other| other.namespace == namespace).unwrap_or(first))
    }

    pub(super) fn destination(&self, address: IpAddr, port: u16) -> Destination {
        let service = self.by_service_address.get(&address);
        if let Some(service) = service.and_then(|key| self.services.get(key)) {
            return Destination::Service(Arc::clone(service), self.endpoints(&service.key, port));
        }
        self.workload(address)
            .map_or(Destination::Unknown, Destination::Workload)
    }

    pub(super) fn endpoints(&self, service: &str, port: u16) -> Arc<[Endpoint]> {
        let ports = self.endpoints.get(service);
        ports
            .and_then(|ports| ports.get(&port))
            .cloned()
            .unwrap_or_default()
    }

    pub(super) fn workloads(&self) -> Vec<Arc<Workload>> {
        let all = self.workloads.values().map(|known| Arc::clone(&known.workload));
        let mut all: Vec<_> = all.collect();
        all.sort_by(|a, b| a.uid.cmp(&b.uid));
        all
    }

    pub(super) fn services(&self) -> Vec<Arc<Service>> {
        let mut all: Vec<_> = self.services.values().cloned().collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
    }

    pub(super) fn policies(&self) -> Vec<Policy> {
        self.policies.values().cloned().collect()
    }

    pub(super) fn broken(&self) -> Vec<String> {
        self.broken.keys().cloned().collect()
    }

    /// What would hold if policies on trial were in force, where that is something else.
    pub(super) fn on_trial(&self, connection: &Connection) -> Option<Verdict> {
        if !self.policies.values().any(Policy::is_dry_run) {
            return None;
        }
        self.judge(connection).dry_run
    }

    /// A policy that a workload names and that is not here.
    pub(super) fn missing_policy(&self, workload: &Workload) -> Option<String> {
        let mut named = workload.policies.iter();
        named.find(|name| !self.policies.contains_key(*name)).cloned()
    }

    /// differs from istio: a policy that a workload names and that is not here, or that was never understood,
    /// denies, because a policy that cannot be kept must not be taken for one that allows.
    pub(super) fn judge(&self, connection: &Connection) -> Judgement {
        let denied = |why: String| Judgement {
            verdict: Verdict::Deny(why),
            by: None,
            dry_run: None,
        };
        let Some(workload) = self.workload(connection.destination_ip) else {
            return denied(format!("{} is not known to discovery", connection.destination_ip));
        };
        let mut broken = self.broken.iter();
        if let Some((name, Broken { why, .. })) =
            broken.find(|(name, one)| one.reach.contains(name, &workload))
        {
            return denied(format!("policy {name} is not understood: {why}"));
        }
        if let Some(missing) = self.missing_policy(&workload) {
            return denied(format!("policy {missing} has not arrived"));
        }
        policy::judge(self.applicable(&workload), connection)
    }

    /// The policies that apply to a workload.
    fn applicable<'a>(&'a self, workload: &'a Workload) -> impl Iterator<Item = &'a Policy> + Clone {
        let applies = |(name, policy): &(&String, &Policy)| match policy.scope {
            Scope::Global => true,
            Scope::Namespace => policy.namespace == workload.namespace,
            Scope::Workload => workload.policies.contains(name),
        };
        self.policies.iter().filter(applies).map(|(_, policy)| policy)
    }

    /// The policies that a judgement of a connection to a workload rests on.
    pub(super) fn grounds(&self, destination: IpAddr, judgement: &Judgement) -> Vec<Ground> {
        let Some(workload) = self.workload(destination) else {
            return Vec::new();
        };
        let missing = self.missing_policy(&workload).is_some();
        let mut broken = self.broken.iter();
        if missing || broken.any(|(name, one)| one.reach.contains(name, &workload)) {
            // What decided is not a policy that is known here.
            return Vec::new();
        }
        let mut grounds = policy::grounds(self.applicable(&workload), judgement);
        let strict = judgement
            .by
            .as_ref()
            .is_some_and(|rule| rule.policy.ends_with(STATIC_STRICT));
        let by = self
            .by_address
            .get(&destination)
            .and_then(|uid| self.strict_by.get(uid));
        grounds.extend(by.filter(|_| strict).map(|by| {
            let made = self
                .policies
                .values()
                .find(|policy| policy.peer_authentication() == by);
            Ground {
                policy: by.clone(),
                denies: true,
                part: Part::Origin,
                not_enforced: made.map_or_else(Vec::new, |policy| policy.not_enforced().to_vec()),
            }
        }));
        grounds
    }
}
