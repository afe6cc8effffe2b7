//! What pods may refer to: each ConfigMap, Secret and token.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use remora_pod::{object, view};
use serde_json::Value;

/// Keys and contents of a `ConfigMap` or a Secret.
pub type Content = BTreeMap<String, Vec<u8>>;

/// Everything in the cluster that a pod may name, by namespace and name.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    config_maps: BTreeMap<(String, String), Content>,
    secrets: BTreeMap<(String, String), Content>,
    tokens: BTreeMap<(String, String, String), String>,
}

impl Objects {
    /// Keeps a document if it is a `ConfigMap` or a Secret.
    pub fn add(&mut self, document: &Value, default_namespace: &str) {
        let key = key(document, default_namespace);
        match object::kind(document) {
            "ConfigMap" => drop(self.config_maps.insert(key, config_map(document))),
            "Secret" => drop(self.secrets.insert(key, secret(document))),
            _ => {}
        }
    }

    /// Puts a `ConfigMap` there that no document holds.
    pub fn put_config_map(&mut self, namespace: &str, name: &str, content: Content) {
        let key = (namespace.to_owned(), name.to_owned());
        self.config_maps.insert(key, content);
    }

    /// Puts the token of a service account for an audience there.
    pub fn put_token(&mut self, namespace: &str, account: &str, audience: &str, token: String) {
        let key = (namespace.to_owned(), account.to_owned(), audience.to_owned());
        self.tokens.insert(key, token);
    }

    /// The content of a `ConfigMap`.
    pub fn config_map(&self, namespace: &str, name: &str) -> Option<&Content> {
        self.config_maps.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The content of a Secret.
    pub fn secret(&self, namespace: &str, name: &str) -> Option<&Content> {
        self.secrets.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The token of a service account for an audience.
    pub fn token(&self, namespace: &str, account: &str, audience: &str) -> Option<&str> {
        let key = (namespace.to_owned(), account.to_owned(), audience.to_owned());
        self.tokens.get(&key).map(String::as_str)
    }
}

/// Namespace and name of a document.
pub(crate) fn key(document: &Value, default_namespace: &str) -> (String, String) {
    let namespace = match object::namespace(document) {
        "" => default_namespace,
        named => named,
    };
    (namespace.to_owned(), object::name(document).to_owned())
}

fn config_map(document: &Value) -> Content {
    let mut content = Content::new();
    for (key, value) in entries(document, "data") {
        content.insert(key.clone(), view::scalar(value).into_bytes());
    }
    for (key, value) in entries(document, "binaryData") {
        content.insert(key.clone(), decode(&view::scalar(value)));
    }
    content
}

fn secret(document: &Value) -> Content {
    let mut content = Content::new();
    for (key, value) in entries(document, "data") {
        content.insert(key.clone(), decode(&view::scalar(value)));
    }
    // k8s: what is written as text goes over what is written encoded.
    for (key, value) in entries(document, "stringData") {
        content.insert(key.clone(), view::scalar(value).into_bytes());
    }
    content
}

/// What is not encoded properly stays as it is written: an API server would have refused the document.
fn decode(text: &str) -> Vec<u8> {
    let clean: String = text.split_whitespace().collect();
    STANDARD
        .decode(clean)
        .unwrap_or_else(|_| text.as_bytes().to_vec())
}

fn entries<'a>(document: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    document
        .get(field)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::Objects;
    use serde_json::json;

    #[test]
    fn text_goes_over_what_is_encoded() {
        let mut objects = Objects::default();
        let secret = json!({"kind": "Secret", "metadata": {"name": "s"},
            "data": {"a": "b25l", "b": "dHdv"}, "stringData": {"b": "three"}});
        objects.add(&secret, "shop");
        let content = objects.secret("shop", "s").unwrap();
        assert_eq!(content["a"], b"one");
        assert_eq!(content["b"], b"three");
        assert!(objects.secret("default", "s").is_none());
    }
}
