//! What the user defined of the mesh containers, and what an earlier injection added.
//!
//! The annotation `proxy.istio.io/overrides` keeps the user's definitions from the first pass on; it is the
//! source in every later pass, so that a second invocation gives the same pod (Istio forgets them).

use crate::names::{self, annotation};
use remora_pod::{merge, view};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// Names an earlier injection recorded.
#[derive(Debug, Default, Clone)]
pub(crate) struct Status {
    init_containers: Vec<String>,
    containers: Vec<String>,
}

impl Status {
    /// Reads the status annotation; `None` on a pod that was not injected. Unreadable JSON is no status.
    pub(crate) fn of(pod: &Value) -> Option<Self> {
        let text = view::annotation(pod, annotation::STATUS)?;
        let document: Value = serde_json::from_str(text).ok()?;
        document.as_object()?;
        let names = |key: &str| {
            view::list(&document, &[key])
                .iter()
                .filter_map(|n| n.as_str().map(str::to_owned))
                .collect()
        };
        Some(Self {
            init_containers: names("initContainers"),
            containers: names("containers"),
        })
    }

    fn lists(&self, name: &str) -> bool {
        self.init_containers
            .iter()
            .chain(&self.containers)
            .any(|n| n == name)
    }
}

/// The user's definitions of containers that templates define too.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Overrides {
    pub(crate) init_containers: Vec<Value>,
    pub(crate) containers: Vec<Value>,
}

impl Overrides {
    /// The stored definitions of an injected pod. Validation has refused unreadable ones before.
    pub(crate) fn stored(pod: &Value) -> Self {
        let document = view::annotation(pod, annotation::OVERRIDES)
            .and_then(|text| serde_json::from_str::<Value>(text).ok())
            .unwrap_or_default();
        Self {
            init_containers: view::list(&document, &["initContainers"]).to_vec(),
            containers: view::list(&document, &["containers"]).to_vec(),
        }
    }

    /// The definitions in a pod that was not injected yet: containers the template also has.
    pub(crate) fn found(pod: &Value, template: &Value) -> Self {
        let also_in_template = |key: &str| {
            let wanted = view::list(template, &["spec", key]);
            view::list(pod, &["spec", key])
                .iter()
                .filter(|container| view::find(wanted, view::name(container)).is_some())
                .map(without_auto_image)
                .collect()
        };
        Self {
            init_containers: also_in_template("initContainers"),
            containers: also_in_template("containers"),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.init_containers.is_empty() && self.containers.is_empty()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        view::find(&self.init_containers, name).or_else(|| view::find(&self.containers, name))
    }

    /// The annotation's text.
    pub(crate) fn render(&self) -> String {
        let mut document = Map::new();
        for (key, list) in [
            ("containers", &self.containers),
            ("initContainers", &self.init_containers),
        ] {
            if !list.is_empty() {
                document.insert(key.to_owned(), json!(list));
            }
        }
        Value::Object(document).to_string()
    }

    /// Merges the user's definitions into the pod: they override the template.
    ///
    /// Only fields that the template sets, or that are missing, are merged: the others are the user's
    /// already, or another webhook changed them after the first pass, and a second pass must not undo that.
    pub(crate) fn apply(&self, pod: &mut Value, template: &Value) {
        for definition in self.init_containers.iter().chain(&self.containers) {
            let name = view::name(definition);
            let Some(ours) = view::container(template, name) else {
                continue;
            };
            let Some(container) = view::container_mut(pod, name) else {
                continue;
            };
            let patch: Map<String, Value> = definition
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(key, _)| ours.get(key.as_str()).is_some() || container.get(key.as_str()).is_none())
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            *container = merge::merge(container.take(), Value::Object(patch));
        }
    }
}

/// istio: `image: auto` is a placeholder that satisfies the API; it means "not specified".
fn without_auto_image(container: &Value) -> Value {
    let mut container = container.clone();
    if let Some(fields) = container.as_object_mut()
        && fields.get("image").and_then(Value::as_str) == Some("auto")
    {
        fields.remove("image");
    }
    container
}

/// The pod as the user wrote it, for the template to look at.
pub(crate) fn original_view<'a>(pod: &'a Value, status: Option<&Status>, status_port: u16) -> Cow<'a, Value> {
    let Some(status) = status else {
        return Cow::Borrowed(pod);
    };
    let mut view = pod.clone();
    for key in ["initContainers", "containers"] {
        view::list_mut(&mut view, &["spec", key]).retain(|c| !status.lists(view::name(c)));
    }
    let overrides = Overrides::stored(pod);
    let mut added = false;
    for definition in overrides.init_containers.iter().chain(&overrides.containers) {
        let name = view::name(definition);
        if view::container(&view, name).is_none() {
            // The proxy goes where the user wrote it: native mode moved it away from `containers`.
            let key = if name == names::INIT || name == names::VALIDATION {
                "initContainers"
            } else {
                "containers"
            };
            view::list_mut(&mut view, &["spec", key]).push(definition.clone());
            added |= key == "containers";
        }
    }
    if added {
        restore_app_order(pod, &mut view);
    }
    let annotations = view::map_mut(&mut view, &["metadata", "annotations"]);
    annotations.remove(annotation::STATUS);
    if annotations.get("prometheus.io/port").and_then(Value::as_str) == Some(&status_port.to_string()) {
        for key in ["prometheus.io/port", "prometheus.io/path", "prometheus.io/scrape"] {
            annotations.remove(key);
        }
    }
    Cow::Owned(view)
}

/// Custom templates may list application containers in the status; put back at the end they would change the
/// order of applications, which the template prints.
fn restore_app_order(pod: &Value, view: &mut Value) {
    let position = |c: &Value| {
        let name = view::name(c);
        view::containers(pod)
            .iter()
            .position(|o| view::name(o) == name)
            .unwrap_or(usize::MAX)
    };
    view::list_mut(view, &["spec", "containers"]).sort_by_key(position);
}

/// Removes the fields that an earlier injection wrote, so that a setting that is off now has no effect.
pub(crate) fn drop_owned_fields(pod: &mut Value, status: &Status) {
    const OWNED_FIELDS: [&str; 8] = [
        "args",
        "lifecycle",
        "livenessProbe",
        "readinessProbe",
        "resources",
        "restartPolicy",
        "securityContext",
        "startupProbe",
    ];
    for name in [names::INIT, names::VALIDATION, names::PROXY] {
        if !status.lists(name) {
            continue;
        }
        if let Some(fields) = view::container_mut(pod, name).and_then(Value::as_object_mut) {
            fields.retain(|key, _| !OWNED_FIELDS.contains(&key.as_str()));
        }
    }
}
