//! A pod spec as JSON, with the few operations injection needs. Unknown fields are left alone; a field of
//! the wrong type is an error for the step that needs it, never a panic and never overwritten.

use serde_json::{Map, Value, json};

/// A field that should be a list or object and is something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) String);

/// One container: which list, and where in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) init: bool,
    pub(crate) index: usize,
    pub(crate) name: String,
}

impl Place {
    fn list(&self) -> &'static str {
        list_name(self.init)
    }
}

pub(crate) fn list_name(init: bool) -> &'static str {
    if init { "initContainers" } else { "containers" }
}

/// The named list of an object; missing and null are empty.
pub(crate) fn list<'a>(map: &'a Map<String, Value>, key: &str) -> &'a [Value] {
    map.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The named list, made if it is missing.
pub(crate) fn list_mut<'a>(
    map: &'a mut Map<String, Value>,
    key: &str,
) -> Result<&'a mut Vec<Value>, Malformed> {
    let slot = map.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = Value::Array(Vec::new());
    }
    slot.as_array_mut()
        .ok_or_else(|| Malformed(format!("{key} is not a list")))
}

pub(crate) fn name(value: &Value) -> &str {
    value.get("name").and_then(Value::as_str).unwrap_or_default()
}

/// All containers of both lists, init containers first.
pub(crate) fn containers(spec: &Map<String, Value>) -> impl Iterator<Item = (Place, &Value)> {
    [true, false].into_iter().flat_map(|init| {
        list(spec, list_name(init))
            .iter()
            .enumerate()
            .map(move |(index, container)| {
                (
                    Place {
                        init,
                        index,
                        name: name(container).to_owned(),
                    },
                    container,
                )
            })
    })
}

/// A copy of a container, to be changed and put back.
pub(crate) fn container(spec: &Map<String, Value>, place: &Place) -> Result<Map<String, Value>, Malformed> {
    let found = list(spec, place.list())
        .get(place.index)
        .and_then(Value::as_object);
    found
        .cloned()
        .ok_or_else(|| Malformed(format!("{}[{}] is not an object", place.list(), place.index)))
}

/// Puts a changed container back where it was.
pub(crate) fn put_container(spec: &mut Map<String, Value>, place: &Place, container: Map<String, Value>) {
    let list = spec.get_mut(place.list()).and_then(Value::as_array_mut);
    if let Some(slot) = list.and_then(|list| list.get_mut(place.index)) {
        *slot = Value::Object(container);
    }
}

/// Index of a container of that name in one list.
pub(crate) fn find(spec: &Map<String, Value>, init: bool, wanted: &str) -> Option<usize> {
    list(spec, list_name(init))
        .iter()
        .position(|container| name(container) == wanted)
}

pub(crate) fn volume<'a>(spec: &'a Map<String, Value>, wanted: &str) -> Option<&'a Value> {
    list(spec, "volumes").iter().find(|volume| name(volume) == wanted)
}

/// Adds a volume unless one of that name is there.
pub(crate) fn add_volume(spec: &mut Map<String, Value>, new: Value) -> Result<(), Malformed> {
    let volumes = list_mut(spec, "volumes")?;
    if !volumes.iter().any(|volume| name(volume) == name(&new)) {
        volumes.push(new);
    }
    Ok(())
}

pub(crate) fn mounts(container: &Map<String, Value>) -> &[Value] {
    list(container, "volumeMounts")
}

/// Whether a volume is mounted in the container.
pub(crate) fn mounts_volume(container: &Map<String, Value>, volume: &str) -> bool {
    mounts(container).iter().any(|mount| name(mount) == volume)
}

/// The volume mounted exactly at a path.
pub(crate) fn mounted_at<'a>(container: &'a Map<String, Value>, path: &str) -> Option<&'a str> {
    let at = |mount: &&Value| mount.get("mountPath").and_then(Value::as_str) == Some(path);
    mounts(container).iter().find(at).map(name)
}

/// Mounts a volume, unless something is at that path already.
pub(crate) fn add_mount(
    container: &mut Map<String, Value>,
    volume: &str,
    path: &str,
    read_only: bool,
) -> Result<(), Malformed> {
    if mounted_at(container, path).is_some() {
        return Ok(());
    }
    let mut mount = json!({"name": volume, "mountPath": path});
    if read_only && let Some(map) = mount.as_object_mut() {
        map.insert("readOnly".to_owned(), Value::Bool(true));
    }
    list_mut(container, "volumeMounts")?.push(mount);
    Ok(())
}

/// Sets a field if there is something to set.
pub(crate) fn set_some(map: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    if let Some(value) = value.filter(|v| !v.is_null()) {
        map.insert(key.to_owned(), value);
    }
}
