//! Strategic merge patch, as far as pods need it.
//!
//! [`merge`] lays a patch over a document the way the API server and Istio's injector do: maps merge, `null`
//! deletes, lists whose items have an identity (containers, env, volumes…) merge item by item, every other
//! list is replaced. The order of a merged list is part of the contract, because the order of containers is
//! the order in which they start.

use serde_json::{Map, Value};

/// Lays `patch` over `original`.
///
/// Directives: `$patch: replace | delete | merge` in maps and list items, `$retainKeys` in maps;
/// `$setElementOrder/…` and `$deleteFromPrimitiveList/…` are accepted and dropped.
pub fn merge(original: Value, patch: Value) -> Value {
    merge_field("", original, patch)
}

/// Lays `over` over `base` as settings are laid over each other: maps merge key by key, everything else, lists and
/// `null` included, is replaced.
pub fn overlay(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                overlay(base.entry(key.as_str()).or_insert(Value::Null), value);
            }
        }
        (base, over) => over.clone_into(base),
    }
}

fn merge_field(field: &str, original: Value, patch: Value) -> Value {
    match (original, patch) {
        (Value::Object(old), Value::Object(new)) => Value::Object(merge_maps(old, new)),
        (Value::Array(old), Value::Array(new)) => merge_lists(field, old, new),
        (_, Value::Object(new)) => Value::Object(merge_maps(Map::new(), new)),
        (_, Value::Array(new)) => merge_lists(field, Vec::new(), new),
        (_, new) => new,
    }
}

fn merge_maps(mut old: Map<String, Value>, new: Map<String, Value>) -> Map<String, Value> {
    match new.get("$patch").and_then(Value::as_str) {
        Some("replace") => old.clear(),
        Some("delete") => return Map::new(),
        _ => {}
    }
    if let Some(keep) = new.get("$retainKeys").and_then(Value::as_array) {
        old.retain(|key, _| keep.iter().any(|k| k.as_str() == Some(key)));
    }
    for (key, value) in new {
        if key.starts_with('$') {
            continue;
        }
        if value.is_null() {
            old.remove(&key);
            continue;
        }
        let before = old.get_mut(&key).map(Value::take).unwrap_or_default();
        let merged = merge_field(&key, before, value);
        old.insert(key, merged);
    }
    old
}

/// What makes two items of a list the same item.
enum Identity {
    /// The same text in this field.
    Field(&'static str),
    /// The same port number and protocol.
    Port,
}

/// The merge key of a list's items; `None` for lists that are replaced as a whole.
///
/// k8s: the merge keys of the pod API. Ports merge by number *and* protocol: by number alone, as the API
/// declares it, 53/TCP and 53/UDP would swallow each other.
fn identity(list: &str) -> Option<Identity> {
    match list {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "imagePullSecrets"
        | "env"
        | "resourceClaims" => Some(Identity::Field("name")),
        "volumeMounts" => Some(Identity::Field("mountPath")),
        "volumeDevices" => Some(Identity::Field("devicePath")),
        "hostAliases" => Some(Identity::Field("ip")),
        "ports" => Some(Identity::Port),
        _ => None,
    }
}

impl Identity {
    fn of(&self, item: &Value) -> Option<String> {
        match self {
            Self::Field(field) => item.get(field)?.as_str().map(str::to_owned),
            Self::Port => {
                let number = item.get("containerPort")?.as_i64()?;
                let protocol = item.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
                Some(format!("{number}/{protocol}"))
            }
        }
    }
}

/// One item of the patch, joined with the original it changes.
struct Joined {
    position: Option<usize>,
    value: Value,
}

fn merge_lists(field: &str, old: Vec<Value>, new: Vec<Value>) -> Value {
    let Some(identity) = identity(field) else {
        // An empty patch list changes nothing: templates render "nothing to say" that way.
        return Value::Array(if new.is_empty() { old } else { new });
    };
    if new.iter().any(|item| is_bare_directive(item, "replace")) {
        let kept = new
            .into_iter()
            .filter(|i| !is_bare_directive(i, "replace"))
            .collect();
        return Value::Array(kept);
    }
    let mut slots: Vec<Option<Value>> = old.into_iter().map(Some).collect();
    let keys: Vec<Option<String>> = slots
        .iter()
        .map(|slot| slot.as_ref().and_then(|item| identity.of(item)))
        .collect();
    let mut joined = Vec::with_capacity(new.len());
    for item in new {
        let position = if let Some(key) = identity.of(&item) {
            keys.iter().position(|other| other.as_ref() == Some(&key))
        } else {
            // Without an identity (an invalid item) only an equal one is the same; nulls are gone once merged.
            let merged = merge_field("", Value::Null, item.clone());
            slots.iter().position(|slot| slot.as_ref() == Some(&merged))
        };
        let before = position.and_then(|p| slots.get_mut(p)).and_then(Option::take);
        if item.get("$patch").and_then(Value::as_str) == Some("delete") {
            continue;
        }
        joined.push(Joined {
            position,
            value: merge_field("", before.unwrap_or_default(), item),
        });
    }
    Value::Array(interleave(slots, joined))
}

fn is_bare_directive(item: &Value, directive: &str) -> bool {
    item.as_object()
        .is_some_and(|m| m.len() == 1 && m.get("$patch").and_then(Value::as_str) == Some(directive))
}

/// Orders a merged list.
///
/// k8s: two queues, what only the original has and what the patch has. The head of the first goes out only
/// when the head of the second existed in the original too, at a later place. So new items come before the
/// untouched ones, and items known to both keep their old neighbourhood.
fn interleave(untouched: Vec<Option<Value>>, patched: Vec<Joined>) -> Vec<Value> {
    let mut out = Vec::with_capacity(untouched.len() + patched.len());
    let mut kept = untouched
        .into_iter()
        .enumerate()
        .filter_map(|(position, item)| item.map(|value| (position, value)))
        .peekable();
    for item in patched {
        if let Some(position) = item.position {
            while let Some((_, value)) = kept.next_if(|(old, _)| *old < position) {
                out.push(value);
            }
        }
        out.push(item.value);
    }
    out.extend(kept.map(|(_, value)| value));
    out
}

#[cfg(test)]
mod tests {
    use super::merge;
    use serde_json::{Value, json};

