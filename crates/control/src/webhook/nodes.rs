//! Native sidecars need kubelets that know them: which kubelets can a pod meet?
//!
//! A pod may land on every node its `nodeName`, `nodeSelector` and required node affinity leave. Where one of those
//! is too old, its sidecar is classic. What keeps pods away for other reasons (taints, resources) is not looked at:
//! it can change while the pod waits.

use remora_inject::native;
use remora_pod::{object, view};
use serde_json::{Map, Value};

/// A node, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: Map<String, Value>,
    /// The version of its kubelet; empty when it has not said.
    pub kubelet: String,
}

/// How it is decided whether a sidecar is native.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Native {
    /// As somebody said.
    Fixed(bool),
    /// By the nodes there are.
    ByNodes(Vec<Node>),
}

impl Default for Native {
    fn default() -> Self {
        Self::Fixed(false)
    }
}

impl Native {
    /// For this pod, unless its annotation says otherwise.
    pub fn decide(&self, pod: &Value) -> bool {
        match self {
            Self::Fixed(native) => *native,
            // No node yet: one that comes now is a recent one.
            Self::ByNodes(nodes) => native::supported_by(fitting(nodes, pod).map(|n| n.kubelet.as_str())),
        }
    }

    /// The oldest kubelet this pod can meet, where that is known.
    pub fn oldest_kubelet(&self, pod: &Value) -> Option<String> {
        let Self::ByNodes(nodes) = self else {
            return None;
        };
        fitting(nodes, pod)
            .filter_map(|node| Some((native::minor(&node.kubelet)?, &node.kubelet)))
            .min()
            .map(|(_, version)| version.clone())
    }
}

fn fitting<'a>(nodes: &'a [Node], pod: &'a Value) -> impl Iterator<Item = &'a Node> {
    nodes.iter().filter(|node| fits(node, pod))
}

fn fits(node: &Node, pod: &Value) -> bool {
    if let Some(name) = view::text(pod, &["spec", "nodeName"]).filter(|n| !n.is_empty()) {
        return name == node.name;
    }
    let selected = pod["spec"]["nodeSelector"].as_object().is_none_or(|wanted| {
        wanted
            .iter()
            .all(|(key, value)| node.labels.get(key) == Some(value))
    });
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = view::list(required, &["nodeSelectorTerms"]);
    // k8s: terms are alternatives; none at all is no requirement.
    selected && (terms.is_empty() || terms.iter().any(|term| satisfies(node, term)))
}

fn satisfies(node: &Node, term: &Value) -> bool {
    let labels = view::list(term, &["matchExpressions"]);
    let fields = view::list(term, &["matchFields"]);
    // k8s: an empty term selects nothing.
    !(labels.is_empty() && fields.is_empty())
        && labels.iter().all(|wanted| {
            let label = node.labels.get(key_of(wanted)).and_then(Value::as_str);
            holds(wanted, label)
        })
        && fields.iter().all(|wanted| match key_of(wanted) {
            "metadata.name" => holds(wanted, Some(&node.name)),
            _ => false,
        })
}

fn key_of(requirement: &Value) -> &str {
    requirement["key"].as_str().unwrap_or_default()
}

fn holds(requirement: &Value, value: Option<&str>) -> bool {
    let values = view::list(requirement, &["values"]);
    let listed = |value: &str| values.iter().any(|v| v == value);
    let number = |text: &str| text.parse::<i64>().ok();
    let compare = |right: fn(i64, i64) -> bool| {
        let wanted = values.first().and_then(Value::as_str).and_then(number);
        matches!((value.and_then(number), wanted), (Some(is), Some(wanted)) if right(is, wanted))
    };
    match requirement["operator"].as_str() {
        Some("In") => value.is_some_and(listed),
        Some("NotIn") => !value.is_some_and(listed),
        Some("Exists") => value.is_some(),
        Some("DoesNotExist") => value.is_none(),
        Some("Gt") => compare(|is, wanted| is > wanted),
        Some("Lt") => compare(|is, wanted| is < wanted),
        _ => false,
    }
}

