//! The names of Services and pods.
//!
//! k8s: `SERVICE.NAMESPACE.svc.cluster.local`, `HOSTNAME.SERVICE.NAMESPACE.…` for pods behind a headless Service, and
//! `_PORT._PROTOCOL.SERVICE.…` for its ports.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::{CONTROL_ADDRESS, Member, Service};

const DOMAIN: &str = "cluster.local";

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// These addresses; none if the name exists and nobody is there.
    Addresses(Vec<Ipv4Addr>),
    /// Ports and the names they are found under.
    Ports(Vec<(u16, String)>),
    /// Another name.
    Alias(String),
}

/// All names at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    known: BTreeMap<String, Answer>,
}

impl Names {
    /// The names of these Services and the pods behind them.
    pub fn new(services: &[Service], members: &[Member]) -> Self {
        let mut names = Self::default();
        let control = format!("istiod.istio-system.svc.{DOMAIN}");
        names.put(&control, Answer::Addresses(vec![CONTROL_ADDRESS]));
        for service in services {
            names.add(service, members);
        }
        names
    }

    fn put(&mut self, name: &str, answer: Answer) {
        self.known.insert(name.to_ascii_lowercase(), answer);
    }

    fn add(&mut self, service: &Service, members: &[Member]) {
        let host = service.host_name();
        if let Some(other) = &service.external_name {
            self.put(&host, Answer::Alias(other.clone()));
            return;
        }
        let offered: Vec<&Member> = members.iter().filter(|m| service.offers(m)).collect();
        if let Some(address) = service.address {
            self.put(&host, Answer::Addresses(vec![address]));
        } else {
            let addresses = offered.iter().map(|m| m.address).collect();
            self.put(&host, Answer::Addresses(addresses));
        }
        let mut own = Vec::new();
        for member in &offered {
            let dashed = member.address.to_string().replace('.', "-");
            let label = match &member.host {
                Some((hostname, subdomain)) if *subdomain == service.name => hostname.clone(),
                _ => dashed,
            };
            let name = format!("{label}.{host}");
            if service.headless {
                self.put(&name, Answer::Addresses(vec![member.address]));
            }
            own.push((name, *member));
        }
        for port in service.ports.iter().filter(|p| !p.name.is_empty()) {
            let name = format!("_{}._{}.{host}", port.name, port.protocol.word());
            let targets = if service.headless {
                let each = own.iter();
                each.filter_map(|(n, m)| Some((port.target_of(m)?, n.clone())))
                    .collect()
            } else {
                vec![(port.port, host.clone())]
            };
            self.put(&name, Answer::Ports(targets));
        }
    }

    /// What a name (without the final dot) stands for.
    pub fn get(&self, name: &str) -> Option<&Answer> {
        self.known.get(&name.to_ascii_lowercase())
    }

    /// Whether a name is in the cluster's own domain, so that nobody else needs to be asked.
    pub fn is_ours(name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        name == DOMAIN || name.ends_with(&format!(".{DOMAIN}"))
    }
}
