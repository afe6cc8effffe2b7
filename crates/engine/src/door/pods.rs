//! Pods as they are told about, and found by name.

use std::net::Ipv4Addr;

use remora_pod::object;
use remora_pod::spec::{Kind, PodView};
use remora_startup::kubelet::{ContainerState, Status};
use remora_startup::network::NetState;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Which;
use crate::manifest::Owner;
use crate::world::PodId;

/// A pod of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodInfo {
    /// Its number in the run.
    pub id: PodId,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `Deployment/web`: what made it.
    pub owner: Option<String>,
    /// As the API writes it.
    pub phase: String,
    /// As `kubectl get pods` has it.
    pub status: String,
    /// Whether it is ready.
    pub ready: bool,
    /// All restarts of its containers.
    pub restarts: u32,
    /// What its connections meet: `direct`, `broken` (captured, and no proxy), `proxied`.
    pub network: String,
    /// Where it is.
    pub address: Option<Ipv4Addr>,
    /// Milliseconds since it was made.
    pub age_millis: u64,
    /// The container that is meant when none is named.
    pub usual_container: String,
    /// All of them, in the order in which they start.
    pub containers: Vec<ContainerInfo>,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerInfo {
    /// Its name.
    pub name: String,
    /// `init`, `sidecar` or `main`.
    pub kind: String,
    /// `Running`, `Exited(1)`, or why it waits.
    pub state: String,
    /// Whether it counts as ready.
    pub ready: bool,
    /// How often it was started again.
    pub restarts: u32,
}

impl PodInfo {
    /// What there is to say about a pod.
    pub(crate) fn new(id: PodId, pod: &Value, owner: &Owner, status: Option<&Status>) -> Self {
        let view = PodView::read(pod);
        let containers: Vec<ContainerInfo> = (0..view.containers.len())
            .map(|slot| container(&view, slot, status))
            .collect();
        Self {
            id,
            namespace: object::namespace(pod).to_owned(),
            name: object::name(pod).to_owned(),
            owner: workload_of(owner),
            phase: status.map_or("Pending", |s| s.phase.as_str()).to_owned(),
            status: status.map_or_else(|| "Pending".to_owned(), |s| s.kubectl(&view)),
            ready: status.is_some_and(|s| s.ready),
            restarts: containers.iter().map(|c| c.restarts).sum(),
            network: NetState::Direct.as_str().to_owned(),
            address: None,
            age_millis: 0,
            usual_container: usual(pod, &view),
            containers,
        }
    }

    /// Ready containers and all that count, as in `1/2`.
    pub fn readiness(&self) -> (usize, usize) {
        let mut counted = self.containers.iter().filter(|c| c.kind != "init");
        let total = counted.clone().count();
        (counted.by_ref().filter(|c| c.ready).count(), total)
    }
}

/// `Deployment/web`.
pub fn workload_of(owner: &Owner) -> Option<String> {
    match owner {
        Owner::Nobody => None,
        Owner::Service { kind, name } => Some(format!("{kind}/{name}")),
        Owner::Job(job) => Some(format!("Job/{}", job.name)),
    }
}

fn usual(pod: &Value, view: &PodView) -> String {
    let asked = object::annotation(pod, "kubectl.kubernetes.io/default-container");
    let asked = asked.filter(|name| view.slot(name).is_some());
    let first = view
        .main_slots()
        .next()
        .map(|slot| view.containers[slot].name.as_str());
    asked.or(first).unwrap_or_default().to_owned()
}

fn container(view: &PodView, slot: usize, status: Option<&Status>) -> ContainerInfo {
    let described = &view.containers[slot];
    let status = status.and_then(|s| s.containers.get(slot));
    ContainerInfo {
        name: described.name.clone(),
        kind: match described.kind {
            Kind::Init => "init",
            Kind::Sidecar => "sidecar",
            Kind::Main => "main",
        }
        .to_owned(),
        state: match status.map(|s| s.state) {
            None => "Waiting".to_owned(),
            Some(ContainerState::Running) => "Running".to_owned(),
            Some(ContainerState::Waiting(reason)) => reason.as_str().to_owned(),
            Some(ContainerState::Terminated(0)) => "Completed".to_owned(),
            Some(ContainerState::Terminated(code)) => format!("Exited({code})"),
        },
        ready: status.is_some_and(|s| s.ready),
        restarts: status.map_or(0, remora_startup::kubelet::ContainerStatus::restarts),
    }
}

