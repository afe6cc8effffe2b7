//! Workloads and services out of messages: everything is checked here, so that connections need not.

use remora_mtls::{InvalidSpiffeId, SpiffeId};
use remora_xds::proto::workload as proto;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// How a workload is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tunnel {
    /// Plain TCP.
    None,
    /// HTTP/2 CONNECT over mutual TLS.
    Hbone,
    /// Mutual TLS as between Istio's sidecars.
    IstioMtls,
}

/// Something that runs in the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Its key.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// How to reach it.
    pub tunnel: Tunnel,
    /// Whom its certificate names.
    pub id: SpiffeId,
    /// Whether it should get new connections.
    pub healthy: bool,
    /// Policies that select it.
    pub policies: Vec<String>,
    /// By service: service port and own port.
    pub services: BTreeMap<String, Vec<(u16, u16)>>,
}

/// A name for several workloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// `NAMESPACE/HOSTNAME`.
    pub key: String,
    /// Its DNS name.
    pub hostname: String,
    /// Its virtual addresses.
    pub addresses: Vec<IpAddr>,
}

/// A message that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the message cannot be decoded")]
    Decode,
    #[error("it is neither workload nor service")]
    Empty,
    #[error("an address has {0} bytes")]
    Address(usize),
    #[error("tunnel protocol {0} is not known")]
    Tunnel(i32),
    #[error("port {0} is none")]
    Port(u32),
    #[error("its identity is none: {0}")]
    Identity(#[from] InvalidSpiffeId),
    #[error("{0}")]
    Policy(#[from] crate::policy::PolicyError),
}

fn address(bytes: &[u8]) -> Result<IpAddr, ReadError> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .map_err(|_| ReadError::Address(bytes.len()))
}

fn port(number: u32) -> Result<u16, ReadError> {
    u16::try_from(number).map_err(|_| ReadError::Port(number))
}

fn or<'a>(text: &'a str, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text }
}

impl Workload {
    pub(crate) fn new(message: proto::Workload) -> Result<Self, ReadError> {
        let tunnel = match proto::TunnelProtocol::try_from(message.tunnel_protocol) {
            Ok(proto::TunnelProtocol::None) => Tunnel::None,
            Ok(proto::TunnelProtocol::Hbone) => Tunnel::Hbone,
            Ok(proto::TunnelProtocol::LegacyIstioMtls) => Tunnel::IstioMtls,
            Err(_) => return Err(ReadError::Tunnel(message.tunnel_protocol)),
        };
        let ports = |list: proto::PortList| {
            let pair = |p: proto::Port| Ok((port(p.service_port)?, port(p.target_port)?));
            list.ports.into_iter().map(pair).collect::<Result<_, ReadError>>()
        };
        let services = message.services.into_iter();
        Ok(Self {
            id: SpiffeId::of_service_account(
                or(&message.trust_domain, "cluster.local"),
                &message.namespace,
                or(&message.service_account, "default"),
            )?,
            addresses: message
                .addresses
                .iter()
                .map(|a| address(a))
                .collect::<Result<_, _>>()?,
            services: services
                .map(|(name, list)| Ok((name, ports(list)?)))
                .collect::<Result<_, ReadError>>()?,
            tunnel,
            healthy: message.status == i32::from(proto::WorkloadStatus::Healthy),
            uid: message.uid,
            name: message.name,
            namespace: message.namespace,
            policies: message.authorization_policies,
        })
    }
}

impl Service {
    pub(crate) fn new(message: proto::Service) -> Result<Self, ReadError> {
        let addresses = message.addresses.iter().map(|a| address(&a.address));
        Ok(Self {
            key: format!("{}/{}", message.namespace, message.hostname),
            addresses: addresses.collect::<Result<_, _>>()?,
            hostname: message.hostname,
        })
    }
}
