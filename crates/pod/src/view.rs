//! Reading and changing pods as JSON values.
//!
//! A pod here is a value with `metadata` and `spec`: a Pod, or the template inside a workload. Every reader is
//! tolerant (a field of the wrong type reads as absent; validation speaks about it elsewhere), every writer
//! makes the containers it needs.

use serde_json::{Map, Value};

pub use crate::object::{annotation, label};

static NOTHING: &[Value] = &[];

/// The text at a path of keys, if it is there and is text.
pub fn text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    at(value, path)?.as_str()
}

/// The value at a path of keys.
pub fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |v, key| v.get(key))
}

/// The list at a path of keys; empty when it is missing or not a list.
pub fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path)
        .and_then(Value::as_array)
        .map_or(NOTHING, Vec::as_slice)
}

/// The `name` of a container, volume or variable; empty when it has none.
pub fn name(item: &Value) -> &str {
    item.get("name").and_then(Value::as_str).unwrap_or_default()
}

/// The item of a list with this `name`.
pub fn find<'a>(items: &'a [Value], wanted: &str) -> Option<&'a Value> {
    items.iter().find(|item| name(item) == wanted)
}

/// `spec.containers` of a pod.
pub fn containers(pod: &Value) -> &[Value] {
    list(pod, &["spec", "containers"])
}

/// `spec.initContainers` of a pod.
pub fn init_containers(pod: &Value) -> &[Value] {
    list(pod, &["spec", "initContainers"])
}

/// True for an init container that keeps running: a native sidecar.
pub fn is_native_sidecar(container: &Value) -> bool {
    container.get("restartPolicy").and_then(Value::as_str) == Some("Always")
}

/// The map at a path of keys, made where it is missing (or is something else).
pub fn map_mut<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    let mut here = as_map(value);
    for key in path {
        here = as_map(here.entry(*key).or_insert(Value::Null));
    }
    here
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object just above"),
    }
}

/// The list at a path of keys, made where it is missing (or is something else).
pub fn list_mut<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Vec<Value> {
    let Some((last, parents)) = path.split_last() else {
        return as_list(value);
    };
    as_list(map_mut(value, parents).entry(*last).or_insert(Value::Null))
}

fn as_list(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    match value {
        Value::Array(items) => items,
        _ => unreachable!("made a list just above"),
    }
}

/// Sets an annotation of a pod.
pub fn set_annotation(pod: &mut Value, key: &str, value: impl Into<String>) {
    map_mut(pod, &["metadata", "annotations"]).insert(key.to_owned(), Value::String(value.into()));
}

/// Sets a label of a pod.
pub fn set_label(pod: &mut Value, key: &str, value: impl Into<String>) {
    map_mut(pod, &["metadata", "labels"]).insert(key.to_owned(), Value::String(value.into()));
}

/// A container of either list, for change.
pub fn container_mut<'a>(pod: &'a mut Value, wanted: &str) -> Option<&'a mut Value> {
    let spec = pod.get_mut("spec")?.as_object_mut()?;
    spec.iter_mut()
        .filter(|(key, _)| *key == "containers" || *key == "initContainers")
        .filter_map(|(_, list)| list.as_array_mut())
        .flatten()
        .find(|item| name(item) == wanted)
}

/// A container of either list.
pub fn container<'a>(pod: &'a Value, wanted: &str) -> Option<&'a Value> {
    find(containers(pod), wanted).or_else(|| find(init_containers(pod), wanted))
}

/// A scalar as text, the way a Go template prints it; empty for null, maps and lists.
pub fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
        _ => String::new(),
    }
}
