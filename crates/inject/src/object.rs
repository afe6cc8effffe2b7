//! Whole documents: every pod in an object of any kind.

use crate::decision::Skip;
use crate::error::InjectError;
use crate::otel;
use crate::pipeline::{Subject, inject_pod};
use crate::settings::{Order, Settings};
use crate::warning::Warning;
use crate::workload::Workload;
use json_patch::Patch;
use remora_pod::workload::{self as shapes, Shape};
use remora_pod::{Path, Segment, object};
use serde_json::{Map, Value};

/// The result for one workload of a document.
#[derive(Debug, Clone)]
pub struct PodReport {
    /// `Deployment "ns/name"`.
    pub workload: String,
    /// Where its pod is in the document.
    pub path: Path,
    /// Whether the pod was changed.
    pub changed: bool,
    /// Why the sidecar was not injected, if so.
    pub skipped: Option<Skip>,
    /// Warnings for the user.
    pub warnings: Vec<Warning>,
}

/// An error and its position.
#[derive(Debug, Clone)]
pub struct ObjectError {
    /// `Deployment "ns/name"`.
    pub workload: String,
    /// The path in the document.
    pub path: Path,
    /// What is wrong.
    pub error: InjectError,
}

/// The result for one document.
#[derive(Debug, Clone, Default)]
pub struct ObjectReport {
    /// Its workloads, in order.
    pub pods: Vec<PodReport>,
    /// All errors.
    pub errors: Vec<ObjectError>,
}

impl ObjectReport {
    /// Whether the document was changed.
    pub fn changed(&self) -> bool {
        self.pods.iter().any(|pod| pod.changed)
    }
}

/// Injects every pod of a document in place. A workload with errors stays as it was.
pub fn inject_object(document: &mut Value, settings: &Settings, inventory: &Inventory) -> ObjectReport {
    let mut report = ObjectReport::default();
    for shape in shapes::find(document) {
        match shape {
            Shape::Workload(found) => inject_workload(document, &found, settings, inventory, &mut report),
            Shape::MissingTemplate(missing) => {
                let at = missing.object.get(document).unwrap_or(&Value::Null);
                report.errors.push(ObjectError {
                    workload: object::display_name(at),
                    path: missing.template.clone(),
                    error: InjectError::Malformed(missing.to_string()),
                });
            }
            Shape::Other { .. } => {}
        }
    }
    report
}

fn inject_workload(
    document: &mut Value,
    found: &shapes::Workload,
    settings: &Settings,
    inventory: &Inventory,
    report: &mut ObjectReport,
) {
    let paths = Paths::of(found, settings);
    let Some(object) = found.object.get(document) else {
        return;
    };
    let workload = if found.is_pod() {
        Workload::of_pod(object)
    } else {
        Workload::of_object(object)
    };
    let display = object::display_name(object);
    let own_namespace = object::namespace(object).to_owned();
    let pod = paths.take(document);
    let namespace = inventory.namespace_of(own_namespace, &pod);
    let subject = Subject {
        pod: &pod,
        workload: &workload,
        namespace: &namespace,
        native: None,
    };
    match inject_pod(subject, settings, &inventory.otel) {
        Ok(injected) => {
            report.pods.push(PodReport {
                workload: display,
                path: found.template.clone(),
                changed: injected.changed,
                skipped: injected.skipped,
                warnings: injected.warnings,
            });
            paths.put(document, injected.pod);
        }
        Err(errors) => {
            report.errors.extend(errors.into_iter().map(|error| ObjectError {
                workload: display.clone(),
                path: place_of(&error, &paths),
                error,
            }));
            paths.put(document, pod);
        }
    }
}

/// The most precise place there is for an error.
fn place_of(error: &InjectError, paths: &Paths) -> Path {
    match error {
        InjectError::Annotation { name, .. } => paths.metadata.join("annotations").join(name.as_str()),
        InjectError::UnknownTemplate { .. } => paths
            .metadata
            .join("annotations")
            .join(crate::names::annotation::TEMPLATES),
        _ => paths.spec.clone(),
    }
}

/// Where metadata and spec of a pod are.
struct Paths {
    metadata: Path,
    spec: Path,
}

impl Paths {
    /// istio: of a CronJob it reads and writes the metadata of the Job, so labels and annotations miss the pod;
    /// kept only where the settings choose Istio's own output.
    fn of(found: &shapes::Workload, settings: &Settings) -> Self {
        let metadata = if found.through_job() && settings.order == Order::Istio {
            found
                .object
                .concat(&Path::of(&["spec", "jobTemplate", "metadata"]))
        } else {
            found.metadata()
        };
        Self {
            metadata,
            spec: found.spec(),
        }
    }

    /// Takes the pod out of the document; [`Paths::put`] must follow.
    fn take(&self, document: &mut Value) -> Value {
        let mut pod = Map::new();
        for (key, path) in [("metadata", &self.metadata), ("spec", &self.spec)] {
            if let Some(value) = path.get_mut(document).filter(|v| !v.is_null()) {
                pod.insert(key.to_owned(), value.take());
            }
        }
        Value::Object(pod)
    }

    fn put(&self, document: &mut Value, mut pod: Value) {
        for (key, path) in [("metadata", &self.metadata), ("spec", &self.spec)] {
            if let Some(value) = pod.get_mut(key) {
                set(document, path, value.take());
            }
        }
    }
}

/// Puts a value into a document; its parent exists, because the pod was found there.
fn set(document: &mut Value, path: &Path, value: Value) {
    let (Some(parent), Some(Segment::Key(key))) = (path.parent(), path.last()) else {
        return;
    };
    if let Some(Value::Object(map)) = parent.get_mut(document) {
        map.insert(key.clone(), value);
    }
}

/// What is known in addition to the document: Namespaces, Instrumentations and so on of the same input.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    /// For instrumentation.
    pub otel: otel::Inventory,
    namespaces: Vec<String>,
    default_namespace: Option<String>,
}

impl Inventory {
    /// Adds a document.
    pub fn add(&mut self, document: &Value) {
        if let Some(items) = shapes::items(document) {
            for item in items {
                self.add(item);
            }
            return;
        }
        if object::kind(document) == "Namespace" && object::api_version(document) == "v1" {
            self.namespaces.push(object::name(document).to_owned());
        }
        self.otel.add(document);
    }

    /// The namespace of objects that name none (`-n` of the command line).
    pub fn set_default_namespace(&mut self, namespace: &str) {
        self.default_namespace = Some(namespace.to_owned());
        self.otel.set_default_namespace(namespace);
    }

    /// Must be called after all documents were added: objects without a namespace belong to the only Namespace of the
    /// input.
    pub fn finish(&mut self) {
        let namespace = self.fallback_namespace().to_owned();
        self.otel.set_default_namespace(&namespace);
    }

    /// The namespace of objects without one: the caller's choice, else the only Namespace of the input, else `default`.
    pub fn fallback_namespace(&self) -> &str {
        match (&self.default_namespace, self.namespaces.as_slice()) {
            (Some(namespace), _) => namespace,
            (None, [only]) => only,
            _ => "default",
        }
    }

    fn namespace_of(&self, object: String, pod: &Value) -> String {
        if !object.is_empty() {
            return object;
        }
        match object::namespace(pod) {
            "" => self.fallback_namespace().to_owned(),
            own => own.to_owned(),
        }
    }
}

/// The JSON patch (RFC 6902) from one document to another.
pub fn patch(before: &Value, after: &Value) -> Patch {
    json_patch::diff(before, after)
}
