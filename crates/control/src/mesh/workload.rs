//! Workloads.

use super::{MeshError, Visibility, alias, octets};
use remora_xds::proto::workload::address::Type;
use remora_xds::proto::workload::{
    Address, Locality, NetworkMode, Port, PortList, TunnelProtocol, Workload as Message, WorkloadStatus,
    WorkloadType,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A pod, or something like one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// `cluster//Pod/NAMESPACE/NAME` unless said.
    #[serde(default)]
    pub uid: Option<String>,
    /// Its addresses.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Empty: the only network.
    #[serde(default)]
    pub network: String,
    /// Whom its certificate names.
    #[serde(default = "default_account")]
    pub service_account: String,
    /// The mesh's unless said.
    #[serde(default)]
    pub trust_domain: Option<String>,
    /// How to reach it.
    #[serde(default)]
    pub tunnel: Tunnel,
    /// Where it runs.
    #[serde(default)]
    pub node: String,
    /// Region, zone, subzone; shorter lists are fine.
    #[serde(default)]
    pub locality: Vec<String>,
    /// Its place in the services it belongs to: `NAMESPACE/HOSTNAME` to `PORT:TARGET-PORT` mappings.
    #[serde(default)]
    pub services: BTreeMap<String, Vec<String>>,
    /// Policies that select it, `NAMESPACE/NAME`.
    #[serde(default)]
    pub policies: Vec<String>,
    /// The `PeerAuthentication` that requires mutual TLS of its callers, `NAMESPACE/NAME`, where that one is not enforced
    /// as written. For explanations.
    #[serde(skip)]
    pub strict_by: Option<String>,
    /// Whether its addresses are shared with others, its node's for instance: then they do not name it.
    #[serde(default)]
    pub host_network: bool,
    /// Whether it should get new connections.
    #[serde(default = "yes")]
    pub healthy: bool,
    /// How much of a service's traffic it takes beside others; 1 unless said, 0 for none.
    #[serde(default)]
    pub capacity: Option<u32>,
    /// The cluster it runs in.
    #[serde(default)]
    pub cluster: String,
    /// Who is told about it. Who is not told takes it for something outside the mesh.
    #[serde(default)]
    pub visibility: Visibility,
    /// What owns it, for telemetry.
    #[serde(default)]
    pub owner: Option<String>,
}

fn default_account() -> String {
    "default".to_owned()
}

fn yes() -> bool {
    true
}

/// How a workload is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tunnel {
    /// Plain TCP.
    #[default]
    None,
    /// HTTP/2 CONNECT over mutual TLS.
    Hbone,
    /// Mutual TLS as between Istio's sidecars.
    IstioMtls,
}

impl Workload {
    /// One of which only the name is known.
    pub fn named(name: &str, namespace: &str) -> Self {
        Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            uid: None,
            addresses: Vec::new(),
            network: String::new(),
            service_account: default_account(),
            trust_domain: None,
            tunnel: Tunnel::None,
            node: String::new(),
            locality: Vec::new(),
            services: BTreeMap::new(),
            policies: Vec::new(),
            strict_by: None,
            host_network: false,
            healthy: true,
            capacity: None,
            cluster: String::new(),
            visibility: Visibility::Public,
            owner: None,
        }
    }

    pub(super) fn uid(&self) -> String {
        self.uid
            .clone()
            .unwrap_or_else(|| format!("cluster//Pod/{}/{}", self.namespace, self.name))
    }

    pub(super) fn aliases(&self) -> Vec<String> {
        let addresses = self.addresses.iter().filter(|_| !self.host_network);
        addresses.map(|address| alias(&self.network, *address)).collect()
    }

    pub(super) fn encode(&self, trust_domain: &str) -> Result<Address, MeshError> {
        let tunnel = match self.tunnel {
            Tunnel::None => TunnelProtocol::None,
            Tunnel::Hbone => TunnelProtocol::Hbone,
            Tunnel::IstioMtls => TunnelProtocol::LegacyIstioMtls,
        };
        let status = if self.healthy {
            WorkloadStatus::Healthy
        } else {
            WorkloadStatus::Unhealthy
        };
        let mode = if self.host_network {
            NetworkMode::HostNetwork
        } else {
            NetworkMode::Standard
        };
        let place = |n: usize| self.locality.get(n).cloned().unwrap_or_default();
        let services = self.services.iter().map(|(name, ports)| {
            let ports = ports.iter().map(|text| mapping(text)).collect::<Result<_, _>>()?;
            Ok((name.clone(), PortList { ports }))
        });
        let message = Message {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            addresses: self.addresses.iter().copied().map(octets).collect(),
            network: self.network.clone(),
            tunnel_protocol: tunnel.into(),
            trust_domain: self
                .trust_domain
                .clone()
                .unwrap_or_else(|| trust_domain.to_owned()),
            service_account: self.service_account.clone(),
            node: self.node.clone(),
            workload_type: WorkloadType::Pod.into(),
            workload_name: self.owner.clone().unwrap_or_else(|| self.name.clone()),
            canonical_name: self.owner.clone().unwrap_or_else(|| self.name.clone()),
            authorization_policies: self.policies.clone(),
            strict_by: self.strict_by.clone().unwrap_or_default(),
            network_mode: mode.into(),
            status: status.into(),
            uid: self.uid(),
            cluster_id: self.cluster.clone(),
            capacity: self.capacity,
            services: services.collect::<Result<_, _>>()?,
            locality: (!self.locality.is_empty()).then(|| Locality {
                region: place(0),
                zone: place(1),
                subzone: place(2),
            }),
            ..Message::default()
        };
        Ok(Address {
            r#type: Some(Type::Workload(message)),
        })
    }
}

fn mapping(text: &str) -> Result<Port, MeshError> {
    let (port, target) = text.split_once(':').unwrap_or((text, text));
    let number = |part: &str| part.parse::<u16>().ok().filter(|n| *n > 0).map(u32::from);
    match (number(port), number(target)) {
        (Some(service_port), Some(target_port)) => Ok(Port {
            service_port,
            target_port,
            ..Port::default()
        }),
        _ => Err(MeshError::Ports {
            text: text.to_owned(),
        }),
    }
}