/// Nobody, or more than one, has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// Nobody.
    #[error("{what} is not here; there {}", listed(.there))]
    Nobody {
        /// As typed.
        what: String,
        /// What there is.
        there: Vec<String>,
    },
    /// Several, in different namespaces.
    #[error("{what} is in several namespaces ({}); choose one with --namespace", .namespaces.join(", "))]
    Several {
        /// As typed.
        what: String,
        /// Where.
        namespaces: Vec<String>,
    },
    /// A kind that makes no pods.
    #[error(
        "{kind} is nothing that makes pods; use pod, deployment, replicaset, statefulset, daemonset or job"
    )]
    Kind {
        /// As typed.
        kind: String,
    },
}

fn listed(there: &[String]) -> String {
    match there {
        [] => "are no pods".to_owned(),
        [one] => format!("is {one}"),
        many => format!("are {}", many.join(", ")),
    }
}

/// Kinds as people write them.
fn kind(typed: &str) -> Option<&'static str> {
    let plain = typed.to_ascii_lowercase();
    let plain = plain.split('.').next().unwrap_or_default();
    Some(match plain.strip_suffix('s').unwrap_or(plain) {
        "pod" | "po" => "Pod",
        "deployment" | "deploy" => "Deployment",
        "replicaset" | "r" => "ReplicaSet",
        "replicationcontroller" | "rc" => "ReplicationController",
        "statefulset" | "st" => "StatefulSet",
        "daemonset" | "d" => "DaemonSet",
        "job" => "Job",
        _ => return None,
    })
}

/// The pods somebody means, and the workload that is meant with them if it was named by its kind.
pub fn named<'a>(pods: &'a [PodInfo], which: &Which) -> Result<(Vec<&'a PodInfo>, Option<String>), Unknown> {
    let here = |pod: &&PodInfo| which.namespace.as_ref().is_none_or(|n| *n == pod.namespace);
    let (workload, name) = match which.name.split_once('/') {
        None => (None, which.name.as_str()),
        Some((typed, name)) => {
            let kind = kind(typed).ok_or_else(|| Unknown::Kind {
                kind: typed.to_owned(),
            })?;
            (Some(format!("{kind}/{name}")).filter(|_| kind != "Pod"), name)
        }
    };
    let means = |pod: &&PodInfo| match &workload {
        Some(workload) => pod.owner.as_ref() == Some(workload),
        None => pod.name == name,
    };
    let found: Vec<&PodInfo> = pods.iter().filter(here).filter(means).collect();
    let mut namespaces: Vec<String> = found.iter().map(|p| p.namespace.clone()).collect();
    namespaces.dedup();
    match namespaces.len() {
        0 => Err(Unknown::Nobody {
            what: which.name.clone(),
            there: pods.iter().filter(here).map(|p| p.name.clone()).collect(),
        }),
        1 => Ok((found, workload)),
        _ => Err(Unknown::Several {
            what: which.name.clone(),
            namespaces,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{PodInfo, Unknown, named};
    use crate::door::Which;
    use crate::manifest::Owner;
    use serde_json::json;

    fn pods() -> Vec<PodInfo> {
        let owner = Owner::Service {
            kind: "Deployment".to_owned(),
            name: "web".to_owned(),
        };
        let one = |id, namespace: &str, name: &str, owner: &Owner| {
            let pod = json!({"metadata": {"name": name, "namespace": namespace,
                "annotations": {"kubectl.kubernetes.io/default-container": "app"}},
                "spec": {"containers": [{"name": "istio-proxy"}, {"name": "app"}]}});
            PodInfo::new(id, &pod, owner, None)
        };
        vec![
            one(0, "shop", "web-1", &owner),
            one(1, "shop", "web-2", &owner),
            one(2, "shop", "alone", &Owner::Nobody),
            one(3, "other", "alone", &Owner::Nobody),
        ]
    }

    fn found(name: &str, namespace: Option<&str>) -> Result<Vec<usize>, Unknown> {
        let which = Which {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        };
        let pods = pods();
        named(&pods, &which).map(|(pods, _)| pods.iter().map(|p| p.id).collect())
    }

    #[test]
    fn pods_are_found_by_name_and_by_what_made_them() {
        assert_eq!(found("web-1", None).unwrap(), [0]);
        assert_eq!(found("pod/web-2", None).unwrap(), [1]);
        assert_eq!(found("deploy/web", None).unwrap(), [0, 1]);
        assert_eq!(found("deployments.apps/web", None).unwrap(), [0, 1]);
        assert_eq!(found("alone", Some("other")).unwrap(), [3]);
        assert_eq!(pods()[0].usual_container, "app");
    }

    #[test]
    fn a_name_that_does_not_decide_is_an_error_that_helps() {
        let text = |name, namespace| found(name, namespace).unwrap_err().to_string();
        assert_eq!(
            text("alone", None),
            "alone is in several namespaces (shop, other); choose one with --namespace"
        );
        assert_eq!(text("web", Some("other")), "web is not here; there is alone");
        assert!(text("service/web", None).starts_with("service is nothing that makes pods"));
    }
}
