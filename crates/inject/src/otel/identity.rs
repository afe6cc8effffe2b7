//! The identity of a container in telemetry: owners, service name, resource attributes.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::Subject;
use super::instrumentation::Instrumentation;
use super::inventory::{Inventory, Owner};
use super::names::RESOURCE;
use super::request::text;

pub(crate) const POD_NAME: &str = "OTEL_RESOURCE_ATTRIBUTES_POD_NAME";
pub(crate) const POD_UID: &str = "OTEL_RESOURCE_ATTRIBUTES_POD_UID";
pub(crate) const NODE_NAME: &str = "OTEL_RESOURCE_ATTRIBUTES_NODE_NAME";

/// Owner kinds that become attributes, in the order in which they give the service its name.
const KINDS: [&str; 6] = [
    "deployment",
    "replicaset",
    "statefulset",
    "daemonset",
    "cronjob",
    "job",
];

/// What is known about the pod at injection time.
#[derive(Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pod_uid: &'a str,
    pub(crate) node_name: &'a str,
    pod_name: &'a str,
    labels: &'a Map<String, Value>,
    annotations: &'a Map<String, Value>,
    owners: BTreeMap<String, Owner>,
}

/// The application a set of variables speaks for; not always the container that carries them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct App<'a> {
    pub(crate) container: &'a str,
    pub(crate) image: &'a str,
}

impl<'a> Identity<'a> {
    pub(crate) fn new(
        subject: &Subject<'a>,
        metadata: &'a Map<String, Value>,
        spec: &'a Map<String, Value>,
        inventory: &Inventory,
        empty: &'a Map<String, Value>,
    ) -> Self {
        let map = |key: &str| metadata.get(key).and_then(Value::as_object).unwrap_or(empty);
        Self {
            namespace: subject.namespace,
            pod_name: subject.pod_name.unwrap_or_default(),
            pod_uid: text(metadata, "uid"),
            node_name: text(spec, "nodeName"),
            labels: map("labels"),
            annotations: map("annotations"),
            owners: owners(subject, metadata, inventory),
        }
    }

    /// The first of: annotation, labels (opt-in), owner, pod name, container name.
    pub(crate) fn service_name(&self, instrumentation: &Instrumentation, app: App<'_>) -> String {
        let annotated = self.annotation("service.name");
        let labels: &[&str] = if instrumentation.use_labels {
            &["app.kubernetes.io/instance", "app.kubernetes.io/name"]
        } else {
            &[]
        };
        let labelled = labels.iter().map(|key| text(self.labels, key));
        let owned = KINDS
            .iter()
            .filter_map(|kind| self.owners.get(*kind))
            .map(|owner| owner.name.as_str());
        let mut names = [annotated]
            .into_iter()
            .chain(labelled)
            .chain(owned)
            .chain([self.pod_name, app.container]);
        names.find(|name| !name.is_empty()).unwrap_or_default().to_owned()
    }

    /// Resource attributes, sorted by key. Later steps win over earlier ones.
    pub(crate) fn attributes(
        &self,
        instrumentation: &Instrumentation,
        app: App<'_>,
    ) -> BTreeMap<String, String> {
        let mut all = instrumentation.attributes.clone();
        self.kubernetes_attributes(instrumentation, app, &mut all);
        for (key, value) in self.annotations {
            let attribute = key.strip_prefix(RESOURCE).filter(|name| *name != "service.name");
            if let (Some(name), Some(value)) = (attribute, value.as_str()) {
                all.insert(name.to_owned(), value.to_owned());
            }
        }
        // operator: these two always come from the downward API; annotations do not change them.
        all.insert("k8s.pod.name".to_owned(), format!("$({POD_NAME})"));
        if self.node_name.is_empty() {
            all.insert("k8s.node.name".to_owned(), format!("$({NODE_NAME})"));
        }
        if self.annotation("service.namespace").is_empty() {
            all.insert("service.namespace".to_owned(), self.namespace.to_owned());
        }
        if self.annotation("service.version").is_empty()
            && let Some(version) = self.version(instrumentation, app)
        {
            all.insert("service.version".to_owned(), version);
        }
        all.retain(|key, value| !key.is_empty() && !value.is_empty());
        all
    }

