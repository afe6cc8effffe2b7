//! Services: their addresses, who stands behind them, and under which names they are found.
//!
//! Pure: documents and the present pods in; forwarding rules and DNS answers out. [`crate::network`] gives the first to
//! the kernel, [`crate::dns`] serves the second.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use remora_pod::{object, view};
use serde_json::{Map, Value};

mod names;

pub use names::{Answer, Names};

/// The address of the cluster's DNS server.
pub const DNS_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// The address of the control plane.
pub const CONTROL_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 11);
/// The first address given to a Service that names none.
const FIRST: u32 = u32::from_be_bytes([10, 96, 0, 20]);

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// As environment variables and DNS write it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// Its number in IP headers.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// Which port of a pod is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// By number.
    Number(u16),
    /// By the name it has in the pod.
    Name(String),
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, may be empty.
    pub name: String,
    /// What callers dial.
    pub port: u16,
    /// What pods listen on.
    pub target: Target,
    /// How.
    pub protocol: Protocol,
}

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its address, if it has one.
    pub address: Option<Ipv4Addr>,
    /// Whether its name stands for the pods themselves.
    pub headless: bool,
    /// Labels of the pods behind it; empty selects none.
    pub selector: BTreeMap<String, String>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// The name it is another name for.
    pub external_name: Option<String>,
    /// Whether pods that are not ready are found too.
    pub unready_too: bool,
}

/// A pod, as Services see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Whether it takes traffic.
    pub ready: bool,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its named ports.
    pub ports: Vec<(String, u16)>,
    /// `hostname` and `subdomain`, when it has both.
    pub host: Option<(String, String)>,
}

/// A connection to an address goes on to one of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// How.
    pub protocol: Protocol,
    /// Where callers connect to.
    pub from: SocketAddrV4,
    /// Where they get to; nobody if empty.
    pub to: Vec<SocketAddrV4>,
}

/// Reads Services and gives an address to those that want one.
pub fn read(documents: &[Value], default_namespace: &str) -> Vec<Service> {
    let mut services: Vec<Service> = documents
        .iter()
        .map(|document| read_one(document, default_namespace))
        .collect();
    let mut taken: BTreeSet<Ipv4Addr> = services.iter().filter_map(|s| s.address).collect();
    let mut next = FIRST;
    for service in &mut services {
        if service.address.is_some() || service.headless || service.external_name.is_some() {
            continue;
        }
        while !taken.insert(Ipv4Addr::from_bits(next)) {
            next += 1;
        }
        service.address = Some(Ipv4Addr::from_bits(next));
    }
    services
}

fn read_one(document: &Value, default_namespace: &str) -> Service {
    let (namespace, name) = crate::objects::key(document, default_namespace);
    let spec = |field: &str| view::text(document, &["spec", field]);
    let address = spec("clusterIP").unwrap_or_default();
    Service {
        name,
        namespace,
        address: address.parse().ok(),
        headless: address == "None",
        selector: texts(view::at(document, &["spec", "selector"]).and_then(Value::as_object)),
        ports: view::list(document, &["spec", "ports"])
            .iter()
            .filter_map(read_port)
            .collect(),
        external_name: spec("externalName")
            .filter(|_| spec("type") == Some("ExternalName"))
            .map(str::to_owned),
        unready_too: view::at(document, &["spec", "publishNotReadyAddresses"]) == Some(&Value::Bool(true)),
    }
}

fn read_port(raw: &Value) -> Option<ServicePort> {
    let number = |value: &Value| value.as_u64().and_then(|n| u16::try_from(n).ok());
    let port = number(raw.get("port")?)?;
    let target = match raw.get("targetPort") {
        Some(Value::String(text)) => text
            .parse()
            .map_or_else(|_| Target::Name(text.clone()), Target::Number),
        Some(value) => Target::Number(number(value).filter(|n| *n > 0).unwrap_or(port)),
        None => Target::Number(port),
    };
    let protocol = match view::text(raw, &["protocol"]) {
        None | Some("" | "TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some(_) => return None,
    };
    Some(ServicePort {
        name: view::name(raw).to_owned(),
        port,
        target,
        protocol,
    })
}

fn texts(map: Option<&Map<String, Value>>) -> BTreeMap<String, String> {
    let pair = |(key, value): (&String, &Value)| (key.clone(), view::scalar(value));
    map.into_iter().flatten().map(pair).collect()
}

impl Member {
    /// A pod at an address.
    pub fn read(pod: &Value, address: Ipv4Addr, ready: bool) -> Self {
        let ports = view::containers(pod)
            .iter()
            .chain(view::init_containers(pod))
            .flat_map(|container| view::list(container, &["ports"]))
            .filter_map(|port| {
                let number = port.get("containerPort")?.as_u64()?;
                Some((view::name(port).to_owned(), u16::try_from(number).ok()?))
            });
        let spec = |field: &str| view::text(pod, &["spec", field]).map(str::to_owned);
        Self {
            name: object::name(pod).to_owned(),
            namespace: object::namespace(pod).to_owned(),
            address,
            ready,
            labels: texts(object::labels(pod)),
            ports: ports.collect(),
            host: spec("hostname").zip(spec("subdomain")),
        }
    }
}

impl Service {
    /// Whether a pod stands behind it, ready or not.
    pub fn selects(&self, member: &Member) -> bool {
        let labelled = |(key, value): (&String, &String)| member.labels.get(key) == Some(value);
        !self.selector.is_empty() && member.namespace == self.namespace && self.selector.iter().all(labelled)
    }

    /// Whether a pod behind it is to get connections.
    fn offers(&self, member: &Member) -> bool {
        self.selects(member) && (member.ready || self.unready_too)
    }

    /// The full name.
    pub fn host_name(&self) -> String {
        format!("{}.{}.svc.cluster.local", self.name, self.namespace)
    }
}

impl ServicePort {
    /// The port of a pod this one leads to, if the pod has it.
    pub fn target_of(&self, member: &Member) -> Option<u16> {
        match &self.target {
            Target::Number(number) => Some(*number),
            Target::Name(name) => {
                let found = member.ports.iter().find(|(n, _)| n == name);
                found.map(|(_, number)| *number)
            }
        }
    }
}

/// Where connections to the addresses of Services go.
pub fn forwards(services: &[Service], members: &[Member]) -> Vec<Forward> {
    let mut out = Vec::new();
    for service in services {
        let Some(address) = service.address else { continue };
        for port in &service.ports {
            let offered = members.iter().filter(|m| service.offers(m));
            let to = offered.filter_map(|m| Some(SocketAddrV4::new(m.address, port.target_of(m)?)));
            out.push(Forward {
                protocol: port.protocol,
                from: SocketAddrV4::new(address, port.port),
                to: to.collect(),
            });
        }
    }
    out
}

#[cfg(test)]
mod tests;
