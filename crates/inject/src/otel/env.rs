//! Environment lists of containers: looking variables up, adding them, extending them.
//!
//! Existing entries are never reordered or overwritten, except where a language must extend a value.

use std::collections::HashSet;

use serde_json::{Value, json};

/// What a list says about a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held<'a> {
    /// Not in the list.
    Absent,
    /// A literal value (a missing one counts as empty).
    Literal(&'a str),
    /// Taken from elsewhere by `valueFrom`, so nothing can be appended to it.
    Indirect,
}

/// The name of an entry.
pub(crate) fn name(entry: &Value) -> &str {
    entry.get("name").and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn has(env: &[Value], wanted: &str) -> bool {
    position(env, wanted).is_some()
}

fn position(env: &[Value], wanted: &str) -> Option<usize> {
    env.iter().position(|entry| name(entry) == wanted)
}

/// Looks a variable up.
pub(crate) fn held<'a>(env: &'a [Value], wanted: &str) -> Held<'a> {
    let Some(entry) = position(env, wanted).and_then(|at| env.get(at)) else {
        return Held::Absent;
    };
    if entry.get("valueFrom").is_some_and(|source| !source.is_null()) {
        return Held::Indirect;
    }
    Held::Literal(entry.get("value").and_then(Value::as_str).unwrap_or_default())
}

/// Looks a variable up in several lists; the first that has it decides.
pub(crate) fn held_in<'a>(lists: &[&'a [Value]], wanted: &str) -> Held<'a> {
    lists
        .iter()
        .map(|list| held(list, wanted))
        .find(|held| *held != Held::Absent)
        .unwrap_or(Held::Absent)
}

/// Whether any of several lists takes a variable from elsewhere.
pub(crate) fn is_indirect(lists: &[&[Value]], wanted: &str) -> bool {
    lists.iter().any(|list| held(list, wanted) == Held::Indirect)
}

/// Adds entries whose names are not there yet, each name once.
pub(crate) fn append_absent(env: &mut Vec<Value>, entries: &[Value]) {
    if entries.is_empty() {
        return;
    }
    let mut known: HashSet<&str> = env.iter().map(name).collect();
    let new: Vec<Value> = entries
        .iter()
        .filter(|entry| known.insert(name(entry)))
        .cloned()
        .collect();
    env.extend(new);
}

/// Adds a literal if the name is not there yet.
pub(crate) fn append_value(env: &mut Vec<Value>, name: &str, value: &str) {
    if !has(env, name) {
        env.push(json!({"name": name, "value": value}));
    }
}

/// Adds a downward-API field if the name is not there yet.
pub(crate) fn append_field(env: &mut Vec<Value>, name: &str, path: &str) {
    if !has(env, name) {
        env.push(field(name, path));
    }
}

/// Sets a literal, in place if the variable is there.
pub(crate) fn set(env: &mut Vec<Value>, wanted: &str, value: &str) {
    let found = position(env, wanted)
        .and_then(|at| env.get_mut(at))
        .and_then(Value::as_object_mut);
    match found {
        Some(entry) => drop(entry.insert("value".to_owned(), Value::from(value))),
        None => env.push(json!({"name": wanted, "value": value})),
    }
}

/// Appends `more` to a `:`-separated list, or starts it. An empty old value is no element.
pub(crate) fn extend_path(env: &mut Vec<Value>, wanted: &str, more: &str) {
    let value = match held(env, wanted) {
        Held::Literal(old) if !old.is_empty() => format!("{old}:{more}"),
        _ => more.to_owned(),
    };
    set(env, wanted, &value);
}

/// Takes a variable out of the list.
pub(crate) fn take(env: &mut Vec<Value>, wanted: &str) -> Option<Value> {
    position(env, wanted).map(|at| env.remove(at))
}

/// A variable filled from a field of the pod.
pub(crate) fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

/// `OTEL_NODE_IP` and `OTEL_POD_IP` go to the very front, so that every later value can refer to them.
pub(crate) fn prepend_addresses(env: &mut Vec<Value>) {
    let wanted = [("OTEL_NODE_IP", "status.hostIP"), ("OTEL_POD_IP", "status.podIP")];
    let missing = wanted
        .iter()
        .filter(|(name, _)| !has(env, name))
        .map(|(name, path)| field(name, path));
    let mut front: Vec<Value> = missing.collect();
    front.append(env);
    *env = front;
}