impl Node {
    /// Reads a Node object.
    pub fn of(document: &Value) -> Self {
        let kubelet = view::text(document, &["status", "nodeInfo", "kubeletVersion"]);
        Self {
            name: object::name(document).to_owned(),
            labels: document["metadata"]["labels"]
                .as_object()
                .cloned()
                .unwrap_or_default(),
            kubelet: kubelet.unwrap_or_default().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Native, Node, fitting};
    use serde_json::{Value, json};

    fn cluster() -> Native {
        let node = |name: &str, pool: &str, kubelet: &str| {
            Node::of(
                &json!({"metadata": {"name": name, "labels": {"pool": pool, "size": "4"}},
                "status": {"nodeInfo": {"kubeletVersion": kubelet}}}),
            )
        };
        Native::ByNodes(vec![
            node("n1", "new", "v1.34.1"),
            node("n2", "new", "v1.33.0"),
            node("n3", "old", "v1.28.4"),
        ])
    }

    fn pod(spec: &Value) -> Value {
        json!({"spec": spec})
    }

    fn affinity(expression: &Value) -> Value {
        pod(
            &json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [expression.clone()]}]}}}}),
        )
    }

    #[test]
    fn one_old_node_that_fits_makes_the_sidecar_classic() {
        let cluster = cluster();
        assert!(!cluster.decide(&pod(&json!({}))));
        assert!(cluster.decide(&pod(&json!({"nodeSelector": {"pool": "new"}}))));
        assert!(!cluster.decide(&pod(&json!({"nodeName": "n3"}))));
        assert!(cluster.decide(&pod(&json!({"nodeName": "n2"}))));
        assert!(cluster.decide(&affinity(
            &json!({"key": "pool", "operator": "NotIn", "values": ["old"]})
        )));
        assert!(!cluster.decide(&affinity(
            &json!({"key": "size", "operator": "Gt", "values": ["3"]})
        )));
    }

    /// Which nodes a required affinity of one requirement leaves.
    fn left(field: &str, requirement: &Value) -> Vec<String> {
        let Native::ByNodes(nodes) = cluster() else {
            panic!("the cluster has nodes");
        };
        let pod = pod(
            &json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{field: [requirement.clone()]}]}}}}),
        );
        fitting(&nodes, &pod).map(|node| node.name.clone()).collect()
    }

    #[test]
    fn every_operator_of_an_affinity_leaves_its_nodes() {
        let label = |requirement: Value| left("matchExpressions", &requirement);
        let all = ["n1", "n2", "n3"];
        let none: [&str; 0] = [];
        let pool = |operator: &str, values: &[&str]| {
            label(json!({"key": "pool", "operator": operator, "values": values}))
        };
        assert_eq!(pool("In", &["old", "other"]), ["n3"]);
        assert_eq!(pool("In", &[]), none);
        assert_eq!(pool("NotIn", &["old"]), ["n1", "n2"]);
        assert_eq!(pool("Exists", &[]), all);
        assert_eq!(pool("DoesNotExist", &[]), none);
        assert_eq!(pool("Like", &["old"]), none, "an operator that does not exist");
        let absent = |operator: &str| label(json!({"key": "zone", "operator": operator, "values": ["a"]}));
        assert_eq!(absent("In"), none);
        assert_eq!(absent("NotIn"), all, "k8s: also where the label is missing");
        assert_eq!(absent("Exists"), none);
        assert_eq!(absent("DoesNotExist"), all);
        // Every node has the size 4.
        let size = |operator: &str, than: &str| {
            label(json!({"key": "size", "operator": operator, "values": [than]})).len()
        };
        assert_eq!(
            ["3", "4", "5", "large"].map(|than| size("Gt", than)),
            [3, 0, 0, 0]
        );
        assert_eq!(
            ["3", "4", "5", "large"].map(|than| size("Lt", than)),
            [0, 0, 3, 0]
        );
    }

    #[test]
    fn fields_of_an_affinity_are_the_names_of_nodes_only() {
        let field = |key: &str| {
            left(
                "matchFields",
                &json!({"key": key, "operator": "In", "values": ["n2"]}),
            )
        };
        assert_eq!(field("metadata.name"), ["n2"]);
        assert!(field("metadata.uid").is_empty());
    }

    #[test]
    fn the_oldest_kubelet_is_one_the_pod_can_meet() {
        let cluster = cluster();
        let oldest = |spec: Value| cluster.oldest_kubelet(&pod(&spec));
        assert_eq!(oldest(json!({})).as_deref(), Some("v1.28.4"));
        assert_eq!(
            oldest(json!({"nodeSelector": {"pool": "new"}})).as_deref(),
            Some("v1.33.0")
        );
        assert_eq!(oldest(json!({"nodeSelector": {"pool": "none"}})), None);
    }
}
