//! Which of the mesh's hosts a name means to a client.
//!
//! 1. The name is a host's.
//! 2. It is short for a host of the cluster: `svc`, `svc.ns`, `svc.ns.svc`.
//! 3. It is a pod of a service without addresses of its own: `pod.` before any of these.
//! 4. A wildcard host covers it.
//! 5. It is 1, 3 or 4 with something of the client's search list behind it. The answer then names what was meant.
//!
//! A name with a search domain behind it is not shortened any further: `redis.corp.example` is not the service
//! `redis`, even where `corp.example` is searched.

use std::net::IpAddr;

/// What a client's names are short for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Client {
    /// The client's namespace.
    pub namespace: String,
    /// The domain of the cluster, such as `cluster.local`.
    pub domain: String,
    /// Domains its resolver tries, from `resolv.conf`.
    pub search: Vec<String>,
}

/// Hosts by name. Names are in small letters and without the last dot.
pub trait Directory {
    /// The addresses of a host, as somebody in `namespace` sees it; never an empty list.
    fn host(&self, name: &str, namespace: &str) -> Option<Vec<IpAddr>>;
    /// The addresses of a pod by the name of its service; never an empty list.
    fn pod(&self, pod: &str, service: &str, namespace: &str) -> Option<Vec<IpAddr>>;
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Of both families.
    pub addresses: Vec<IpAddr>,
    /// What was meant, if it was found by the search list.
    pub meant: Option<String>,
}

/// Looks a name up.
pub fn find(name: &str, client: &Client, directory: &dyn Directory) -> Option<Found> {
    let namespace = client.namespace.as_str();
    let whole = |name: &str| {
        directory.host(name, namespace).or_else(|| {
            let (pod, service) = name.split_once('.')?;
            directory.pod(pod, service, namespace)
        })
    };
    let found = |addresses| Found {
        addresses,
        meant: None,
    };
    let direct = whole(name)
        .or_else(|| longer(name, client).iter().find_map(|name| whole(name)))
        .or_else(|| wildcard(name, namespace, directory));
    direct.map(found).or_else(|| {
        client.search.iter().find_map(|domain| {
            let meant = name.strip_suffix(domain.as_str())?.strip_suffix('.')?;
            let addresses = whole(meant).or_else(|| wildcard(meant, namespace, directory))?;
            Some(Found {
                addresses,
                meant: Some(meant.to_owned()),
            })
        })
    })
}

/// What a short name can be short for, the likelier first.
fn longer(name: &str, client: &Client) -> Vec<String> {
    let Client {
        namespace, domain, ..
    } = client;
    let labels = name.split('.').count();
    let mut names = Vec::new();
    if name.rsplit('.').next() == Some("svc") && labels > 2 {
        names.push(format!("{name}.{domain}"));
    }
    if (2..=3).contains(&labels) {
        names.push(format!("{name}.svc.{domain}"));
    }
    if labels <= 2 {
        names.push(format!("{name}.{namespace}.svc.{domain}"));
    }
    names
}

/// The longest wildcard that covers a name; never the name of the wildcard's own domain.
fn wildcard(name: &str, namespace: &str, directory: &dyn Directory) -> Option<Vec<IpAddr>> {
    let mut rest = name;
    while let Some((_, parent)) = rest.split_once('.') {
        if let Some(addresses) = directory.host(&format!("*.{parent}"), namespace) {
            return Some(addresses);
        }
        rest = parent;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Client, Directory, find};
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    #[derive(Default)]
    struct Hosts {
        hosts: BTreeMap<&'static str, &'static str>,
        pods: BTreeMap<(&'static str, &'static str), &'static str>,
    }

    impl Directory for Hosts {
        fn host(&self, name: &str, _: &str) -> Option<Vec<IpAddr>> {
            Some(vec![self.hosts.get(name)?.parse().unwrap()])
        }

        fn pod(&self, pod: &str, service: &str, _: &str) -> Option<Vec<IpAddr>> {
            let key = self.pods.keys().find(|key| **key == (pod, service))?;
            Some(vec![self.pods[key].parse().unwrap()])
        }
    }

    fn hosts() -> Hosts {
        Hosts {
            hosts: BTreeMap::from([
                ("cart.shop.svc.cluster.local", "10.0.0.1"),
                ("cart.bank.svc.cluster.local", "10.0.0.2"),
                ("redis.shop.svc.cluster.local", "10.0.0.3"),
                ("api.example.com", "10.0.0.4"),
                ("*.example.com", "10.0.0.5"),
                ("*.deep.example.com", "10.0.0.6"),
                ("db.shop.svc.cluster.local", "10.0.0.7"),
            ]),
            pods: BTreeMap::from([(("db-0", "db.shop.svc.cluster.local"), "10.0.0.8")]),
        }
    }

    #[test]
    fn names_mean_what_they_mean_in_the_clients_namespace() {
        let search = [
            "shop.svc.cluster.local",
            "svc.cluster.local",
            "cluster.local",
            "corp.example",
        ];
        let client = Client {
            namespace: "shop".to_owned(),
            domain: "cluster.local".to_owned(),
            search: search.map(str::to_owned).to_vec(),
        };
        let cases = [
            ("cart", "10.0.0.1", None),
            ("cart.bank", "10.0.0.2", None),
            ("cart.bank.svc", "10.0.0.2", None),
            ("cart.bank.svc.cluster.local", "10.0.0.2", None),
            ("db-0.db", "10.0.0.8", None),
            ("db-0.db.shop", "10.0.0.8", None),
            ("db-0.db.shop.svc", "10.0.0.8", None),
            ("db-0.db.shop.svc.cluster.local", "10.0.0.8", None),
            ("api.example.com", "10.0.0.4", None),
            ("www.example.com", "10.0.0.5", None),
            ("a.b.example.com", "10.0.0.5", None),
            ("a.deep.example.com", "10.0.0.6", None),
            (
                "api.example.com.shop.svc.cluster.local",
                "10.0.0.4",
                Some("api.example.com"),
            ),
            (
                "www.example.com.corp.example",
                "10.0.0.5",
                Some("www.example.com"),
            ),
            (
                "cart.bank.svc.cluster.local.shop.svc.cluster.local",
                "10.0.0.2",
                Some("cart.bank.svc.cluster.local"),
            ),
        ];
        for (name, address, meant) in cases {
            let found = find(name, &client, &hosts()).unwrap_or_else(|| panic!("{name} is not found"));
            assert_eq!(found.addresses, [address.parse::<IpAddr>().unwrap()], "{name}");
            assert_eq!(found.meant.as_deref(), meant, "{name}");
        }
        for name in [
            "nobody",
            "example.com",
            "svc",
            "cart.nowhere",
            "cart.shop.svc.cluster",
            "cart.cluster.local",
            "db-1.db",
            "redis.corp.example",
            "cart.bank.corp.example",
            "xexample.com",
        ] {
            assert_eq!(find(name, &client, &hosts()), None, "{name}");
        }
        let elsewhere = Client {
            namespace: "bank".to_owned(),
            ..client
        };
        let found = find("cart", &elsewhere, &hosts()).unwrap();
        assert_eq!(found.addresses, ["10.0.0.2".parse::<IpAddr>().unwrap()]);
    }
}