    fn names(list: &Value) -> Vec<&str> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|i| i["name"].as_str().unwrap())
            .collect()
    }

    #[test]
    fn maps_merge_and_null_deletes() {
        let out = merge(
            json!({"a": 1, "b": {"c": 2, "d": 3}}),
            json!({"b": {"c": null, "e": 4}}),
        );
        assert_eq!(out, json!({"a": 1, "b": {"d": 3, "e": 4}}));
    }

    #[test]
    fn new_items_come_before_the_users() {
        let out = merge(
            json!({"volumes": [{"name": "u"}]}),
            json!({"volumes": [{"name": "a"}, {"name": "b"}]}),
        );
        assert_eq!(names(&out["volumes"]), ["a", "b", "u"]);
    }

    #[test]
    fn known_items_keep_their_neighbourhood() {
        let out = merge(
            json!({"env": [{"name": "u"}, {"name": "a", "value": "1"}, {"name": "w"}]}),
            json!({"env": [{"name": "a", "value": "2"}, {"name": "z"}]}),
        );
        assert_eq!(names(&out["env"]), ["u", "a", "z", "w"]);
        assert_eq!(out["env"][1]["value"], "2");
    }

    #[test]
    fn lists_without_identity_are_replaced_unless_the_patch_is_empty() {
        let base = json!({"args": ["a"], "command": ["b"]});
        let out = merge(base, json!({"args": ["x", "y"], "command": []}));
        assert_eq!(out, json!({"args": ["x", "y"], "command": ["b"]}));
    }

    #[test]
    fn directives() {
        let base = json!({"containers": [{"name": "a"}, {"name": "b"}], "m": {"x": 1}});
        let patch =
            json!({"containers": [{"name": "a", "$patch": "delete"}], "m": {"$patch": "replace", "y": 2}});
        assert_eq!(
            merge(base.clone(), patch),
            json!({"containers": [{"name": "b"}], "m": {"y": 2}})
        );
        let patch = json!({"containers": [{"$patch": "replace"}, {"name": "c"}]});
        assert_eq!(names(&merge(base, patch)["containers"]), ["c"]);
        let volume = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
        let patch =
            json!({"volumes": [{"name": "v", "$retainKeys": ["name", "csi"], "csi": {"driver": "d"}}]});
        assert_eq!(
            merge(volume, patch),
            json!({"volumes": [{"name": "v", "csi": {"driver": "d"}}]})
        );
    }

    /// Found by fuzzing: a variable without a name came back once more with every pass.
    #[test]
    fn items_without_identity_do_not_pile_up() {
        let base = json!({"env": [{"value": "x"}, {"name": "a"}]});
        let once = merge(base, json!({"env": [{"value": "x"}, {"name": "b"}]}));
        assert_eq!(once["env"].as_array().unwrap().len(), 3);
        assert_eq!(merge(once.clone(), json!({"env": [{"value": "x"}]})), once);
        assert_eq!(
            merge(once.clone(), json!({"env": [{"value": "x", "nam": null}]})),
            once
        );
    }

    #[test]
    fn ports_differ_by_protocol() {
        let base = json!({"ports": [{"containerPort": 53, "protocol": "UDP"}]});
        let out = merge(base, json!({"ports": [{"containerPort": 53, "name": "dns-tcp"}]}));
        assert_eq!(out["ports"].as_array().unwrap().len(), 2);
    }
}
