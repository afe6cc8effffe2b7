//! Small edits of a JSON document that never assume its structure.

use serde_json::{Map, Value};

use super::ApplyError;

/// The object at a pointer, made where it is missing.
pub(super) fn object<'v>(
    document: &'v mut Value,
    pointer: &str,
) -> Result<&'v mut Map<String, Value>, ApplyError> {
    let mut at = document;
    for key in pointer.split('/').skip(1) {
        at = match at {
            Value::Object(map) => map.entry(key).or_insert_with(|| Value::Object(Map::new())),
            Value::Array(items) => {
                let index = key.parse::<usize>().ok().filter(|i| *i < items.len());
                let index = index.ok_or_else(|| ApplyError::Shape(pointer.to_owned()))?;
                &mut items[index]
            }
            _ => return Err(ApplyError::Shape(pointer.to_owned())),
        };
    }
    at.as_object_mut()
        .ok_or_else(|| ApplyError::Shape(pointer.to_owned()))
}

/// The list of containers of this name in a pod spec, made where it is missing.
pub(super) fn list<'v>(
    document: &'v mut Value,
    root: &str,
    name: &str,
) -> Result<&'v mut Vec<Value>, ApplyError> {
    let spec = object(document, &format!("{root}/spec"))?;
    let list = spec.entry(name).or_insert_with(|| Value::Array(Vec::new()));
    list.as_array_mut()
        .ok_or_else(|| ApplyError::Shape(format!("{root}/spec/{name}")))
}

/// The container of this name, in either list.
pub(super) fn container<'v>(
    document: &'v mut Value,
    root: &str,
    name: &str,
) -> Result<&'v mut Map<String, Value>, ApplyError> {
    let missing = || ApplyError::NoContainer(name.to_owned());
    let spec = object(document, &format!("{root}/spec"))?;
    let mut found = None;
    for (key, list) in spec.iter_mut() {
        if key == "initContainers" || key == "containers" {
            let items = list.as_array_mut().map_or(&mut [][..], Vec::as_mut_slice);
            let one = items
                .iter_mut()
                .find(|c| c["name"] == name)
                .and_then(Value::as_object_mut);
            found = found.or(one);
        }
    }
    found.ok_or_else(missing)
}

/// Takes the container of this name out of a list.
pub(super) fn take(list: &mut Vec<Value>, name: &str) -> Option<Value> {
    let index = list.iter().position(|c| c["name"] == name)?;
    Some(list.remove(index))
}

/// Sets an annotation of the pod.
pub(super) fn annotate(document: &mut Value, root: &str, key: &str, value: String) -> Result<(), ApplyError> {
    let annotations = object(document, &format!("{root}/metadata/annotations"))?;
    annotations.insert(key.to_owned(), Value::String(value));
    Ok(())
}

/// The annotation of the pod, when it is there.
pub(super) fn annotation(document: &Value, root: &str, key: &str) -> Option<String> {
    let annotations = document.pointer(root)?.get("metadata")?.get("annotations")?;
    annotations.get(key)?.as_str().map(str::to_owned)
}

/// Adds ports to a comma-separated annotation.
pub(super) fn add_ports(
    document: &mut Value,
    root: &str,
    key: &str,
    ports: &[u16],
) -> Result<(), ApplyError> {
    let value = join_ports(annotation(document, root, key).unwrap_or_default(), ports);
    annotate(document, root, key, value)
}

/// A comma-separated list with these ports added where they are missing.
pub(super) fn join_ports(mut list: String, ports: &[u16]) -> String {
    for port in ports {
        let port = port.to_string();
        if list.split(',').any(|p| p.trim() == port) {
            continue;
        }
        if !list.trim().is_empty() {
            list.push(',');
        }
        list.push_str(&port);
    }
    list
}

/// Drops a key of a nested object, and the object when nothing is left in it.
pub(super) fn drop_nested(container: &mut Map<String, Value>, outer: &str, inner: &str) {
    let Some(Value::Object(map)) = container.get_mut(outer) else {
        return;
    };
    map.remove(inner);
    if map.is_empty() {
        container.remove(outer);
    }
}
