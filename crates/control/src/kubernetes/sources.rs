//! Where the webhooks' rules come from: two config maps, namespaces, instrumentations, nodes.
//!
//! A config map that cannot be used leaves the rules as they were, and the reason is told. Pure.

use super::world::{Key, key_of};
use crate::webhook::{Enforcement, Native, Node, Rules};
use remora_inject::{InjectConfig, Injectors, Mesh, Order, Settings, SettingsError, Values, otel};
use remora_pod::yaml;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What rules are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Source {
    Namespace,
    Instrumentation,
    Node,
    ConfigMap,
}

/// Names of the config maps.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) mesh: String,
    pub(super) injector: String,
    pub(super) revision: String,
}

/// Why a config map cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Not YAML, or not a map.
    #[error("config map {map}, key {key}: {problem}")]
    Yaml {
        /// Which.
        map: String,
        /// Which of its keys.
        key: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// It says something that cannot be.
    #[error("config map {map}")]
    Settings {
        /// Which.
        map: String,
        /// What.
        #[source]
        source: SettingsError,
    },
}

/// Objects the rules depend on, as they are now.
#[derive(Debug)]
pub(super) struct Sources {
    names: Names,
    objects: BTreeMap<Source, BTreeMap<Key, Value>>,
    /// The config maps as they could last be used.
    good: Option<Settings>,
}

impl Sources {
    pub(super) fn new(names: Names) -> Self {
        Self {
            names,
            objects: BTreeMap::new(),
            good: None,
        }
    }

    /// An object is there. Tells whether the rules may be different.
    pub(super) fn put(&mut self, source: Source, document: Value) -> bool {
        let slim = match source {
            // Of a node only this matters, and its status changes every few seconds.
            Source::Node => {
                let node = Node::of(&document);
                serde_json::json!({"metadata": {"name": node.name, "labels": node.labels},
                    "status": {"nodeInfo": {"kubeletVersion": node.kubelet}}})
            }
            _ => slimmed(document),
        };
        let objects = self.objects.entry(source).or_default();
        let key = key_of(&slim);
        if objects.get(&key) == Some(&slim) {
            return false;
        }
        objects.insert(key, slim);
        true
    }

    /// An object is gone.
    pub(super) fn remove(&mut self, source: Source, key: &Key) -> bool {
        self.objects.entry(source).or_default().remove(key).is_some()
    }

    /// All objects of a kind are these.
    pub(super) fn retain(&mut self, source: Source, there: &BTreeSet<Key>) -> bool {
        let objects = self.objects.entry(source).or_default();
        let before = objects.len();
        objects.retain(|key, _| there.contains(key));
        objects.len() != before
    }

    /// The rules that follow from all of it, and why not from the config maps as they are. A mistake there keeps
    /// nothing else from being followed. `None`: they could never be used.
    pub(super) fn rules(&mut self) -> (Option<Rules>, Option<SourceError>) {
        let wrong = match self.settings() {
            Ok(settings) => {
                self.good = Some(settings);
                None
            }
            Err(error) => Some(error),
        };
        (self.good.clone().map(|settings| self.rules_with(settings)), wrong)
    }

    fn rules_with(&self, settings: Settings) -> Rules {
        let mut inventory = otel::Inventory::default();
        for source in [Source::Namespace, Source::Instrumentation] {
            for (_, document) in self.of(source) {
                inventory.add(document);
            }
        }
        let nodes = self.of(Source::Node).map(|(_, node)| Node::of(node)).collect();
        // istio: ENABLE_NATIVE_SIDECARS, which is a value of the installation.
        let native = match settings
            .values
            .text(&["pilot", "env", "ENABLE_NATIVE_SIDECARS"])
            .as_str()
        {
            "true" => Native::Fixed(true),
            "false" => Native::Fixed(false),
            _ => Native::ByNodes(nodes),
        };
        let everywhere = settings.values.flag(&["remora", "enforce"]);
        Rules {
            // The follower knows the mesh.
            policies: crate::policy::Mesh::default(),
            settings,
            inventory,
            native,
            enforcement: if everywhere {
                Enforcement::Everywhere
            } else {
                Enforcement::Labelled
            },
        }
    }

    fn settings(&self) -> Result<Settings, SourceError> {
        let mesh = self.document(&self.names.mesh, "mesh")?;
        let values = Values::new(&self.document(&self.names.injector, "values")?);
        let wrong = |map: &String| {
            let map = map.clone();
            move |source| SourceError::Settings { map, source }
        };
        let config = match self.text(&self.names.injector, "config") {
            Some(text) => InjectConfig::from_text(text),
            None => InjectConfig::from_values(&values),
        };
        Ok(Settings {
            mesh: Mesh::new(mesh).map_err(wrong(&self.names.mesh))?,
            config: config.map_err(wrong(&self.names.injector))?,
            order: order(&values).map_err(wrong(&self.names.injector))?,
            injectors: injectors(&values).map_err(wrong(&self.names.injector))?,
            values,
            revision: self.names.revision.clone(),
            ..Settings::default()
        })
    }

    fn of(&self, source: Source) -> impl Iterator<Item = (&Key, &Value)> {
        self.objects.get(&source).into_iter().flatten()
    }

    fn text(&self, map: &str, key: &str) -> Option<&str> {
        self.of(Source::ConfigMap)
            .find(|((_, name), _)| name == map)
            .and_then(|(_, document)| document["data"][key].as_str())
    }

