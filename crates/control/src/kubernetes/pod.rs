//! What proxies must know of a pod.

use super::world::Key;
use crate::mesh::{Tunnel, Workload};
use remora_pod::image::Image;
use remora_pod::{object, view};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// Labels of a pod.
pub(super) type Labels = Map<String, Value>;

/// Labels that some pod has, by their hash.
#[derive(Debug, Default)]
pub(super) struct Shared {
    known: HashMap<u64, Weak<Labels>>,
    /// How many there were when those nobody has were last forgotten.
    before: usize,
}

impl Shared {
    fn of(&mut self, labels: Labels) -> Arc<Labels> {
        let mut hasher = DefaultHasher::new();
        for (key, value) in &labels {
            (key, value.as_str()).hash(&mut hasher);
        }
        let hash = hasher.finish();
        let same = self.known.get(&hash).and_then(Weak::upgrade);
        if let Some(same) = same.filter(|same| **same == labels) {
            return same;
        }
        if self.known.len() > 2 * self.before + 64 {
            self.known.retain(|_, labels| labels.strong_count() > 0);
            self.before = self.known.len();
        }
        let labels = Arc::new(labels);
        self.known.insert(hash, Arc::downgrade(&labels));
        labels
    }
}

/// A pod that has an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pod {
    /// Many pods have the same, so they share them.
    pub(super) labels: Arc<Labels>,
    pub(super) node: String,
    pub(super) addresses: Vec<IpAddr>,
    /// Whether its addresses are its node's: they name nobody.
    pub(super) shared: bool,
    account: String,
    tunnel: Tunnel,
    healthy: bool,
    owner: String,
    /// Ports with names, which services may refer to.
    ports: Box<[(String, u16)]>,
}

impl Pod {
    /// `None`: nobody can connect to it.
    pub(super) fn read(document: &Value, shared: &mut Shared) -> Option<Self> {
        let over = matches!(
            view::text(document, &["status", "phase"]),
            Some("Succeeded" | "Failed")
        );
        let host_network = document["spec"]["hostNetwork"].as_bool() == Some(true);
        let addresses = addresses_of(document);
        if over || addresses.is_empty() {
            return None;
        }
        let account = view::text(document, &["spec", "serviceAccountName"]).filter(|name| !name.is_empty());
        Some(Self {
            labels: shared.of(object::labels(document).cloned().unwrap_or_default()),
            node: view::text(document, &["spec", "nodeName"])
                .unwrap_or_default()
                .to_owned(),
            addresses,
            shared: host_network,
            account: account.unwrap_or("default").to_owned(),
            tunnel: if host_network {
                Tunnel::None
            } else {
                tunnel_of(document)
            },
            healthy: is_ready(document) && document["metadata"]["deletionTimestamp"].is_null(),
            owner: remora_inject::Workload::of_pod(document).name,
            ports: named_ports(document),
        })
    }

    pub(super) fn named_port(&self, name: &str) -> Option<u16> {
        self.ports
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, number)| *number)
    }

    pub(super) fn document(&self, cluster: &str, key: &Key) -> Workload {
        Workload {
            name: key.1.clone(),
            namespace: key.0.clone(),
            uid: Some(uid(cluster, key)),
            addresses: self.addresses.clone(),
            service_account: self.account.clone(),
            tunnel: self.tunnel,
            node: self.node.clone(),
            healthy: self.healthy,
            host_network: self.shared,
            cluster: cluster.to_owned(),
            owner: (!self.owner.is_empty()).then(|| self.owner.clone()),
            ..Workload::named(&key.1, &key.0)
        }
    }
}

// istio: `CLUSTER/GROUP/KIND/NAMESPACE/NAME`; the group of pods is empty.
pub(super) fn uid(cluster: &str, (namespace, name): &Key) -> String {
    format!("{cluster}//Pod/{namespace}/{name}")
}

/// Region, zone and subzone of a node, as far as its labels tell.
pub(super) fn locality_of(node: &Value) -> Vec<String> {
    let keys = [
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        // istio: there is no such label of Kubernetes' own.
        "topology.istio.io/subzone",
    ];
    let label = |key: &&str| object::label(node, key).map(str::to_owned);
    keys.iter().map_while(label).collect()
}

fn addresses_of(document: &Value) -> Vec<IpAddr> {
    let listed = view::list(document, &["status", "podIPs"]);
    let all = listed.iter().filter_map(|entry| entry["ip"].as_str());
    let single = view::text(document, &["status", "podIP"]).filter(|_| listed.is_empty());
    all.chain(single).filter_map(|text| text.parse().ok()).collect()
}

fn is_ready(document: &Value) -> bool {
    view::list(document, &["status", "conditions"])
        .iter()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// How a pod is reached: what it says, else what its sidecar is.
fn tunnel_of(document: &Value) -> Tunnel {
    // istio: the label of proxies that speak HBONE, and the annotation of pods a node proxy serves.
    let says = object::label(document, "networking.istio.io/tunnel") == Some("http")
        || object::annotation(document, "ambient.istio.io/redirection") == Some("enabled");
    let sidecar = [view::containers(document), view::init_containers(document)]
        .into_iter()
        .find_map(|list| view::find(list, "istio-proxy"));
    let Some(sidecar) = sidecar else {
        return if says { Tunnel::Hbone } else { Tunnel::None };
    };
    let image = sidecar["image"].as_str().unwrap_or_default();
    if says || Image::split(image).name() == "remora" {
        Tunnel::Hbone
    } else if object::label(document, "security.istio.io/tlsMode") == Some("istio") {
        Tunnel::IstioMtls
    } else {
        Tunnel::None
    }
}

fn named_ports(document: &Value) -> Box<[(String, u16)]> {
    let all = [view::containers(document), view::init_containers(document)];
    let ports = all
        .into_iter()
        .flatten()
        .flat_map(|container| view::list(container, &["ports"]));
    let named = |port: &Value| {
        let number = u16::try_from(port["containerPort"].as_u64()?).ok()?;
        Some((port["name"].as_str()?.to_owned(), number))
    };
    ports.filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::{Labels, Shared};
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn the_same_labels_are_kept_once_and_those_nobody_has_are_forgotten() {
        let labels = |app: &str| -> Labels { [("app".to_owned(), json!(app))].into_iter().collect() };
        let mut shared = Shared::default();
        let (one, two) = (shared.of(labels("cart")), shared.of(labels("cart")));
        assert!(Arc::ptr_eq(&one, &two));
        for number in 0..1000 {
            shared.of(labels(&number.to_string()));
        }
        assert!(shared.known.len() < 200, "{}", shared.known.len());
        assert!(Arc::ptr_eq(&one, &shared.of(labels("cart"))));
    }
}
