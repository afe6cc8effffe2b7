//! Behaviour of the instrumentation, through its public functions.

use serde_json::{Value, json};

use super::{Inventory, Operator, Options, Outcome, Owner, Subject, instrument};

mod agents;
mod choice;
mod go;
mod identity;
mod properties;
mod repeat;
mod resource;
mod scripts;
mod webservers;

const EVERYTHING: &str = r#"{"EnableJavaAutoInstrumentation": true, "EnableNodeJSAutoInstrumentation": true,
    "EnablePythonAutoInstrumentation": true, "EnableDotNetAutoInstrumentation": true,
    "EnableGoAutoInstrumentation": true, "EnableApacheHttpdInstrumentation": true,
    "EnableNginxAutoInstrumentation": true, "EnableMultiInstrumentation": true}"#;

/// A pod in namespace `shop` and what there is around it.
struct Case {
    annotations: Value,
    labels: Value,
    spec: Value,
    documents: Vec<Value>,
    operator: Operator,
    options: Options,
    pod_name: Option<&'static str>,
    owner: Option<Owner>,
}

/// The pod spec afterwards, and what was said.
struct Run {
    spec: Value,
    outcome: Outcome,
}

/// Annotations by their short names, e.g. `inject-java`.
fn annotations(short: &[(&str, &str)]) -> Value {
    short
        .iter()
        .map(|(key, value)| (format!("instrumentation.opentelemetry.io/{key}"), json!(value)))
        .collect()
}

/// A pod that asks for instrumentation, with one Instrumentation `cr` of that spec and everything on.
fn case(short: &[(&str, &str)], cr: &Value, spec: Value) -> Case {
    Case {
        annotations: annotations(short),
        labels: json!({}),
        spec,
        documents: vec![instrumentation("shop", "cr", cr)],
        operator: Operator::from_json(EVERYTHING).unwrap(),
        options: Options::default(),
        pod_name: None,
        owner: None,
    }
}

fn instrumentation(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "opentelemetry.io/v1alpha1", "kind": "Instrumentation",
           "metadata": {"namespace": namespace, "name": name}, "spec": spec})
}

fn app() -> Value {
    json!({"containers": [{"name": "app", "image": "shop/app:1.2"}]})
}

impl Case {
    fn run(&self) -> Run {
        let mut inventory = Inventory::default();
        for document in &self.documents {
            inventory.add(document);
        }
        let metadata = json!({"annotations": self.annotations, "labels": self.labels});
        let subject = Subject {
            namespace: "shop",
            pod_name: self.pod_name,
            owner: self.owner.clone(),
        };
        let mut spec = self.spec.clone();
        let outcome = instrument(
            &metadata,
            &mut spec,
            &subject,
            &inventory,
            &self.operator,
            self.options,
        );
        assert_eq!(outcome.changed, spec != self.spec, "changed says what happened");
        Run { spec, outcome }
    }

    /// The pod after a first pass becomes the pod of the next.
    fn again(&self, run: &Run) -> Run {
        Case {
            spec: run.spec.clone(),
            ..self.copy()
        }
        .run()
    }

    fn copy(&self) -> Case {
        Case {
            annotations: self.annotations.clone(),
            labels: self.labels.clone(),
            spec: self.spec.clone(),
            documents: self.documents.clone(),
            operator: self.operator.clone(),
            options: self.options,
            pod_name: self.pod_name,
            owner: self.owner.clone(),
        }
    }
}

impl Run {
    fn codes(&self) -> Vec<&'static str> {
        self.outcome.warnings.iter().map(|warning| warning.code).collect()
    }

    fn untouched(&self, code: &str) {
        assert!(!self.outcome.changed, "{:#}", self.spec);
        assert!(self.codes().contains(&code), "{:?}", self.outcome.warnings);
    }

    fn names(&self, list: &str) -> Vec<&str> {
        self.spec[list]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|item| item["name"].as_str())
            .collect()
    }

    fn container(&self, name: &str) -> &Value {
        let lists = ["initContainers", "containers"]
            .into_iter()
            .filter_map(|list| self.spec[list].as_array());
        lists
            .flatten()
            .find(|container| container["name"] == name)
            .unwrap_or(&Value::Null)
    }

    fn volume(&self, name: &str) -> &Value {
        let volumes = self.spec["volumes"].as_array().into_iter().flatten();
        volumes
            .into_iter()
            .find(|volume| volume["name"] == name)
            .unwrap_or(&Value::Null)
    }

    fn env(&self, container: &str, variable: &str) -> &Value {
        let env = self.container(container)["env"].as_array().into_iter().flatten();
        env.into_iter()
            .find(|entry| entry["name"] == variable)
            .map_or(&Value::Null, |entry| &entry["value"])
    }

    fn env_names(&self, container: &str) -> Vec<&str> {
        let env = self.container(container)["env"].as_array().into_iter().flatten();
        env.filter_map(|entry| entry["name"].as_str()).collect()
    }

    fn attribute(&self, container: &str, key: &str) -> Option<&str> {
        let all = self.env(container, "OTEL_RESOURCE_ATTRIBUTES").as_str()?;
        all.split(',')
            .filter_map(|entry| entry.split_once('='))
            .find(|(k, _)| *k == key)
            .map(|(_, v)| v)
    }
}