    fn document(&self, map: &str, key: &'static str) -> Result<Value, SourceError> {
        let wrong = |problem: String| SourceError::Yaml {
            map: map.to_owned(),
            key,
            problem,
        };
        let text = self.text(map, key).unwrap_or_default();
        let document = yaml::parse_str(text).map_err(|error| wrong(error.to_string()))?;
        match document.map(|d| d.value).unwrap_or_default() {
            value @ (Value::Object(_) | Value::Null) => Ok(value),
            _ => Err(wrong("a map is wanted".to_owned())),
        }
    }
}

/// `remora.order`, as the option of `remora inject`.
fn order(values: &Values) -> Result<Order, SettingsError> {
    match values.text(&["remora", "order"]).as_str() {
        "" | "safe" => Ok(Order::Safe),
        "istio" => Ok(Order::Istio),
        _ => Err(wanted("remora.order", "safe or istio")),
    }
}

/// `remora.injectors`, as the option of `remora inject`.
fn injectors(values: &Values) -> Result<Injectors, SettingsError> {
    let wrong = || wanted("remora.injectors", "a list of mesh and otel");
    let listed = match values.at(&["remora", "injectors"]) {
        Value::Null => return Ok(Injectors::default()),
        Value::Array(listed) => listed,
        _ => return Err(wrong()),
    };
    let mut chosen = Injectors {
        mesh: false,
        otel: false,
    };
    for name in listed {
        match name.as_str() {
            Some("mesh") => chosen.mesh = true,
            Some("otel") => chosen.otel = true,
            _ => return Err(wrong()),
        }
    }
    Ok(chosen)
}

fn wanted(field: &str, wanted: &'static str) -> SettingsError {
    SettingsError::Type {
        document: "values",
        field: field.to_owned(),
        wanted,
    }
}

/// Without what changes for no reason of ours.
fn slimmed(mut document: Value) -> Value {
    if let Some(metadata) = document["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
    }
    if let Some(object) = document.as_object_mut() {
        object.remove("status");
    }
    document
}

#[cfg(test)]
mod tests {
    use super::{Names, Source, Sources};
    use crate::webhook::Native;
    use remora_inject::Order;
    use serde_json::{Value, json};

    fn sources() -> Sources {
        Sources::new(Names {
            mesh: "istio".to_owned(),
            injector: "istio-sidecar-injector".to_owned(),
            revision: String::new(),
        })
    }

    fn map(name: &str, data: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "istio-system"},
            "data": data})
    }

    #[test]
    fn config_maps_become_settings() {
        let mut sources = sources();
        sources.put(
            Source::ConfigMap,
            map("istio", &json!({"mesh": "trustDomain: td\n"})),
        );
        let values =
            json!({"values": "{\"global\": {\"hub\": \"example.com\", \"proxy\": {\"image\": \"remora\"}}}"});
        sources.put(Source::ConfigMap, map("istio-sidecar-injector", &values));
        let (Some(rules), None) = sources.rules() else {
            panic!("usable")
        };
        assert_eq!(rules.settings.mesh.text("trustDomain", ""), "td");
        assert_eq!(rules.settings.values.text(&["global", "hub"]), "example.com");
        assert!(matches!(rules.native, Native::ByNodes(_)));
    }

    #[test]
    fn order_and_injectors_are_values_as_they_are_options_of_the_command() {
        let settings = |values: &str| {
            let mut sources = sources();
            sources.put(
                Source::ConfigMap,
                map("istio-sidecar-injector", &json!({"values": values})),
            );
            sources.rules().0.map(|rules| rules.settings)
        };
        assert_eq!(settings("{}").unwrap().order, Order::Safe);
        let classic = settings("remora: {order: istio, injectors: [mesh]}").unwrap();
        assert_eq!(classic.order, Order::Istio);
        assert!(classic.injectors.mesh && !classic.injectors.otel);
        for bad in ["remora: {order: first}", "remora: {injectors: vault}"] {
            assert!(settings(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_bad_config_map_is_named() {
        let mut sources = sources();
        sources.put(Source::ConfigMap, map("istio", &json!({"mesh": "[1"})));
        let (none, error) = sources.rules();
        assert!(none.is_none(), "never usable");
        let error = error.unwrap().to_string();
        assert!(error.starts_with("config map istio, key mesh: "), "{error}");
    }

    #[test]
    fn a_bad_config_map_keeps_nothing_else_from_being_followed() {
        let mut sources = sources();
        let good = map("istio", &json!({"mesh": "trustDomain: td"}));
        sources.put(Source::ConfigMap, good);
        sources.rules();
        sources.put(Source::ConfigMap, map("istio", &json!({"mesh": "[1"})));
        let node = json!({"metadata": {"name": "n1"}, "status": {"nodeInfo": {"kubeletVersion": "v1.27.0"}}});
        sources.put(Source::Node, node);
        let (Some(rules), Some(_)) = sources.rules() else {
            panic!("the old ones with the new node")
        };
        assert_eq!(rules.settings.mesh.text("trustDomain", ""), "td");
        assert!(!rules.native.decide(&json!({})));
    }

    #[test]
    fn a_heartbeat_of_a_node_changes_nothing() {
        let mut sources = sources();
        let node = |beat: &str| {
            json!({"metadata": {"name": "n1", "resourceVersion": beat},
                "status": {"nodeInfo": {"kubeletVersion": "v1.35.0"}, "conditions": [{"lastHeartbeatTime": beat}]}})
        };
        assert!(sources.put(Source::Node, node("1")));
        assert!(!sources.put(Source::Node, node("2")));
    }
}
