//! Finds the pods in an object of any kind, by its structure.
//!
//! A pod template is recognised by what it is (`spec.containers` is a list), not by a list of kinds, so Argo
//! Rollouts, Knative Services and unknown custom resources are found too. A list is searched item by item. Only for the
//! kinds of Kubernetes and `OpenShift` themselves is a missing template an error; for any other kind it means that
//! there is no pod in it.
//!
//! differs from istio: `kube-inject` knows eight kinds and copies all others silently, because it decodes into
//! compiled types.

use serde_json::Value;

use crate::object;
use crate::path::Path;

/// Nesting of lists in lists that is still searched. Kubernetes itself produces one level.
const MAX_LIST_DEPTH: usize = 8;

/// A pod, or a template for pods, inside an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// The object it belongs to: the document itself, or an item of a list.
    pub object: Path,
    /// What has `metadata` and `spec` of the pod: equals `object` for a Pod, `object` + `spec.template` for a
    /// Deployment.
    pub template: Path,
}

impl Workload {
    /// Path of the pod's metadata.
    pub fn metadata(&self) -> Path {
        self.template.join("metadata")
    }

    /// Path of the pod's spec.
    pub fn spec(&self) -> Path {
        self.template.join("spec")
    }

    /// Whether the object is itself the pod.
    pub fn is_pod(&self) -> bool {
        self.object == self.template
    }

    /// Whether the pods are made by a `CronJob` through a Job.
    pub fn through_job(&self) -> bool {
        self.template
            == self
                .object
                .concat(&Path::of(&["spec", "jobTemplate", "spec", "template"]))
    }
}

/// What one object (or one item of a list) is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// It has pods.
    Workload(Workload),
    /// Its kind needs a pod template and it has none.
    MissingTemplate(MissingTemplate),
    /// It has nothing to do with pods.
    Other {
        /// The object.
        object: Path,
    },
}

/// A workload of a known kind without its template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{template} is required")]
pub struct MissingTemplate {
    /// The object.
    pub object: Path,
    /// Where the template should be.
    pub template: Path,
}

/// Where templates are, as JSON pointers, in the order they are looked for.
const PLACES: [&str; 3] = ["/spec/template", "/spec/jobTemplate/spec/template", "/template"];

/// JSON pointer of the pod in one object: empty for a pod, and for an object without a pod template.
pub fn pod_pointer(object: &Value) -> &'static str {
    template_pointer(object).unwrap_or("")
}

fn template_pointer(object: &Value) -> Option<&'static str> {
    let has_template = |place: &&str| object.pointer(place).is_some_and(is_template);
    PLACES
        .into_iter()
        .find(has_template)
        .filter(|_| object::kind(object) != "Pod")
}

/// All objects of a document, in order: one, or the items of a list.
pub fn find(document: &Value) -> Vec<Shape> {
    let mut found = Vec::new();
    search(document, Path::root(), 0, &mut found);
    found
}

/// Only the pods and pod templates of a document.
pub fn workloads(document: &Value) -> Vec<Workload> {
    let keep = |shape| match shape {
        Shape::Workload(workload) => Some(workload),
        Shape::MissingTemplate(_) | Shape::Other { .. } => None,
    };
    find(document).into_iter().filter_map(keep).collect()
}

fn search(object: &Value, at: Path, depth: usize, found: &mut Vec<Shape>) {
    match items(object) {
        Some(items) if depth < MAX_LIST_DEPTH => {
            let list = at.join("items");
            for (index, item) in items.iter().enumerate() {
                search(item, list.join(index), depth + 1, found);
            }
        }
        _ => found.push(classify(object, at)),
    }
}

/// The items when the object is a list: `List`, or a kind such as `DeploymentList`.
pub fn items(object: &Value) -> Option<&Vec<Value>> {
    object::kind(object)
        .ends_with("List")
        .then(|| object.get("items")?.as_array())
        .flatten()
}

fn classify(object: &Value, at: Path) -> Shape {
    let kind = object::kind(object);
    if kind == "Pod" {
        return match object.get("spec") {
            Some(Value::Object(_)) => Shape::Workload(Workload {
                template: at.clone(),
                object: at,
            }),
            _ => Shape::MissingTemplate(MissingTemplate {
                template: at.join("spec"),
                object: at,
            }),
        };
    }
    if let Some(place) = template_pointer(object) {
        return Shape::Workload(Workload {
            template: at.concat(&place.split('/').skip(1).collect()),
            object: at,
        });
    }
    match required_template(object::api_version(object), kind) {
        Some(place) => Shape::MissingTemplate(MissingTemplate {
            template: at.concat(&place),
            object: at,
        }),
        None => Shape::Other { object: at },
    }
}

