//! The tables behind a [`super::Mesh`], kept consistent under every change.

use super::read::ReadError;
use super::{Destination, Endpoint, Service, Workload};
use crate::policy::{self, Connection, Policy, Scope, Verdict};
use remora_xds::Message;
use remora_xds::proto::security::Authorization;
use remora_xds::proto::workload::Address;
use remora_xds::proto::workload::address::Type;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(super) struct Tables {
    workloads: HashMap<String, Arc<Workload>>,
    services: HashMap<String, Arc<Service>>,
    by_address: HashMap<IpAddr, String>,
    by_service_address: HashMap<IpAddr, String>,
    /// Workloads of a service, in order of uid.
    members: HashMap<String, BTreeSet<String>>,
    policies: BTreeMap<String, Policy>,
    /// Never understood.
    broken: BTreeSet<String>,
}

impl Tables {
    pub(super) fn address(&mut self, name: &str, bytes: &[u8]) -> Result<(), ReadError> {
        let message = Address::decode(bytes).map_err(|_| ReadError::Decode)?;
        match message.r#type.ok_or(ReadError::Empty)? {
            Type::Workload(message) => {
                let workload = Workload::new(message)?;
                self.remove_address(name);
                self.insert_workload(name, workload);
            }
            Type::Service(message) => {
                let service = Service::new(message)?;
                self.remove_address(name);
                for address in &service.addresses {
                    self.by_service_address.insert(*address, name.to_owned());
                }
                self.services.insert(name.to_owned(), Arc::new(service));
            }
        }
        Ok(())
    }

    fn insert_workload(&mut self, name: &str, workload: Workload) {
        for address in &workload.addresses {
            // An address that is used again belongs to whom discovery named last.
            self.by_address.insert(*address, name.to_owned());
        }
        for service in workload.services.keys() {
            let members = self.members.entry(service.clone()).or_default();
            members.insert(name.to_owned());
        }
        self.workloads.insert(name.to_owned(), Arc::new(workload));
    }

    pub(super) fn remove_address(&mut self, name: &str) {
        if let Some(old) = self.workloads.remove(name) {
            for address in &old.addresses {
                if self.by_address.get(address).is_some_and(|owner| owner == name) {
                    self.by_address.remove(address);
                }
            }
            for service in old.services.keys() {
                if let Some(members) = self.members.get_mut(service) {
                    members.remove(name);
                }
            }
        }
        if let Some(old) = self.services.remove(name) {
            for address in &old.addresses {
                if self
                    .by_service_address
                    .get(address)
                    .is_some_and(|owner| owner == name)
                {
                    self.by_service_address.remove(address);
                }
            }
        }
    }

    pub(super) fn policy(&mut self, name: &str, bytes: &[u8]) -> Result<(), ReadError> {
        let read = Authorization::decode(bytes)
            .map_err(|_| ReadError::Decode)
            .and_then(|message| Ok(Policy::new(message)?));
        match read {
            Ok(policy) => {
                self.broken.remove(name);
                self.policies.insert(name.to_owned(), policy);
                Ok(())
            }
            Err(error) => {
                if !self.policies.contains_key(name) {
                    self.broken.insert(name.to_owned());
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
        self.workloads.get(self.by_address.get(&address)?).cloned()
    }

    pub(super) fn by_uid(&self, uid: &str) -> Option<Arc<Workload>> {
        self.workloads.get(uid).cloned()
    }

    pub(super) fn destination(&self, address: IpAddr, port: u16) -> Destination {
        if let Some(service) = self
            .by_service_address
            .get(&address)
            .and_then(|key| self.services.get(key))
        {
            return Destination::Service(Arc::clone(service), self.endpoints(&service.key, port));
        }
        self.workload(address)
            .map_or(Destination::Unknown, Destination::Workload)
    }

    fn endpoints(&self, service: &str, port: u16) -> Vec<Endpoint> {
        let members = self.members.get(service).into_iter().flatten();
        members
            .filter_map(|uid| self.workloads.get(uid))
            .filter(|workload| workload.healthy)
            .filter_map(|workload| {
                let ports = workload.services.get(service)?;
                let (_, port) = ports.iter().find(|(service_port, _)| *service_port == port)?;
                Some(Endpoint {
                    workload: Arc::clone(workload),
                    port: *port,
                })
            })
            .collect()
    }

    /// differs from istio: a policy that a workload names and that is not here, or that was never understood,
    /// denies, because a policy that cannot be kept must not be taken for one that allows.
    pub(super) fn verdict(&self, connection: &Connection) -> Verdict {
        let Some(workload) = self.workload(connection.destination_ip) else {
            return Verdict::Deny(format!("{} is not known to discovery", connection.destination_ip));
        };
        if let Some(broken) = self.broken.first() {
            return Verdict::Deny(format!("policy {broken} is not understood"));
        }
        let mut named = workload.policies.iter();
        if let Some(missing) = named.find(|name| !self.policies.contains_key(*name)) {
            return Verdict::Deny(format!("policy {missing} has not arrived"));
        }
        let applies = |(name, policy): &(&String, &Policy)| match policy.scope {
            Scope::Global => true,
            Scope::Namespace => policy.namespace == workload.namespace,
            Scope::Workload => workload.policies.contains(name),
        };
        let policies = self.policies.iter().filter(applies).map(|(_, policy)| policy);
        policy::decide(policies, connection)
    }
}
