//! What is known about the cluster from the documents that were read: Instrumentations, Namespaces, the
//! names of Secrets and `ConfigMaps`, and who owns which `ReplicaSet` or Job.
//!
//! Documents of other kinds are ignored. An object without a namespace belongs to the inventory's default
//! namespace, the one its caller applies it to.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::instrumentation::Instrumentation;

/// One owner of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// API version, e.g. `apps/v1`.
    pub api_version: String,
    /// Kind, e.g. `Deployment`.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Uid, when it is known already.
    pub uid: Option<String>,
}

impl Owner {
    /// Reads one entry of `metadata.ownerReferences`; nothing if it has no kind or name.
    pub fn from_reference(reference: &Value) -> Option<Self> {
        let text = |key: &str| {
            reference
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (kind, name, uid) = (text("kind"), text("name"), text("uid"));
        (!kind.is_empty() && !name.is_empty()).then(|| Self {
            api_version: text("apiVersion"),
            kind,
            name,
            uid: (!uid.is_empty()).then_some(uid),
        })
    }

    /// All owners of an object.
    pub fn of(metadata: &Value) -> Vec<Self> {
        let references = metadata.get("ownerReferences").and_then(Value::as_array);
        references
            .into_iter()
            .flatten()
            .filter_map(Self::from_reference)
            .collect()
    }
}

/// Namespace (empty: the default one) and name.
type Key = (String, String);

/// What is known about the cluster.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    default_namespace: String,
    instrumentations: BTreeMap<Key, Instrumentation>,
    namespaces: BTreeMap<String, Value>,
    secrets: BTreeSet<Key>,
    config_maps: BTreeSet<Key>,
    owned: BTreeMap<(String, Key), Vec<Owner>>,
    /// The empty map that is returned for unknown namespaces.
    nothing: Map<String, Value>,
}

impl Inventory {
    /// The namespace of objects that name none; `default` unless set.
    pub fn set_default_namespace(&mut self, namespace: &str) {
        namespace.clone_into(&mut self.default_namespace);
    }

    /// Remembers a document if its kind matters; the items of a list one by one.
    pub fn add(&mut self, document: &Value) {
        let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
        let (api, kind) = (text("apiVersion"), text("kind"));
        if let (true, Some(items)) = (
            kind.ends_with("List"),
            document.get("items").and_then(Value::as_array),
        ) {
            for item in items {
                self.add_object(item);
            }
            return;
        }
        if !api.is_empty() {
            self.add_object(document);
        }
    }

    fn add_object(&mut self, document: &Value) {
        let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
        let metadata = document.get("metadata").unwrap_or(&Value::Null);
        let part = |key: &str| {
            metadata
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let key = (part("namespace"), part("name"));
        match (text("apiVersion"), text("kind")) {
            (api, "Instrumentation") if api.starts_with("opentelemetry.io/") => {
                let found = Instrumentation::parse(&key.1, document.get("spec"));
                self.instrumentations.insert(key, found);
            }
            ("v1", "Namespace") => {
                self.namespaces.insert(key.1, metadata.clone());
            }
            ("v1", "Secret") => {
                self.secrets.insert(key);
            }
            ("v1", "ConfigMap") => {
                self.config_maps.insert(key);
            }
            (_, kind @ ("ReplicaSet" | "Job")) => {
                self.owned.insert((kind.to_lowercase(), key), Owner::of(metadata));
            }
            _ => {}
        }
    }

    /// The annotations of a namespace; empty if it is not known.
    pub fn namespace_annotations(&self, namespace: &str) -> &Map<String, Value> {
        self.namespace_map(namespace, "annotations")
    }

    /// The labels of a namespace; empty if it is not known.
    pub fn namespace_labels(&self, namespace: &str) -> &Map<String, Value> {
        self.namespace_map(namespace, "labels")
    }

    fn namespace_map(&self, namespace: &str, key: &str) -> &Map<String, Value> {
        let map = self
            .namespaces
            .get(namespace)
            .and_then(|metadata| metadata.get(key));
        map.and_then(Value::as_object).unwrap_or(&self.nothing)
    }

    /// The Instrumentation of that name.
    pub(crate) fn instrumentation(&self, namespace: &str, name: &str) -> Option<&Instrumentation> {
        self.keys(namespace, name)
            .into_iter()
            .find_map(|key| self.instrumentations.get(&key))
    }

    /// All Instrumentations of a namespace, by name.
    pub(crate) fn instrumentations(&self, namespace: &str) -> Vec<&Instrumentation> {
        let here = |own: &str| own == namespace || (own.is_empty() && self.is_default(namespace));
        self.instrumentations
            .iter()
            .filter(|((own, _), _)| here(own))
            .map(|(_, found)| found)
            .collect()
    }

    pub(crate) fn has_secret(&self, namespace: &str, name: &str) -> bool {
        self.keys(namespace, name)
            .iter()
            .any(|key| self.secrets.contains(key))
    }

    pub(crate) fn has_config_map(&self, namespace: &str, name: &str) -> bool {
        self.keys(namespace, name)
            .iter()
            .any(|key| self.config_maps.contains(key))
    }

    /// The owners of a `ReplicaSet` or Job; empty if it is not known. `kind` is lower case.
    pub(crate) fn owners(&self, kind: &str, namespace: &str, name: &str) -> &[Owner] {
        let mut keys = self.keys(namespace, name).into_iter();
        keys.find_map(|key| self.owned.get(&(kind.to_owned(), key)))
            .map_or(&[], Vec::as_slice)
    }

    fn is_default(&self, namespace: &str) -> bool {
        let default = if self.default_namespace.is_empty() {
            "default"
        } else {
            &self.default_namespace
        };
        namespace == default
    }

    /// Where an object may be stored: under its namespace, or without one if that is the default.
    fn keys(&self, namespace: &str, name: &str) -> Vec<Key> {
        let mut keys = vec![(namespace.to_owned(), name.to_owned())];
        if self.is_default(namespace) {
            keys.push((String::new(), name.to_owned()));
        }
        keys
    }
}
