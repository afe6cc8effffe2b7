//! Workloads and services out of messages: everything is checked here, so that connections need not.
//!
//! What a peer may say and this proxy does not do is kept as a fact, so that whoever decides can refuse it or say
//! that it was left aside.

use crate::balance::{Affinity, Balancing, Health, Mode, Scope};
use remora_mtls::{InvalidSpiffeId, SpiffeId};
use remora_xds::affinity;
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

/// Where something runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Place {
    /// A part of the world.
    pub region: String,
    /// A data centre.
    pub zone: String,
    /// A part of it.
    pub subzone: String,
    /// A machine.
    pub node: String,
    /// A cluster.
    pub cluster: String,
    /// Where its addresses mean something.
    pub network: String,
}

/// A proxy on the way to somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// Who.
    pub to: GatewayName,
    /// Where it takes tunnels.
    pub port: u16,
}

/// How a gateway is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayName {
    /// A service, `NAMESPACE/HOSTNAME`.
    Service(String),
    /// An address of a service or workload.
    Address(IpAddr),
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
    /// Its DNS name, if it has one of its own.
    pub hostname: String,
    /// How to reach it.
    pub tunnel: Tunnel,
    /// Whom its certificate names.
    pub id: SpiffeId,
    /// Whether it should get new connections.
    pub healthy: bool,
    /// How much of a service's traffic it takes, beside others.
    pub capacity: u32,
    /// Where it runs.
    pub place: Place,
    /// Policies that select it.
    pub policies: Vec<String>,
    /// By service: service port and own port.
    pub services: BTreeMap<String, Vec<(u16, u16)>>,
    /// All connections to it go through here.
    pub waypoint: Option<Gateway>,
    /// From other networks it is reached through here.
    pub gateway: Option<Gateway>,
    /// It expects a header of the PROXY protocol before every connection.
    pub proxy_protocol: bool,
    /// Its addresses are shared with others and do not name it.
    pub host_network: bool,
    /// What owns it, for telemetry.
    pub owner: String,
    /// Its name and version for telemetry.
    pub canonical: (String, String),
}

/// What is spoken on a port, where it is declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AppProtocol {
    /// Not declared.
    #[default]
    Unknown,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// gRPC.
    Grpc,
}

/// A port of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServicePort {
    /// What callers dial.
    pub port: u16,
    /// What workloads listen on that do not say; 0 where only they know.
    pub target: u16,
    /// What is spoken there.
    pub protocol: AppProtocol,
}

/// A name for several workloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// `NAMESPACE/HOSTNAME`.
    pub key: String,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its DNS name.
    pub hostname: String,
    /// Its virtual addresses.
    pub addresses: Vec<IpAddr>,
    /// What it listens on.
    pub ports: Vec<ServicePort>,
    /// How an endpoint is chosen.
    pub balancing: Balancing,
    /// All connections to it go through here.
    pub waypoint: Option<Gateway>,
    /// Only its own namespace is told about it.
    pub private: bool,
    /// What was said about it that changes nothing here.
    pub left_aside: Vec<String>,
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
    #[error("a way of choosing endpoints is not known: {0}")]
    Balancing(i32),
    #[error("session affinity: {0}")]
    Affinity(#[from] affinity::AffinityError),
    #[error("a gateway has no address")]
    Gateway,
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

fn gateway(message: proto::GatewayAddress) -> Result<Gateway, ReadError> {
    use proto::gateway_address::Destination;
    let to = match message.destination.ok_or(ReadError::Gateway)? {
        Destination::Hostname(name) => GatewayName::Service(format!("{}/{}", name.namespace, name.hostname)),
        Destination::Address(at) => GatewayName::Address(address(&at.address)?),
    };
    let port = match port(message.hbone_mtls_port)? {
        0 => crate::route::HBONE_PORT,
        given => given,
    };
    Ok(Gateway { to, port })
}

fn place(message: &proto::Workload) -> Place {
    let locality = message.locality.clone().unwrap_or_default();
    Place {
        region: locality.region,
        zone: locality.zone,
        subzone: locality.subzone,
        node: message.node.clone(),
        cluster: message.cluster_id.clone(),
        network: message.network.clone(),
    }
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
        let place = place(&message);
        let services = message.services.into_iter();
        let proxy_protocol = message.application_tunnel.is_some_and(|t| t.protocol != 0);
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
            capacity: message.capacity.unwrap_or(1),
            place,
            waypoint: message.waypoint.map(gateway).transpose()?,
            gateway: message.network_gateway.map(gateway).transpose()?,
            proxy_protocol,
            host_network: message.network_mode == i32::from(proto::NetworkMode::HostNetwork),
            uid: message.uid,
            name: message.name,
            namespace: message.namespace,
            hostname: message.hostname,
            policies: message.authorization_policies,
            owner: message.workload_name,
            canonical: (message.canonical_name, message.canonical_revision),
        })
    }
}