    fn kubernetes_attributes(
        &self,
        instrumentation: &Instrumentation,
        app: App<'_>,
        all: &mut BTreeMap<String, String>,
    ) {
        let mut set = |key: &str, value: &str| {
            if !value.is_empty() {
                all.insert(key.to_owned(), value.to_owned());
            }
        };
        set("k8s.namespace.name", self.namespace);
        set("k8s.container.name", app.container);
        set("k8s.node.name", self.node_name);
        set("k8s.pod.uid", self.pod_uid);
        if self.pod_uid.is_empty() && instrumentation.add_uids {
            set("k8s.pod.uid", &format!("$({POD_UID})"));
        }
        for (kind, owner) in &self.owners {
            set(&format!("k8s.{kind}.name"), &owner.name);
            if let (true, Some(uid)) = (instrumentation.add_uids, &owner.uid) {
                set(&format!("k8s.{kind}.uid"), uid);
            }
        }
        if !self.namespace.is_empty() && !app.container.is_empty() {
            set(
                "service.instance.id",
                &format!("{}.$({POD_NAME}).{}", self.namespace, app.container),
            );
        }
    }

    fn version(&self, instrumentation: &Instrumentation, app: App<'_>) -> Option<String> {
        let label = text(self.labels, "app.kubernetes.io/version");
        if instrumentation.use_labels && !label.is_empty() {
            return Some(label.to_owned());
        }
        image_version(app.image)
    }

    fn annotation(&self, attribute: &str) -> &'a str {
        text(self.annotations, &format!("{RESOURCE}{attribute}"))
    }
}

/// Owners by lower-case kind. `ReplicaSets` and Jobs are followed to what made them, if that is known.
fn owners(
    subject: &Subject<'_>,
    metadata: &Map<String, Value>,
    inventory: &Inventory,
) -> BTreeMap<String, Owner> {
    let references = metadata.get("ownerReferences").and_then(Value::as_array);
    let listed = references.into_iter().flatten().filter_map(Owner::from_reference);
    let mut found = BTreeMap::new();
    for owner in subject.owner.iter().cloned().chain(listed) {
        let kind = owner.kind.to_lowercase();
        if matches!(kind.as_str(), "replicaset" | "job") {
            for above in inventory.owners(&kind, subject.namespace, &owner.name) {
                remember(&mut found, above.clone());
            }
        }
        remember(&mut found, owner);
    }
    found
}

fn remember(found: &mut BTreeMap<String, Owner>, owner: Owner) {
    let kind = owner.kind.to_lowercase();
    if KINDS.contains(&kind.as_str()) {
        found.entry(kind).or_insert(owner);
    }
}

/// `tag`, `digest` or `tag@digest` of an image reference. A registry's port is not a tag.
fn image_version(image: &str) -> Option<String> {
    let (path, digest) = match image.split_once('@') {
        Some((path, digest)) => (path, Some(digest).filter(|d| !d.is_empty())),
        None => (image, None),
    };
    let last = path.rsplit('/').next().unwrap_or_default();
    let tag = last
        .split_once(':')
        .map(|(_, tag)| tag)
        .filter(|tag| !tag.is_empty());
    match (tag, digest) {
        (Some(tag), Some(digest)) => Some(format!("{tag}@{digest}")),
        (Some(one), None) | (None, Some(one)) => Some(one.to_owned()),
        (None, None) => None,
    }
}

/// Joins attributes as `OTEL_RESOURCE_ATTRIBUTES` wants them, behind what is there; keys that are there stay.
pub(crate) fn join_attributes(existing: &str, mut all: BTreeMap<String, String>) -> String {
    for entry in existing.split(',') {
        if let Some((key, _)) = entry.split_once('=') {
            all.remove(key.trim());
        }
    }
    let added: Vec<String> = all
        .iter()
        .map(|(key, value)| format!("{}={}", plain(key), plain(value)))
        .collect();
    let separator = if existing.is_empty() || existing.ends_with(',') || added.is_empty() {
        ""
    } else {
        ","
    };
    format!("{existing}{separator}{}", added.join(","))
}

/// differs from the operator: separators and control characters inside a value are percent-encoded, which is
/// what the SDKs decode, because otherwise one value could smuggle in further attributes.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, ',' | '=') || c.is_control() {
            let mut buffer = [0; 4];
            out.extend(
                c.encode_utf8(&mut buffer)
                    .bytes()
                    .map(|byte| format!("%{byte:02X}")),
            );
        } else {
            out.push(c);
        }
    }
    out
}
