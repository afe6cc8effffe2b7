//! The mesh of a run: who callers are, and what proxies are told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use remora_control::kubernetes::{Kind, Report, World};
use remora_control::mesh::{Document, Workload};
use remora_control::plane::Settings;
use remora_control::token::{Authenticator, Unidentified};
use remora_control::{Notice, Plane, PlaneError};
use remora_mtls::{Authority, AuthorityError, InvalidSpiffeId, SpiffeId, TrustDomains};
use remora_pod::{object, view};
use serde_json::{Value, json};

use crate::environment::service_account;
use crate::services::{Member, Protocol, Service, ServicePort, Target};
use crate::token::Mint;

/// The trust domain of every run.
pub const TRUST_DOMAIN: &str = "cluster.local";
/// Policies of this namespace are everybody's.
const ROOT_NAMESPACE: &str = "istio-system";
pub(crate) const LIFE: Duration = Duration::from_hours(24);
const ROOT_LIFE: Duration = Duration::from_hours(24 * 30);

/// The mesh of a run cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// A root certificate.
    #[error("make a root certificate")]
    Authority(#[from] AuthorityError),
    /// A service account whose name cannot be part of an identity.
    #[error("make an identity of {namespace}/{account}")]
    Identity {
        /// Its namespace.
        namespace: String,
        /// Its name.
        account: String,
        /// Why not.
        #[source]
        source: InvalidSpiffeId,
    },
    /// The control plane.
    #[error("start the control plane")]
    Plane(#[from] PlaneError),
}

/// Knows the tokens of the run.
struct Known(Mint);

#[tonic::async_trait]
impl Authenticator for Known {
    async fn identify(&self, token: &str) -> Result<SpiffeId, Unidentified> {
        let refused = |error: &dyn std::error::Error| Unidentified::Refused(error.to_string());
        let owner = self.0.read(token, SystemTime::now());
        let (namespace, account) = owner.map_err(|error| refused(&error))?;
        SpiffeId::of_service_account(TRUST_DOMAIN, &namespace, &account).map_err(|error| refused(&error))
    }
}

/// The control plane of a run with pods of these accounts.
pub fn plane(
    accounts: &BTreeSet<(String, String)>,
    mint: Mint,
    notice: impl Fn(&Notice) + Send + Sync + 'static,
) -> Result<Plane, MeshError> {
    let authority = Authority::generate("remora run", SystemTime::now(), ROOT_LIFE)?;
    // Said now rather than when the first proxy asks.
    for (namespace, account) in accounts {
        let id = SpiffeId::of_service_account(TRUST_DOMAIN, namespace, account);
        id.map_err(|source| MeshError::Identity {
            namespace: namespace.clone(),
            account: account.clone(),
            source,
        })?;
    }
    let settings = Settings {
        trust_domain: TRUST_DOMAIN.to_owned(),
        server_names: vec![
            "istiod.istio-system.svc".to_owned(),
            "istiod.istio-system.svc.cluster.local".to_owned(),
        ],
        certificate_life: LIFE,
        longest_certificate_life: LIFE,
    };
    Ok(Plane::new(authority, Arc::new(Known(mint)), settings, notice)?)
}

/// A pod as the mesh sees it.
#[derive(Debug, Clone)]
pub struct Peer<'a> {
    /// The pod.
    pub pod: &'a Value,
    /// Where it is, and whether it is ready.
    pub member: &'a Member,
}

