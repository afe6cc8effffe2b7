//! Services.

use super::{alias, octets};
use remora_xds::proto::workload::address::Type;
use remora_xds::proto::workload::{Address, NetworkAddress, Port, Service as Message};
use serde::Deserialize;
use std::net::IpAddr;

/// A name and addresses behind which workloads stand.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// `NAME.NAMESPACE.svc.cluster.local` unless said.
    #[serde(default)]
    pub hostname: Option<String>,
    /// Its virtual addresses.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// The network of the addresses; empty is the only one.
    #[serde(default)]
    pub network: String,
    /// What it listens on.
    #[serde(default)]
    pub ports: Vec<ServicePort>,
}

/// A port of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ServicePort {
    /// What callers dial.
    pub port: u16,
    /// What workloads listen on; the same unless said.
    #[serde(default)]
    pub target_port: Option<u16>,
}

impl Service {
    fn hostname(&self) -> String {
        self.hostname
            .clone()
            .unwrap_or_else(|| format!("{}.{}.svc.cluster.local", self.name, self.namespace))
    }

    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.hostname())
    }

    pub(super) fn aliases(&self) -> Vec<String> {
        let addresses = self.addresses.iter();
        addresses.map(|address| alias(&self.network, *address)).collect()
    }

    pub(super) fn encode(&self) -> Address {
        let address = |address: &IpAddr| NetworkAddress {
            network: self.network.clone(),
            address: octets(*address),
        };
        let port = |port: &ServicePort| Port {
            service_port: port.port.into(),
            target_port: port.target_port.unwrap_or(port.port).into(),
        };
        Address {
            r#type: Some(Type::Service(Message {
                name: self.name.clone(),
                namespace: self.namespace.clone(),
                hostname: self.hostname(),
                addresses: self.addresses.iter().map(address).collect(),
                ports: self.ports.iter().map(port).collect(),
                ..Message::default()
            })),
        }
    }
}
