//! The workload a pod belongs to: the names that telemetry and the control plane show.

use remora_pod::view;
use serde_json::Value;

/// The workload a pod belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Workload {
    /// API version, e.g. `apps/v1`.
    pub api_version: String,
    /// Kind, e.g. `Deployment`.
    pub kind: String,
    /// Name; may be empty for a pod that is still to be named.
    pub name: String,
    /// Namespace; empty when the document does not set it.
    pub namespace: String,
}

impl Workload {
    /// The object a document describes.
    pub fn of_object(object: &Value) -> Self {
        let text = |path: &[&str]| view::text(object, path).unwrap_or_default().to_owned();
        Self {
            api_version: text(&["apiVersion"]),
            kind: text(&["kind"]),
            name: text(&["metadata", "name"]),
            namespace: text(&["metadata", "namespace"]),
        }
    }

    /// The workload of a bare pod: its controller where the pod is made by one, else the pod.
    ///
    /// istio: the controller counts only for pods with a `generateName`.
    pub fn of_pod(pod: &Value) -> Self {
        let own = Self {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            ..Self::of_object(pod)
        };
        let generated = view::text(pod, &["metadata", "generateName"]).is_some_and(|g| !g.is_empty());
        let controller = view::list(pod, &["metadata", "ownerReferences"])
            .iter()
            .find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true));
        match controller {
            Some(owner) if generated => Self::of_owner(pod, owner, own.namespace),
            _ => own,
        }
    }

    fn of_owner(pod: &Value, owner: &Value, namespace: String) -> Self {
        let text = |key: &str| view::text(owner, &[key]).unwrap_or_default().to_owned();
        let direct = Self {
            api_version: text("apiVersion"),
            kind: text("kind"),
            name: text("name"),
            namespace,
        };
        match direct.kind.as_str() {
            "ReplicaSet" => direct.above_replica_set(pod),
            "ReplicationController" => direct.above_replication_controller(pod),
            "Job" => direct.above_job(),
            _ => direct,
        }
    }

    fn above_replica_set(self, pod: &Value) -> Self {
        let stem = |label: &str| {
            let hash = view::label(pod, label).filter(|h| !h.is_empty())?;
            self.name.strip_suffix(hash)?.strip_suffix('-').map(str::to_owned)
        };
        if let Some(name) = stem("rollouts-pod-template-hash") {
            return Self {
                api_version: "v1alpha1".to_owned(),
                kind: "Rollout".to_owned(),
                name,
                ..self
            };
        }
        match stem("pod-template-hash") {
            Some(name) => Self {
                kind: "Deployment".to_owned(),
                name,
                ..self
            },
            None => self,
        }
    }

    fn above_replication_controller(self, pod: &Value) -> Self {
        match view::label(pod, "deploymentconfig").filter(|n| !n.is_empty()) {
            Some(name) => Self {
                kind: "DeploymentConfig".to_owned(),
                name: name.to_owned(),
                ..self
            },
            None => self,
        }
    }

    /// A CronJob names its Jobs after the minute they run in: 8 to 10 digits.
    fn above_job(self) -> Self {
        match self.name.rsplit_once('-') {
            Some((stem, digits))
                if (8..=10).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()) =>
            {
                Self {
                    api_version: "batch/v1".to_owned(),
                    kind: "CronJob".to_owned(),
                    name: stem.to_owned(),
                    ..self
                }
            }
            _ => self,
        }
    }

    /// Namespace, `default` when it is empty.
    pub fn namespace_or_default(&self) -> &str {
        if self.namespace.is_empty() {
            "default"
        } else {
            &self.namespace
        }
    }

    /// The owner in the notation of telemetry.
    pub fn owner_uri(&self) -> String {
        format!(
            "kubernetes://apis/{}/namespaces/{}/{}s/{}",
            self.api_version,
            self.namespace_or_default(),
            self.kind.to_lowercase(),
            self.name
        )
    }

    /// `Deployment "ns/name"`, as messages name it.
    pub fn display(&self) -> String {
        let kind = if self.kind.is_empty() {
            "object"
        } else {
            &self.kind
        };
        match (self.namespace.is_empty(), self.name.is_empty()) {
            (_, true) => format!("{kind} without a name"),
            (true, false) => format!("{kind} {:?}", self.name),
            (false, false) => format!("{kind} \"{}/{}\"", self.namespace, self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Workload;
    use serde_json::{Value, json};

    fn pod(labels: &Value, kind: &str, name: &str) -> Value {
        json!({"metadata": {"generateName": "x-", "namespace": "n", "labels": labels,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": name, "controller": true}]}})
    }

    #[test]
    fn owners_are_followed_by_their_names() {
        let of = |labels: Value, kind: &str, name: &str| {
            let w = Workload::of_pod(&pod(&labels, kind, name));
            format!("{} {} {}", w.api_version, w.kind, w.name)
        };
        assert_eq!(
            of(json!({"pod-template-hash": "abc"}), "ReplicaSet", "web-abc"),
            "apps/v1 Deployment web"
        );
        assert_eq!(
            of(json!({"pod-template-hash": "other"}), "ReplicaSet", "web-abc"),
            "apps/v1 ReplicaSet web-abc"
        );
        assert_eq!(
            of(
                json!({"rollouts-pod-template-hash": "abc"}),
                "ReplicaSet",
                "web-abc"
            ),
            "v1alpha1 Rollout web"
        );
        assert_eq!(of(json!({}), "Job", "tick-29011234"), "batch/v1 CronJob tick");
        assert_eq!(of(json!({}), "Job", "tick-2901"), "apps/v1 Job tick-2901");
        assert_eq!(
            of(json!({"deploymentconfig": "dc"}), "ReplicationController", "dc-1"),
            "apps/v1 DeploymentConfig dc"
        );
    }

    #[test]
    fn a_pod_with_a_name_of_its_own_is_its_own_workload() {
        let mut named = pod(&json!({}), "ReplicaSet", "web-abc");
        named["metadata"]["generateName"] = json!("");
        named["metadata"]["name"] = json!("me");
        assert_eq!(
            Workload::of_pod(&named).owner_uri(),
            "kubernetes://apis/v1/namespaces/n/pods/me"
        );
    }
}
