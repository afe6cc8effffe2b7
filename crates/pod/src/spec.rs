//! A pod as everything that only reads it sees it.
//!
//! A [`PodView`] is a flat, defaulted copy of the fields that decide how a pod starts, is probed and stops.
//! It is read from a JSON document of any shape: a pod, anything with a pod template, or nonsense.
//! It promises never to fail and never to panic: a field of the wrong type counts as absent, as an API
//! server would have refused the document before a kubelet saw it.
//! It does not validate, and it does not keep the document.

use crate::workload;
use serde_json::Value;

mod container;
mod probe;

pub use container::{Container, Kind, RestartRule, mentions};
pub use probe::{Handler, Hook, Probe, ProbeKind};

/// Index of a container in [`PodView::containers`]: init containers first, both lists in document order.
pub type Slot = usize;

/// What happens to a container that has ended, by pod `restartPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RestartPolicy {
    /// Restarted after any exit code.
    #[default]
    Always,
    /// Started again when it failed.
    OnFailure,
    /// Left as it is.
    Never,
}

/// The parts of a pod that decide its start and stop.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodView {
    /// `metadata.name`, or `generateName`, or empty.
    pub name: String,
    /// `kind` of the document the pod was found in (`Pod`, `Deployment`, `CronJob`…), may be empty.
    pub document_kind: String,
    /// JSON pointer of the pod inside the document: empty for a pod, `/spec/template` for a Deployment.
    pub root: String,
    /// `metadata.labels` of the pod.
    pub labels: Vec<(String, String)>,
    /// `metadata.annotations` of the pod.
    pub annotations: Vec<(String, String)>,
    /// Init containers, then main containers.
    pub containers: Vec<Container>,
    /// Pod restart policy.
    pub restart_policy: RestartPolicy,
    /// `terminationGracePeriodSeconds`, defaulted to 30 and never below 1.
    pub grace_seconds: u64,
    /// `activeDeadlineSeconds`.
    pub active_deadline_seconds: Option<u64>,
    /// `fsGroup` and `supplementalGroups` of the pod.
    pub extra_gids: Vec<i64>,
    /// Whether the pod shares the network of its node.
    pub host_network: bool,
    /// Whether the pod is run by a Job or a `CronJob`, as far as the document tells.
    pub batch: bool,
}

impl PodView {
    /// Reads a pod, or the pod template inside a workload.
    pub fn read(document: &Value) -> Self {
        let root = workload::pod_pointer(document);
        let pod = document.pointer(root).unwrap_or(&Value::Null);
        let spec = &pod["spec"];
        let document_kind = text(&document["kind"]);
        let batch = matches!(document_kind.as_str(), "Job" | "CronJob") || owned_by_job(pod);
        let mut containers = Vec::new();
        for (list, init) in [("initContainers", true), ("containers", false)] {
            for (index, raw) in items(&spec[list]).iter().enumerate() {
                let path = format!("{root}/spec/{list}/{index}");
                containers.push(Container::read(raw, &spec["securityContext"], init, path));
            }
        }
        let grace = spec["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
        Self {
            name: first_text(&[
                &pod["metadata"]["name"],
                &pod["metadata"]["generateName"],
                &document["metadata"]["name"],
            ]),
            document_kind,
            root: root.to_owned(),
            labels: pairs(&pod["metadata"]["labels"]),
            annotations: pairs(&pod["metadata"]["annotations"]),
            containers,
            restart_policy: restart_policy(&spec["restartPolicy"]),
            grace_seconds: u64::try_from(grace).unwrap_or(1).max(1),
            active_deadline_seconds: spec["activeDeadlineSeconds"].as_u64(),
            extra_gids: extra_gids(&spec["securityContext"]),
            host_network: spec["hostNetwork"].as_bool().unwrap_or(false),
            batch,
        }
    }

    /// The value of an annotation of the pod.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        lookup(&self.annotations, key)
    }

    /// The value of a label of the pod.
    pub fn label(&self, key: &str) -> Option<&str> {
        lookup(&self.labels, key)
    }

    /// Slots of the init containers, native sidecars included.
    pub fn init_slots(&self) -> std::ops::Range<Slot> {
        0..self
            .containers
            .iter()
            .take_while(|c| c.kind != Kind::Main)
            .count()
    }

    /// Slots of the main containers.
    pub fn main_slots(&self) -> std::ops::Range<Slot> {
        self.init_slots().end..self.containers.len()
    }

    /// Whether any init container is restartable.
    pub fn has_native_sidecar(&self) -> bool {
        self.containers.iter().any(|c| c.kind == Kind::Sidecar)
    }

    /// The slot of the container with this name.
    pub fn slot(&self, name: &str) -> Option<Slot> {
        self.containers.iter().position(|c| c.name == name)
    }
}

fn extra_gids(security: &Value) -> Vec<i64> {
    let listed = items(&security["supplementalGroups"])
        .iter()
        .filter_map(Value::as_i64);
    security["fsGroup"].as_i64().into_iter().chain(listed).collect()
}

fn owned_by_job(pod: &Value) -> bool {
    items(&pod["metadata"]["ownerReferences"])
        .iter()
        .any(|o| o["kind"] == "Job")
        || pod["metadata"]["labels"]["batch.kubernetes.io/job-name"].is_string()
}

fn restart_policy(value: &Value) -> RestartPolicy {
    match value.as_str() {
        Some("OnFailure") => RestartPolicy::OnFailure,
        Some("Never") => RestartPolicy::Never,
        _ => RestartPolicy::Always,
    }
}

fn lookup<'a>(pairs: &'a [(String, String)], key: &str) -> Option<&'a str> {
    pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
}

fn pairs(value: &Value) -> Vec<(String, String)> {
    let Some(map) = value.as_object() else {
        return Vec::new();
    };
    map.iter()
        .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
        .collect()
}

pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn first_text(values: &[&Value]) -> String {
    values
        .iter()
        .find_map(|v| v.as_str().filter(|s| !s.is_empty()))
        .unwrap_or_default()
        .to_owned()
}
