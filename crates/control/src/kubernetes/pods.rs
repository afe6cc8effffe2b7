//! All pods, by namespace and name.

use super::pod::Pod;
use super::world::Key;
use std::collections::BTreeMap;
use std::sync::Arc;

type Names = BTreeMap<Arc<str>, Pod>;

/// Pods with addresses. A namespace is kept once, a name where its pod is.
#[derive(Debug, Default)]
pub(super) struct Pods {
    namespaces: BTreeMap<Arc<str>, Names>,
}

/// Namespace and name of a pod that is known, without copies of them.
pub(super) type Place = (Arc<str>, Arc<str>);

impl Pods {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&Pod> {
        self.namespaces.get(namespace)?.get(name)
    }

    /// Puts a pod where it belongs, and says where that is.
    pub(super) fn insert(&mut self, (namespace, name): &Key, pod: Pod) -> Place {
        let namespace: Arc<str> = match self.namespaces.get_key_value(namespace.as_str()) {
            Some((known, _)) => Arc::clone(known),
            None => namespace.as_str().into(),
        };
        let names = self.namespaces.entry(Arc::clone(&namespace)).or_default();
        if let Some((known, _)) = names.get_key_value(name.as_str()) {
            let known = Arc::clone(known);
            names.insert(Arc::clone(&known), pod);
            return (namespace, known);
        }
        let name: Arc<str> = name.as_str().into();
        names.insert(Arc::clone(&name), pod);
        (namespace, name)
    }

    pub(super) fn remove(&mut self, (namespace, name): &Key) -> Option<Pod> {
        let names = self.namespaces.get_mut(namespace.as_str())?;
        let pod = names.remove(name.as_str())?;
        if names.is_empty() {
            self.namespaces.remove(namespace.as_str());
        }
        Some(pod)
    }

    /// Namespaces with pods.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = String> {
        self.namespaces.keys().map(ToString::to_string)
    }

    pub(super) fn inside(&self, namespace: &str) -> impl Iterator<Item = (&Arc<str>, &Pod)> {
        self.namespaces.get(namespace).into_iter().flatten()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, &Pod)> {
        let all = self.namespaces.iter();
        all.flat_map(|(namespace, names)| names.iter().map(move |(name, pod)| (namespace, name, pod)))
    }
}
