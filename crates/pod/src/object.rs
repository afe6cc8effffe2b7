//! What every Kubernetes object has: kind, name, namespace, labels, annotations.
//!
//! Read-only views of a value. A field of the wrong type is treated as absent here;
//! [`validate`](crate::validate) reports it.

use serde_json::{Map, Value};

/// `apiVersion`, empty when absent.
pub fn api_version(object: &Value) -> &str {
    text(object, "apiVersion")
}

/// `kind`, empty when absent.
pub fn kind(object: &Value) -> &str {
    text(object, "kind")
}

/// `metadata.name`, or `metadata.generateName` for an object that gets its name later.
pub fn name(object: &Value) -> &str {
    let Some(metadata) = object.get("metadata") else {
        return "";
    };
    match text(metadata, "name") {
        "" => text(metadata, "generateName"),
        name => name,
    }
}

/// `metadata.namespace`, empty when absent.
pub fn namespace(object: &Value) -> &str {
    object
        .get("metadata")
        .map_or("", |metadata| text(metadata, "namespace"))
}

/// `metadata.labels`.
pub fn labels(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata")?.get("labels")?.as_object()
}

/// `metadata.annotations`.
pub fn annotations(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata")?.get("annotations")?.as_object()
}

/// One label.
pub fn label<'v>(object: &'v Value, key: &str) -> Option<&'v str> {
    labels(object)?.get(key)?.as_str()
}

/// One annotation.
pub fn annotation<'v>(object: &'v Value, key: &str) -> Option<&'v str> {
    annotations(object)?.get(key)?.as_str()
}

/// How an object is named in messages: `Deployment "shop/cart"`, without the namespace when there is none.
pub fn display_name(object: &Value) -> String {
    let kind = match kind(object) {
        "" => "object",
        kind => kind,
    };
    match (namespace(object), name(object)) {
        (_, "") => format!("{kind} without a name"),
        ("", name) => format!("{kind} {name:?}"),
        (namespace, name) => format!("{kind} {:?}", format!("{namespace}/{name}")),
    }
}

fn text<'v>(object: &'v Value, field: &str) -> &'v str {
    object.get(field).and_then(Value::as_str).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_in_messages() {
        let cases = [
            (
                json!({"kind": "Pod", "metadata": {"name": "a", "namespace": "n"}}),
                "Pod \"n/a\"",
            ),
            (json!({"kind": "Pod", "metadata": {"name": "a"}}), "Pod \"a\""),
            (
                json!({"kind": "Pod", "metadata": {"generateName": "a-"}}),
                "Pod \"a-\"",
            ),
            (json!({"metadata": {}}), "object without a name"),
            (json!([1]), "object without a name"),
            (
                json!({"kind": "Pod", "metadata": {"name": "a\nb"}}),
                "Pod \"a\\nb\"",
            ),
        ];
        for (object, expected) in cases {
            assert_eq!(display_name(&object), expected);
        }
    }

    #[test]
    fn fields_of_the_wrong_type_are_absent() {
        let object = json!({"kind": 1, "metadata": {"labels": [], "annotations": {"a": 1}, "name": {}}});
        assert_eq!((kind(&object), name(&object)), ("", ""));
        assert!(labels(&object).is_none());
        assert!(annotation(&object, "a").is_none());
    }
}
