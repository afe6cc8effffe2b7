//! The mesh's hosts by name, for DNS.

use super::tables::Tables;
use super::{Service, Workload};
use crate::dns::names::Directory;
use std::net::IpAddr;
use std::sync::Arc;

/// A host name as it is looked up.
pub(super) fn normal(hostname: &str) -> String {
    hostname.trim_end_matches('.').to_ascii_lowercase()
}

impl Tables {
    /// The description of a host that somebody in `namespace` sees: their own before others', and of others only
    /// what is for everybody.
    fn visible(&self, host: &str, namespace: &str) -> Option<&Arc<Service>> {
        let keys = self.by_hostname.get(host)?.iter();
        let mut services = keys.filter_map(|key| self.services.get(key));
        let own = services.clone().find(|service| service.namespace == namespace);
        own.or_else(|| services.find(|service| !service.private))
    }

    fn healthy(&self, service: &Service) -> impl Iterator<Item = Arc<Workload>> {
        let members = self.members.get(&service.key).into_iter().flatten();
        let workloads = members.filter_map(|uid| self.by_uid(uid));
        workloads.filter(|workload| workload.healthy)
    }
}

impl Directory for Tables {
    /// A service without addresses is its healthy workloads. One that has none of these either is asked for
    /// elsewhere: it may be a name outside, or its pods may want to be found before they are ready, which discovery
    /// does not say.
    fn host(&self, name: &str, namespace: &str) -> Option<Vec<IpAddr>> {
        let service = self.visible(name, namespace)?;
        let mut addresses = service.addresses.clone();
        if addresses.is_empty() {
            addresses = self.healthy(service).flat_map(|w| w.addresses.clone()).collect();
        }
        (!addresses.is_empty()).then_some(addresses)
    }

    fn pod(&self, pod: &str, service: &str, namespace: &str) -> Option<Vec<IpAddr>> {
        let service = self.visible(service, namespace)?;
        if !service.addresses.is_empty() {
            return None;
        }
        let named = |workload: &Arc<Workload>| {
            let host = workload.hostname.split('.').next().unwrap_or_default();
            let name = if host.is_empty() { &workload.name } else { host };
            name.eq_ignore_ascii_case(pod)
        };
        let workload = self.healthy(service).find(named)?;
        (!workload.addresses.is_empty()).then(|| workload.addresses.clone())
    }
}