/// The documents that describe the mesh at this moment, in the form in which people write them.
pub fn documents(
    services: &[Service],
    peers: &[Peer<'_>],
    policies: &[Value],
) -> Result<Vec<Document>, serde_json::Error> {
    let described = services
        .iter()
        .filter(|s| s.external_name.is_none())
        .map(mesh_service)
        .chain(peers.iter().map(|peer| workload(peer, services)))
        .map(serde_json::from_value);
    let mut documents = described.collect::<Result<Vec<Document>, _>>()?;
    add_policies(&mut documents, peers, policies);
    Ok(documents)
}

fn world_of(policies: &[Value]) -> World {
    // The sidecars of a run know no aliases.
    let mut world = World::new("run", ROOT_NAMESPACE, TRUST_DOMAIN, TrustDomains::default());
    for policy in policies {
        let kind = match object::kind(policy) {
            "PeerAuthentication" => Kind::PeerAuthentication,
            _ => Kind::AuthorizationPolicy,
        };
        world.put(kind, policy);
    }
    world
}

/// The policies of a run that are not enforced as written.
pub fn reports(policies: &[Value]) -> Vec<Report> {
    let mut reports = world_of(policies).reports();
    reports.retain(|report| !report.problems.is_empty());
    reports
}

/// Policies mean here what they mean in a cluster, so the control plane of clusters translates them.
fn add_policies(documents: &mut Vec<Document>, peers: &[Peer<'_>], policies: &[Value]) {
    if policies.is_empty() {
        return;
    }
    let mut world = world_of(policies);
    for peer in peers {
        let mut pod = peer.pod.clone();
        pod["status"] = json!({"phase": "Running", "podIP": peer.member.address.to_string()});
        world.put(Kind::Pod, &pod);
    }
    for (_, document) in world.changes() {
        match document {
            Some(policy @ Document::Policy(_)) => documents.push(policy),
            Some(Document::Workload(named)) => {
                let same = |d: &&mut Workload| (&d.namespace, &d.name) == (&named.namespace, &named.name);
                let workloads = documents.iter_mut().filter_map(|document| match document {
                    Document::Workload(workload) => Some(workload),
                    _ => None,
                });
                for workload in workloads.filter(same) {
                    workload.policies.clone_from(&named.policies);
                    workload.strict_by.clone_from(&named.strict_by);
                }
            }
            _ => {}
        }
    }
}

fn mesh_service(service: &Service) -> Value {
    let port = |port: &ServicePort| match port.target {
        Target::Number(target) => json!({"port": port.port, "targetPort": target}),
        Target::Name(_) => json!({"port": port.port}),
    };
    json!({
        "kind": "Service",
        "name": service.name,
        "namespace": service.namespace,
        "addresses": service.address.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "ports": tcp(service).map(port).collect::<Vec<_>>(),
        "publishNotReadyAddresses": service.unready_too,
    })
}

/// The mesh carries TCP only.
fn tcp(service: &Service) -> impl Iterator<Item = &ServicePort> {
    service.ports.iter().filter(|p| p.protocol == Protocol::Tcp)
}

fn workload(peer: &Peer<'_>, services: &[Service]) -> Value {
    let member = peer.member;
    let mut joined = BTreeMap::new();
    for service in services.iter().filter(|s| s.selects(member)) {
        let mapping = |port: &ServicePort| Some(format!("{}:{}", port.port, port.target_of(member)?));
        let ports: Vec<String> = tcp(service).filter_map(mapping).collect();
        joined.insert(format!("{}/{}", service.namespace, service.host_name()), ports);
    }
    json!({
        "kind": "Workload",
        "name": member.name,
        "namespace": member.namespace,
        "addresses": [member.address.to_string()],
        "serviceAccount": service_account(peer.pod),
        "tunnel": if is_meshed(peer.pod) { "hbone" } else { "none" },
        "services": joined,
        "healthy": member.ready,
        "owner": owner(peer.pod),
    })
}

/// Whether a pod has a proxy of its own.
pub fn is_meshed(pod: &Value) -> bool {
    view::container(pod, "istio-proxy").is_some()
}

/// What the pod is a part of, as its proxy says it.
fn owner(pod: &Value) -> Option<String> {
    object::label(pod, "service.istio.io/canonical-name")
        .or_else(|| object::label(pod, "app"))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::{Peer, documents};
    use crate::services::{self, Member};
    use remora_control::mesh::{Document, Tunnel};
    use serde_json::json;

    #[test]
    fn meshed_pods_are_reached_by_tunnel_and_others_plainly() {
        let service = json!({"metadata": {"name": "cart", "namespace": "shop"}, "spec": {"selector": {"app": "cart"},
            "ports": [{"port": 80, "targetPort": "web"}, {"port": 53, "protocol": "UDP"}]}});
        let services = services::read(&[service], "default");
        let pod = |proxy: bool| {
            let mut containers =
                vec![json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}]})];
            if proxy {
                containers.push(json!({"name": "istio-proxy"}));
            }
            json!({"metadata": {"name": format!("p{proxy}"), "namespace": "shop", "labels": {"app": "cart"}},
                "spec": {"serviceAccountName": "sa", "containers": containers}})
        };
        let pods = [pod(true), pod(false)];
        let members: Vec<Member> = pods
            .iter()
            .map(|pod| Member::read(pod, [10, 244, 0, 9].into(), true))
            .collect();
        let peers: Vec<Peer<'_>> = pods
            .iter()
            .zip(&members)
            .map(|(pod, member)| Peer { pod, member })
            .collect();
        let documents = documents(&services, &peers, &[]).unwrap();
        let [
            Document::Service(service),
            Document::Workload(meshed),
            Document::Workload(plain),
        ] = &documents[..]
        else {
            panic!("{documents:?}")
        };
        assert_eq!(service.ports.len(), 1, "UDP is not carried");
        assert_eq!(meshed.tunnel, Tunnel::Hbone);
        assert_eq!(plain.tunnel, Tunnel::None);
        assert_eq!(meshed.service_account, "sa");
        assert_eq!(meshed.services["shop/cart.shop.svc.cluster.local"], ["80:8080"]);
    }

    #[test]
    fn policies_are_for_those_they_select() {
        let pod =
            |name: &str| json!({"metadata": {"name": name, "namespace": "shop", "labels": {"app": name}}});
        let pods = [pod("open"), pod("closed")];
        let members = pods
            .each_ref()
            .map(|pod| Member::read(pod, [10, 244, 0, 9].into(), true));
        let peers: Vec<Peer<'_>> = pods
            .iter()
            .zip(&members)
            .map(|(pod, member)| Peer { pod, member })
            .collect();
        let strict = json!({"kind": "PeerAuthentication", "metadata": {"name": "strict", "namespace": "shop"},
            "spec": {"selector": {"matchLabels": {"app": "closed"}}, "mtls": {"mode": "STRICT"}}});
        let documents = documents(&[], &peers, &[strict]).unwrap();
        let [
            Document::Workload(open),
            Document::Workload(closed),
            Document::Policy(policy),
        ] = &documents[..]
        else {
            panic!("{documents:?}")
        };
        assert!(open.policies.is_empty());
        assert_eq!(closed.policies, [format!("{}/{}", policy.namespace, policy.name)]);
    }
}
