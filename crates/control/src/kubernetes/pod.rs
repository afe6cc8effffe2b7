//! What proxies must know of a pod.

use super::shared::Shared;
use crate::mesh::{Tunnel, Workload};
use remora_pod::image::Image;
use remora_pod::{object, view};
use serde_json::{Map, Value};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

/// Labels of a pod.
pub(super) type Labels = Map<String, Value>;

/// What the pods of a workload have in common.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) labels: Labels,
    pub(super) account: String,
    /// Ports with names, which services may refer to.
    pub(super) ports: Box<[(String, u16)]>,
    pub(super) tunnel: Tunnel,
    /// Whether its addresses are its node's: they name nobody.
    pub(super) shared: bool,
}

/// A pod that has an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pod {
    sort: Arc<Sort>,
    /// Itself, where nothing else is.
    owner: Arc<str>,
    pub(super) node: Arc<str>,
    pub(super) addresses: Box<[IpAddr]>,
    healthy: bool,
}

impl Deref for Pod {
    type Target = Sort;

    fn deref(&self) -> &Sort {
        &self.sort
    }
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
        let sort = Sort {
            labels: object::labels(document).cloned().unwrap_or_default(),
            account: account.unwrap_or("default").to_owned(),
            ports: named_ports(document),
            tunnel: if host_network {
                Tunnel::None
            } else {
                tunnel_of(document)
            },
            shared: host_network,
        };
        Some(Self {
            sort: shared.sort(sort),
            owner: shared.name(&remora_inject::Workload::of_pod(document).name),
            node: shared.name(view::text(document, &["spec", "nodeName"]).unwrap_or_default()),
            addresses,
            healthy: is_ready(document) && document["metadata"]["deletionTimestamp"].is_null(),
        })
    }

    pub(super) fn named_port(&self, name: &str) -> Option<u16> {
        self.ports
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, number)| *number)
    }

    pub(super) fn document(&self, cluster: &str, namespace: &str, name: &str) -> Workload {
        Workload {
            uid: Some(uid(cluster, namespace, name)),
            addresses: self.addresses.to_vec(),
            service_account: self.account.clone(),
            tunnel: self.tunnel,
            node: self.node.to_string(),
            healthy: self.healthy,
            host_network: self.shared,
            cluster: cluster.to_owned(),
            owner: (!self.owner.is_empty()).then(|| self.owner.to_string()),
            ..Workload::named(name, namespace)
        }
    }
}

// istio: `CLUSTER/GROUP/KIND/NAMESPACE/NAME`; the group of pods is empty.
pub(super) fn uid(cluster: &str, namespace: &str, name: &str) -> String {
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

fn addresses_of(document: &Value) -> Box<[IpAddr]> {
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
