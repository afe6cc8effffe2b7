//! Services.

use super::{alias, octets};
use remora_xds::affinity::{self, SessionAffinity};
use remora_xds::proto::workload::address::Type;
use remora_xds::proto::workload::{
    self as proto, Address, AppProtocol, Extension, LoadBalancing, NetworkAddress, Port, Service as Message,
    load_balancing,
};
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
    /// Whom to prefer.
    #[serde(default)]
    pub traffic_distribution: Distribution,
    /// Where traffic from inside has to stay.
    #[serde(default)]
    pub internal_traffic_policy: InternalPolicy,
    /// What keeps connections together.
    #[serde(default)]
    pub session_affinity: Affinity,
    /// Whether workloads that are not ready are chosen too.
    #[serde(default)]
    pub publish_not_ready_addresses: bool,
    /// Who is told about it.
    #[serde(default)]
    pub visibility: Visibility,
}

/// Who is told about a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// The whole mesh.
    #[default]
    Public,
    /// Its own namespace.
    Namespace,
}

/// Whom to prefer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum Distribution {
    /// Nobody.
    #[default]
    Any,
    /// Those in the same zone; the older name of it.
    PreferClose,
    /// Those in the same zone.
    PreferSameZone,
    /// Those on the same node, then in the same zone.
    PreferSameNode,
}

/// Where traffic from inside has to stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum InternalPolicy {
    /// Anywhere.
    #[default]
    Cluster,
    /// On the node.
    Local,
}

/// What keeps connections together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum Affinity {
    /// Nothing.
    #[default]
    None,
    /// The address of the caller.
    #[serde(rename = "ClientIP")]
    ClientIp,
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
    /// What is spoken there.
    #[serde(default)]
    pub protocol: Protocol,
}

/// What is spoken on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Bytes.
    #[default]
    Tcp,
    /// HTTP/1.1.
    Http,
    /// HTTP/2.
    Http2,
    /// gRPC.
    Grpc,
}

impl Protocol {
    fn number(self) -> i32 {
        match self {
            Self::Tcp => AppProtocol::Unknown,
            Self::Http => AppProtocol::Http11,
            Self::Http2 => AppProtocol::Http2,
            Self::Grpc => AppProtocol::Grpc,
        }
        .into()
    }
}

impl ServicePort {
    /// One on which workloads listen as well.
    pub fn of(port: u16) -> Self {
        Self {
            port,
            target_port: None,
            protocol: Protocol::Tcp,
        }
    }
}

impl Service {
    /// One of which only the name is known.
    pub fn named(name: &str, namespace: &str) -> Self {
        Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            hostname: None,
            addresses: Vec::new(),
            network: String::new(),
            ports: Vec::new(),
            traffic_distribution: Distribution::Any,
            internal_traffic_policy: InternalPolicy::Cluster,
            session_affinity: Affinity::None,
            publish_not_ready_addresses: false,
            visibility: Visibility::Public,
        }
    }

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

    // istio: what istiod makes of the same fields. A policy that keeps traffic on the node is kept before a
    // preference is.
    fn load_balancing(&self) -> Option<LoadBalancing> {
        use load_balancing::Scope::{Network, Node, Region, Subzone, Zone};
        let (preferences, mode): (&[load_balancing::Scope], _) =
            match (self.internal_traffic_policy, self.traffic_distribution) {
                (InternalPolicy::Local, _) => (&[Node], load_balancing::Mode::Strict),
                (InternalPolicy::Cluster, Distribution::Any) => (&[], load_balancing::Mode::UnspecifiedMode),
                (InternalPolicy::Cluster, Distribution::PreferClose | Distribution::PreferSameZone) => {
                    (&[Network, Region, Zone], load_balancing::Mode::Failover)
                }
                (InternalPolicy::Cluster, Distribution::PreferSameNode) => {
                    let near = &[Network, Region, Zone, Subzone, Node];
                    (near, load_balancing::Mode::Failover)
                }
            };
        let health = if self.publish_not_ready_addresses {
            load_balancing::HealthPolicy::AllowAll
        } else {
            load_balancing::HealthPolicy::OnlyHealthy
        };
        let message = LoadBalancing {
            routing_preference: preferences.iter().map(|scope| i32::from(*scope)).collect(),
            mode: mode.into(),
            health_policy: health.into(),
        };
        (message != LoadBalancing::default()).then_some(message)
    }

    fn extensions(&self) -> Vec<Extension> {
        match self.session_affinity {
            Affinity::None => Vec::new(),
            Affinity::ClientIp => vec![affinity::write(SessionAffinity::ClientIp)],
        }
    }

    pub(super) fn encode(&self) -> Address {
        let address = |address: &IpAddr| NetworkAddress {
            network: self.network.clone(),
            address: octets(*address),
        };
        let port = |port: &ServicePort| Port {
            service_port: port.port.into(),
            target_port: port.target_port.unwrap_or(port.port).into(),
            app_protocol: port.protocol.number(),
        };
        let visibility = match self.visibility {
            Visibility::Public => proto::Visibility::Public,
            Visibility::Namespace => proto::Visibility::Namespace,
        };
        Address {
            r#type: Some(Type::Service(Message {
                name: self.name.clone(),
                namespace: self.namespace.clone(),
                hostname: self.hostname(),
                addresses: self.addresses.iter().map(address).collect(),
                ports: self.ports.iter().map(port).collect(),
                load_balancing: self.load_balancing(),
                extensions: self.extensions(),
                visibility: visibility.into(),
                ..Message::default()
            })),
        }
    }
}
