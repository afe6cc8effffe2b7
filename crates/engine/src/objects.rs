//! What pods may refer to: each ConfigMap, Secret and token.

use std::collections::BTreeMap;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use remora_pod::{object, view};
use serde_json::Value;

use crate::token::Mint;
use crate::volumes::Grant;

/// Keys and contents of a `ConfigMap` or a Secret.
pub type Content = BTreeMap<String, Vec<u8>>;

/// A value that is not encoded as it has to be. An API server would have refused the document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {field}.{entry} is not base64{}", if *.field == "data" { "; write it under stringData, or encode it" } else { "" })]
pub struct Undecodable {
    what: String,
    field: &'static str,
    entry: String,
}

/// Everything in the cluster that a pod may name, by namespace and name.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    config_maps: BTreeMap<(String, String), Content>,
    secrets: BTreeMap<(String, String), Content>,
    mint: Option<Mint>,
}

impl Objects {
    /// Keeps a document if it is a `ConfigMap` or a Secret.
    pub fn add(&mut self, document: &Value, default_namespace: &str) -> Result<(), Undecodable> {
        let key = key(document, default_namespace);
        let kind = object::kind(document);
        let broken = |field: &'static str, entry: String| Undecodable {
            what: format!("{kind} {}/{}", key.0, key.1),
            field,
            entry,
        };
        match kind {
            "ConfigMap" => {
                let content = config_map(document).map_err(|entry| broken("binaryData", entry))?;
                self.config_maps.insert(key, content);
            }
            "Secret" => {
                let content = secret(document).map_err(|entry| broken("data", entry))?;
                self.secrets.insert(key, content);
            }
            _ => {}
        }
        Ok(())
    }

    /// Puts a `ConfigMap` there that no document holds.
    pub fn put_config_map(&mut self, namespace: &str, name: &str, content: Content) {
        let key = (namespace.to_owned(), name.to_owned());
        self.config_maps.insert(key, content);
    }

    /// From now on there are tokens.
    pub fn put_mint(&mut self, mint: Mint) {
        self.mint = Some(mint);
    }

    /// The content of a `ConfigMap`.
    pub fn config_map(&self, namespace: &str, name: &str) -> Option<&Content> {
        self.config_maps.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The content of a Secret.
    pub fn secret(&self, namespace: &str, name: &str) -> Option<&Content> {
        self.secrets.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// A token of a service account, from now on.
    pub fn token(&self, namespace: &str, account: &str, grant: &Grant, now: SystemTime) -> Option<String> {
        let mint = self.mint.as_ref()?;
        Some(mint.token(namespace, account, grant, now))
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

/// The content, or the entry that cannot be decoded.
fn config_map(document: &Value) -> Result<Content, String> {
    let mut content = Content::new();
    for (key, value) in entries(document, "data") {
        content.insert(key.clone(), view::scalar(value).into_bytes());
    }
    content.extend(decoded(document, "binaryData")?);
    Ok(content)
}

fn secret(document: &Value) -> Result<Content, String> {
    let mut content = decoded(document, "data")?;
    // k8s: what is written as text goes over what is written encoded.
    for (key, value) in entries(document, "stringData") {
        content.insert(key.clone(), view::scalar(value).into_bytes());
    }
    Ok(content)
}

fn decoded(document: &Value, field: &str) -> Result<Content, String> {
    let decode = |(key, value): (&String, &Value)| {
        let clean: String = view::scalar(value).split_whitespace().collect();
        let bytes = STANDARD.decode(clean).map_err(|_| key.clone())?;
        Ok((key.clone(), bytes))
    };
    entries(document, field).map(decode).collect()
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
        objects.add(&secret, "shop").unwrap();
        let content = objects.secret("shop", "s").unwrap();
        assert_eq!(content["a"], b"one");
        assert_eq!(content["b"], b"three");
        assert!(objects.secret("default", "s").is_none());
    }

    #[test]
    fn what_cannot_be_decoded_is_named() {
        let secret =
            json!({"kind": "Secret", "metadata": {"name": "s"}, "data": {"password": "not encoded!"}});
        let error = Objects::default().add(&secret, "shop").unwrap_err();
        assert_eq!(
            error.to_string(),
            "Secret shop/s: data.password is not base64; write it under stringData, or encode it"
        );
    }
}
