//! What proxies must know of a service.

use super::pod::Pod;
use super::slice::Slice;
use super::world::Key;
use crate::mesh::{self, Affinity, Distribution, InternalPolicy, Protocol, Visibility};
use remora_pod::{object, view};
use serde_json::Value;
use std::net::IpAddr;

/// A service inside the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Service {
    addresses: Vec<IpAddr>,
    ports: Vec<Port>,
    /// Empty: whoever made the service names its endpoints, and selects no pods.
    selector: Vec<(String, String)>,
    distribution: Distribution,
    internal: InternalPolicy,
    affinity: Affinity,
    not_ready_too: bool,
    visibility: Visibility,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Port {
    /// What slices call it.
    name: String,
    number: u16,
    protocol: Protocol,
    target: Target,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Number(u16),
    /// A port of the pod's, by name.
    Name(String),
}

/// `NAMESPACE/HOSTNAME`.
pub(super) fn key_of((namespace, name): &Key, domain: &str) -> String {
    format!("{namespace}/{}", hostname(namespace, name, domain))
}

fn hostname(namespace: &str, name: &str, domain: &str) -> String {
    format!("{name}.{namespace}.svc.{domain}")
}

impl Service {
    /// `None`: a name for something outside.
    pub(super) fn read(document: &Value) -> Option<Self> {
        if view::text(document, &["spec", "type"]) == Some("ExternalName") {
            return None;
        }
        let selector = document["spec"]["selector"].as_object();
        let wanted = selector.into_iter().flatten();
        Some(Self {
            addresses: addresses_of(document),
            ports: view::list(document, &["spec", "ports"])
                .iter()
                .filter_map(port_of)
                .collect(),
            selector: wanted
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect(),
            distribution: match view::text(document, &["spec", "trafficDistribution"]) {
                Some("PreferClose") => Distribution::PreferClose,
                Some("PreferSameZone") => Distribution::PreferSameZone,
                Some("PreferSameNode") => Distribution::PreferSameNode,
                _ => Distribution::Any,
            },
            internal: match view::text(document, &["spec", "internalTrafficPolicy"]) {
                Some("Local") => InternalPolicy::Local,
                _ => InternalPolicy::Cluster,
            },
            affinity: match view::text(document, &["spec", "sessionAffinity"]) {
                Some("ClientIP") => Affinity::ClientIp,
                _ => Affinity::None,
            },
            not_ready_too: document["spec"]["publishNotReadyAddresses"].as_bool() == Some(true),
            // istio: `~` is nobody, `.` the own namespace.
            visibility: match object::annotation(document, "networking.istio.io/exportTo") {
                Some("." | "~") => Visibility::Namespace,
                _ => Visibility::Public,
            },
        })
    }

    /// `PORT:TARGET` for each of its ports, if the pod is behind it.
    pub(super) fn ports_on(&self, pod: &Pod) -> Option<Vec<String>> {
        let selects = !self.selector.is_empty()
            && self
                .selector
                .iter()
                .all(|(key, value)| pod.labels.get(key).and_then(Value::as_str) == Some(value));
        if !selects {
            return None;
        }
        let mapping = |port: &Port| {
            let target = match &port.target {
                Target::Number(number) => *number,
                // A pod without such a port is not behind this port of the service.
                Target::Name(name) => pod.named_port(name)?,
            };
            Some(format!("{}:{target}", port.number))
        };
        Some(self.ports.iter().filter_map(mapping).collect())
    }

    /// `PORT:TARGET` for each of its ports that a slice names; `None`: its endpoints are pods it selects.
    pub(super) fn ports_of(&self, slice: &Slice) -> Option<Vec<String>> {
        let mapping = |port: &Port| {
            let target = slice.target(&port.name, port.number)?;
            Some(format!("{}:{target}", port.number))
        };
        self.selector
            .is_empty()
            .then(|| self.ports.iter().filter_map(mapping).collect())
    }

    /// Whether those that are not ready are endpoints all the same.
    pub(super) fn not_ready_too(&self) -> bool {
        self.not_ready_too
    }

    pub(super) fn document(&self, (namespace, name): &Key, domain: &str) -> mesh::Service {
        let port = |port: &Port| mesh::ServicePort {
            target_port: match port.target {
                Target::Number(number) => Some(number),
                Target::Name(_) => None,
            },
            protocol: port.protocol,
            ..mesh::ServicePort::of(port.number)
        };
        mesh::Service {
            hostname: Some(hostname(namespace, name, domain)),
            addresses: self.addresses.clone(),
            ports: self.ports.iter().map(port).collect(),
            traffic_distribution: self.distribution,
            internal_traffic_policy: self.internal,
            session_affinity: self.affinity,
            publish_not_ready_addresses: self.not_ready_too,
            visibility: self.visibility,
            ..mesh::Service::named(name, namespace)
        }
    }
}

/// Virtual addresses; a headless service has none.
fn addresses_of(document: &Value) -> Vec<IpAddr> {
    let listed = view::list(document, &["spec", "clusterIPs"]);
    let single = view::text(document, &["spec", "clusterIP"]).filter(|_| listed.is_empty());
    let all = listed.iter().filter_map(Value::as_str).chain(single);
    all.filter_map(|text| text.parse().ok()).collect()
}

fn port_of(port: &Value) -> Option<Port> {
    if !matches!(port["protocol"].as_str(), None | Some("TCP")) {
        return None;
    }
    let number = |value: &Value| {
        value
            .as_u64()
            .and_then(|n| u16::try_from(n).ok())
            .filter(|n| *n > 0)
    };
    let own = number(&port["port"])?;
    let target = match &port["targetPort"] {
        Value::String(name) => Target::Name(name.clone()),
        // k8s: none, or zero, is the port itself.
        other => Target::Number(number(other).unwrap_or(own)),
    };
    Some(Port {
        name: port["name"].as_str().unwrap_or_default().to_owned(),
        number: own,
        protocol: protocol_of(port),
        target,
    })
}

/// What is spoken: `appProtocol`, else what the name of the port begins with.
fn protocol_of(port: &Value) -> Protocol {
    let said = port["appProtocol"].as_str();
    let named = || port["name"].as_str().and_then(|name| name.split('-').next());
    match said.or_else(named).unwrap_or_default() {
        "http" | "http-web" | "kubernetes.io/ws" => Protocol::Http,
        "http2" | "kubernetes.io/h2c" => Protocol::Http2,
        "grpc" => Protocol::Grpc,
        _ => Protocol::Tcp,
    }
}