impl Service {
    pub(crate) fn new(message: proto::Service) -> Result<Self, ReadError> {
        let addresses = message.addresses.iter().map(|a| address(&a.address));
        let ports = message.ports.iter().map(service_port);
        let mut left_aside = Vec::new();
        let mut balancing = balancing(&message.load_balancing.unwrap_or_default())?;
        for extension in &message.extensions {
            match affinity::read(extension)? {
                Some(affinity::SessionAffinity::ClientIp) => balancing.affinity = Affinity::ClientIp,
                None => left_aside.push(format!("extension {:?} is not known", extension.name)),
            }
        }
        if !message.weighted_waypoints.is_empty() {
            left_aside.push("shares between several waypoints are not kept".to_owned());
        }
        if !message.subject_alt_names.is_empty() {
            left_aside
                .push("names of its own are not accepted in place of its workloads' identities".to_owned());
        }
        Ok(Self {
            key: format!("{}/{}", message.namespace, message.hostname),
            addresses: addresses.collect::<Result<_, _>>()?,
            ports: ports.collect::<Result<_, _>>()?,
            balancing,
            waypoint: message.waypoint.map(gateway).transpose()?,
            private: message.visibility == i32::from(proto::Visibility::Namespace),
            name: message.name,
            namespace: message.namespace,
            hostname: message.hostname,
            left_aside,
        })
    }

    /// What is known of a port.
    pub fn port(&self, number: u16) -> Option<&ServicePort> {
        self.ports.iter().find(|port| port.port == number)
    }
}

fn service_port(message: &proto::Port) -> Result<ServicePort, ReadError> {
    Ok(ServicePort {
        port: port(message.service_port)?,
        target: port(message.target_port)?,
        protocol: match proto::AppProtocol::try_from(message.app_protocol) {
            Ok(proto::AppProtocol::Http11) => AppProtocol::Http1,
            Ok(proto::AppProtocol::Http2) => AppProtocol::Http2,
            Ok(proto::AppProtocol::Grpc) => AppProtocol::Grpc,
            // A newer one is carried as bytes, as everything that is not declared.
            Ok(proto::AppProtocol::Unknown) | Err(_) => AppProtocol::Unknown,
        },
    })
}

/// A preference of a newer version is refused: guessing could lead a connection out of where it has to stay.
fn balancing(message: &proto::LoadBalancing) -> Result<Balancing, ReadError> {
    use proto::load_balancing as lb;
    let scope = |number: i32| match lb::Scope::try_from(number) {
        Ok(lb::Scope::Region) => Ok(Scope::Region),
        Ok(lb::Scope::Zone) => Ok(Scope::Zone),
        Ok(lb::Scope::Subzone) => Ok(Scope::Subzone),
        Ok(lb::Scope::Node) => Ok(Scope::Node),
        Ok(lb::Scope::Cluster) => Ok(Scope::Cluster),
        Ok(lb::Scope::Network) => Ok(Scope::Network),
        Ok(lb::Scope::UnspecifiedScope) | Err(_) => Err(ReadError::Balancing(number)),
    };
    let preferences = message.routing_preference.iter().copied().map(scope);
    Ok(Balancing {
        preferences: preferences.collect::<Result<_, _>>()?,
        mode: match lb::Mode::try_from(message.mode) {
            Ok(lb::Mode::UnspecifiedMode | lb::Mode::Failover) => Mode::Failover,
            Ok(lb::Mode::Strict) => Mode::Strict,
            Ok(lb::Mode::Passthrough) => Mode::Passthrough,
            Err(_) => return Err(ReadError::Balancing(message.mode)),
        },
        health: match lb::HealthPolicy::try_from(message.health_policy) {
            Ok(lb::HealthPolicy::OnlyHealthy) => Health::OnlyHealthy,
            Ok(lb::HealthPolicy::AllowAll) => Health::AllowAll,
            Err(_) => return Err(ReadError::Balancing(message.health_policy)),
        },
        affinity: Affinity::None,
    })
}
