//! DNS for a pod with an Envoy: the control plane sends a name table (NDS), the agent answers queries from it.

use prost::Message;
use remora_proxy::dns::{Dns, Sockets};
use remora_proxy::mesh::Mesh;
use remora_xds::delta::{Change, Received};
use remora_xds::proto::workload::address::Type;
use remora_xds::proto::workload::{Address, NetworkAddress, Service};
use remora_xds::types::ADDRESS;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The namespace of hosts that are not the cluster's.
const OUTSIDE: &str = "outside";

#[derive(Clone, PartialEq, Message)]
struct NameTable {
    #[prost(btree_map = "string, message", tag = "1")]
    table: BTreeMap<String, NameInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct NameInfo {
    #[prost(string, repeated, tag = "1")]
    ips: Vec<String>,
    #[prost(string, tag = "3")]
    short: String,
    #[prost(string, tag = "4")]
    namespace: String,
}

/// Answers queries once the first table has arrived; earlier queries wait in the sockets.
pub(super) struct Names {
    mesh: Arc<Mesh>,
    known: Mutex<BTreeSet<String>>,
    waiting: Mutex<Option<(Arc<Dns>, Sockets)>>,
}

impl Names {
    /// `dns` answers from `mesh`, which no other task uses.
    pub(super) fn new(mesh: Arc<Mesh>, dns: Arc<Dns>, sockets: Sockets) -> Self {
        Self {
            mesh,
            known: Mutex::default(),
            waiting: Mutex::new(Some((dns, sockets))),
        }
    }

    /// Applies a table completely or not at all.
    pub(super) fn apply(&self, bytes: &[u8]) -> Result<(), String> {
        let table = NameTable::decode(bytes).map_err(|error| error.to_string())?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (received, names) = received(table, &known)?;
        if let Some((name, why)) = self.mesh.apply(&received).into_iter().next() {
            return Err(format!("{name}: {why}"));
        }
        *known = names;
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((dns, sockets)) = waiting {
            tokio::spawn(dns.serve(sockets));
        }
        Ok(())
    }
}

/// Converts a table for the mesh: every host becomes a service.
fn received(table: NameTable, before: &BTreeSet<String>) -> Result<(Received, BTreeSet<String>), String> {
    let mut received = Received::default();
    ADDRESS.clone_into(&mut received.type_url);
    let mut names = BTreeSet::new();
    for (host, info) in table.table {
        let service = service(&host, info)?;
        let name = format!("{}/{}", service.namespace, service.hostname);
        let address = Address {
            r#type: Some(Type::Service(service)),
        };
        received.changes.push(Change::Update {
            name: name.clone(),
            bytes: address.encode_to_vec(),
        });
        names.insert(name);
    }
    let gone = before.difference(&names).cloned();
    received.changes.extend(gone.map(|name| Change::Remove { name }));
    Ok((received, names))
}

fn service(host: &str, info: NameInfo) -> Result<Service, String> {
    let address = |text: &String| {
        let ip: IpAddr = text
            .parse()
            .map_err(|_| format!("{host}: {text} is no address"))?;
        let address = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        Ok::<_, String>(NetworkAddress {
            network: String::new(),
            address,
        })
    };
    let namespace = if info.namespace.is_empty() {
        OUTSIDE.to_owned()
    } else {
        info.namespace
    };
    Ok(Service {
        name: info.short,
        namespace,
        hostname: host.to_ascii_lowercase(),
        addresses: info.ips.iter().map(address).collect::<Result<_, _>>()?,
        ..Service::default()
    })
}

#[cfg(test)]
mod tests {
    use super::{NameInfo, NameTable, received};
    use remora_proxy::dns::names::{Client, find};
    use remora_proxy::mesh::Mesh;
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    fn table(hosts: &[(&str, &str, &str)]) -> NameTable {
        let info = |(host, namespace, ip): &(&str, &str, &str)| {
            let info = NameInfo {
                ips: vec![(*ip).to_owned()],
                short: String::new(),
                namespace: (*namespace).to_owned(),
            };
            ((*host).to_owned(), info)
        };
        NameTable {
            table: hosts.iter().map(info).collect(),
        }
    }

    #[test]
    fn names_mean_what_the_last_table_says() {
        let mesh = Mesh::default();
        let client = Client {
            namespace: "shop".to_owned(),
            domain: "cluster.local".to_owned(),
            search: Vec::new(),
        };
        let ask =
            |name: &str| mesh.names(|directory| find(name, &client, directory).map(|found| found.addresses));
        let first = table(&[
            ("cart.shop.svc.cluster.local", "shop", "10.0.0.1"),
            ("*.Example.com", "", "10.0.0.2"),
        ]);
        let (changes, names) = received(first, &BTreeSet::new()).unwrap();
        assert!(mesh.apply(&changes).is_empty());
        let one: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap()];
        for name in [
            "cart",
            "cart.shop",
            "cart.shop.svc",
            "cart.shop.svc.cluster.local",
        ] {
            assert_eq!(ask(name).as_ref(), Some(&one), "{name}");
        }
        assert!(ask("api.example.com").is_some());
        let (changes, _) =
            received(table(&[("db.shop.svc.cluster.local", "shop", "fd00::1")]), &names).unwrap();
        assert!(mesh.apply(&changes).is_empty());
        assert!(ask("cart").is_none() && ask("api.example.com").is_none() && ask("db").is_some());
        let wrong = table(&[("x", "", "not an address")]);
        assert_eq!(
            received(wrong, &BTreeSet::new()).unwrap_err(),
            "x: not an address is no address"
        );
    }
}