fn is_template(value: &Value) -> bool {
    value
        .get("spec")
        .and_then(|spec| spec.get("containers"))
        .is_some_and(Value::is_array)
}

/// Where an object of a known kind must have its template.
fn required_template(api_version: &str, kind: &str) -> Option<Path> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let place: &[&str] = match (group, kind) {
        ("apps" | "extensions", "Deployment" | "DaemonSet" | "ReplicaSet")
        | ("apps", "StatefulSet")
        | ("batch", "Job")
        | ("", "ReplicationController")
        | ("" | "apps.openshift.io", "DeploymentConfig") => &["spec", "template"],
        ("batch", "CronJob") => &["spec", "jobTemplate", "spec", "template"],
        ("", "PodTemplate") => &["template"],
        _ => return None,
    };
    Some(Path::of(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn templates(document: &Value) -> Vec<String> {
        workloads(document)
            .iter()
            .map(|workload| workload.template.to_string())
            .collect()
    }

    fn template() -> Value {
        json!({"spec": {"containers": [{"name": "a"}]}})
    }

    #[test]
    fn templates_are_found_by_shape() {
        let cases = [
            (json!({"kind": "Pod", "spec": {"containers": []}}), ""),
            (
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": template()}}),
                "spec.template",
            ),
            (
                json!({"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "spec": {"template": template()}}),
                "spec.template",
            ),
            (
                json!({"apiVersion": "serving.knative.dev/v1", "kind": "Service", "spec": {"template": template()}}),
                "spec.template",
            ),
            (
                json!({"apiVersion": "batch/v1", "kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template()}}}}),
                "spec.jobTemplate.spec.template",
            ),
            (
                json!({"apiVersion": "v1", "kind": "PodTemplate", "template": template()}),
                "template",
            ),
        ];
        for (object, expected) in cases {
            assert_eq!(templates(&object), [expected], "{object}");
        }
    }

    #[test]
    fn lists_are_searched_item_by_item() {
        let list = json!({"kind": "List", "items": [
            {"kind": "Service", "spec": {}},
            {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": template()}},
            {"kind": "PodList", "items": [{"kind": "Pod", "spec": {"containers": []}}]},
        ]});
        assert_eq!(templates(&list), ["items[1].spec.template", "items[2].items[0]"]);
        assert_eq!(find(&list).len(), 3);
    }

    #[test]
    fn a_known_kind_needs_its_template() {
        for (object, expected) in [
            (
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {}}),
                "spec.template is required",
            ),
            (
                json!({"apiVersion": "apps/v1", "kind": "Deployment"}),
                "spec.template is required",
            ),
            (
                json!({"apiVersion": "batch/v1", "kind": "CronJob", "spec": {"jobTemplate": {}}}),
                "spec.jobTemplate.spec.template is required",
            ),
            (json!({"apiVersion": "v1", "kind": "Pod"}), "spec is required"),
        ] {
            let shapes = find(&object);
            let [Shape::MissingTemplate(missing)] = &shapes[..] else {
                panic!("{shapes:?}")
            };
            assert_eq!(missing.to_string(), expected);
        }
    }

    #[test]
    fn other_objects_are_left_alone() {
        for object in [
            json!({"apiVersion": "v1", "kind": "Service", "spec": {"template": "x"}}),
            json!({"apiVersion": "example.com/v1", "kind": "Deployment", "spec": {"template": {"spec": {}}}}),
            json!({"apiVersion": "v1", "kind": "ConfigMapList", "items": "x"}),
            json!("text"),
            json!(null),
        ] {
            assert_eq!(find(&object), [Shape::Other { object: Path::root() }], "{object}");
        }
    }

    #[test]
    fn a_list_that_contains_itself_many_times_over_ends() {
        let mut list = json!({"kind": "List", "items": []});
        for _ in 0..50 {
            list = json!({"kind": "List", "items": [list]});
        }
        assert_eq!(find(&list).len(), 1);
    }

    #[test]
    fn paths_of_a_workload() {
        let cron = json!({"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template()}}}});
        let [workload] = &workloads(&cron)[..] else {
            panic!()
        };
        assert!(workload.through_job() && !workload.is_pod());
        assert_eq!(
            workload.spec().join("containers").to_string(),
            "spec.jobTemplate.spec.template.spec.containers"
        );
    }
}
