//! What a volume holds, by its document.

use std::time::Duration;

use remora_pod::quantity::Quantity;
use remora_pod::{object, view};
use serde_json::Value;

use super::{File, Grant, Source, VolumeError};
use crate::environment::{self, ConfigError, Facts};
use crate::objects::{Content, Objects};

const DEFAULT_MODE: u32 = 0o644;
// k8s: an hour unless the projection says otherwise, a few seconds more for the one every container gets.
const TOKEN_LIFE: Duration = Duration::from_hours(1);
const ACCOUNT_LIFE: Duration = Duration::from_secs(3607);

pub(super) fn source(
    pod: &Value,
    raw: &Value,
    facts: &Facts,
    objects: &Objects,
) -> Result<Source, VolumeError> {
    let kinds = raw.as_object().into_iter().flatten();
    let kind = kinds.map(|(key, _)| key.as_str()).find(|key| *key != "name");
    let volume = view::name(raw);
    let content = kind.and_then(|k| raw.get(k)).unwrap_or(&Value::Null);
    let missing = |source| VolumeError::Missing {
        volume: volume.to_owned(),
        source,
    };
    match kind {
        Some("emptyDir") => match view::text(content, &["medium"]) {
            Some("Memory") => limit(volume, content).map(Source::Memory),
            _ => Ok(Source::Empty),
        },
        // k8s: a volume without a source is an empty directory. A claim is as good as one for as long as the run lasts.
        None | Some("persistentVolumeClaim" | "ephemeral") => Ok(Source::Empty),
        Some("hostPath") => {
            let path = view::text(content, &["path"]).unwrap_or_default();
            let wanted = view::text(content, &["type"]).unwrap_or_default();
            Ok(Source::Host(path.into(), wanted.to_owned()))
        }
        Some("projected") => {
            let mode = mode(content, "defaultMode", DEFAULT_MODE);
            let mut files = Vec::new();
            for part in view::list(content, &["sources"]) {
                files.extend(projected(pod, part, mode, facts, objects).map_err(missing)?);
            }
            Ok(Source::Files(files))
        }
        Some(kind @ ("configMap" | "secret" | "downwardAPI")) => {
            let mode = mode(content, "defaultMode", DEFAULT_MODE);
            one(pod, kind, content, mode, facts, objects)
                .map(Source::Files)
                .map_err(missing)
        }
        Some(other) => Err(VolumeError::Kind {
            volume: volume.to_owned(),
            kind: other.to_owned(),
        }),
    }
}

/// The largest size of an empty directory in bytes.
fn limit(volume: &str, content: &Value) -> Result<Option<u64>, VolumeError> {
    let Some(text) = content.get("sizeLimit").map(view::scalar) else {
        return Ok(None);
    };
    let bytes = text.parse::<Quantity>().ok().map(|quantity| quantity.value());
    match bytes.and_then(|bytes| u64::try_from(bytes).ok()) {
        // k8s: no limit is written as nothing, too.
        Some(bytes) => Ok(Some(bytes).filter(|bytes| *bytes > 0)),
        None => Err(VolumeError::Size {
            volume: volume.to_owned(),
            text,
        }),
    }
}

fn mode(value: &Value, field: &str, default: u32) -> u32 {
    let number = value.get(field).and_then(Value::as_u64);
    number.and_then(|n| u32::try_from(n).ok()).unwrap_or(default)
}

fn projected(
    pod: &Value,
    part: &Value,
    mode: u32,
    facts: &Facts,
    objects: &Objects,
) -> Result<Vec<File>, ConfigError> {
    let mut files = Vec::new();
    for (kind, content) in part.as_object().into_iter().flatten() {
        files.extend(match kind.as_str() {
            "serviceAccountToken" => token(pod, content, facts, objects)?,
            kind => one(pod, kind, content, mode, facts, objects)?,
        });
    }
    Ok(files)
}

fn token(pod: &Value, content: &Value, facts: &Facts, objects: &Objects) -> Result<Vec<File>, ConfigError> {
    let seconds = content.get("expirationSeconds").and_then(Value::as_u64);
    let grant = Grant {
        audience: view::text(content, &["audience"]).unwrap_or_default().to_owned(),
        life: seconds.map_or(TOKEN_LIFE, Duration::from_secs),
    };
    let (namespace, account) = (object::namespace(pod), environment::service_account(pod));
    let token = objects.token(namespace, account, &grant, facts.now);
    let token = token.ok_or_else(|| ConfigError::Object {
        kind: "ServiceAccount",
        name: account.to_owned(),
    })?;
    Ok(vec![File {
        path: view::text(content, &["path"]).unwrap_or("token").to_owned(),
        content: token.into_bytes(),
        mode: DEFAULT_MODE,
        token: Some(grant),
    }])
}

fn one(
    pod: &Value,
    kind: &str,
    content: &Value,
    mode: u32,
    facts: &Facts,
    objects: &Objects,
) -> Result<Vec<File>, ConfigError> {
    let namespace = object::namespace(pod);
    match kind {
        "downwardAPI" => downward(pod, content, mode, facts),
        "secret" => {
            let name = [&["secretName"][..], &["name"][..]]
                .iter()
                .find_map(|path| view::text(content, path))
                .unwrap_or_default();
            keys("Secret", name, objects.secret(namespace, name), content, mode)
        }
        "configMap" => {
            let name = view::name(content);
            keys(
                "ConfigMap",
                name,
                objects.config_map(namespace, name),
                content,
                mode,
            )
        }
        other => Err(ConfigError::Source {
            name: other.to_owned(),
        }),
    }
}

fn keys(
    kind: &'static str,
    name: &str,
    found: Option<&Content>,
    wanted: &Value,
    mode: u32,
) -> Result<Vec<File>, ConfigError> {
    let optional = wanted.get("optional").and_then(Value::as_bool) == Some(true);
    let Some(content) = found else {
        let name = name.to_owned();
        return if optional {
            Ok(Vec::new())
        } else {
            Err(ConfigError::Object { kind, name })
        };
    };
    let items = view::list(wanted, &["items"]);
    if items.is_empty() {
        let file = |(key, value): (&String, &Vec<u8>)| File {
            path: key.clone(),
            content: value.clone(),
            mode,
            token: None,
        };
        return Ok(content.iter().map(file).collect());
    }
    let mut files = Vec::new();
    for item in items {
        let key = view::text(item, &["key"]).unwrap_or_default();
        match content.get(key) {
            Some(value) => files.push(File {
                path: view::text(item, &["path"]).unwrap_or(key).to_owned(),
                content: value.clone(),
                mode: self::mode(item, "mode", mode),
                token: None,
            }),
            None if optional => {}
            None => {
                return Err(ConfigError::Key {
                    kind,
                    name: name.to_owned(),
                    key: key.to_owned(),
                });
            }
        }
    }
    Ok(files)
}

fn downward(pod: &Value, content: &Value, mode: u32, facts: &Facts) -> Result<Vec<File>, ConfigError> {
    let mut files = Vec::new();
    for item in view::list(content, &["items"]) {
        let text = match (
            view::text(item, &["fieldRef", "fieldPath"]),
            item.get("resourceFieldRef"),
        ) {
            (Some(path), _) => environment::field(pod, path, facts)?,
            (None, Some(reference)) => environment::resource(pod, &Value::Null, reference, facts)?,
            (None, None) => String::new(),
        };
        files.push(File {
            path: view::text(item, &["path"]).unwrap_or_default().to_owned(),
            content: text.into_bytes(),
            mode: self::mode(item, "mode", mode),
            token: None,
        });
    }
    Ok(files)
}

/// The token, root certificate and namespace that every container gets.
pub(super) fn account(pod: &Value, facts: &Facts, objects: &Objects) -> Vec<File> {
    let (namespace, account) = (object::namespace(pod), environment::service_account(pod));
    let root = objects.config_map(namespace, "istio-ca-root-cert");
    let root = root.and_then(|c| c.get("root-cert.pem")).cloned();
    let grant = Grant {
        audience: String::new(),
        life: ACCOUNT_LIFE,
    };
    let token = objects.token(namespace, account, &grant, facts.now);
    let file = |path: &str, content: Vec<u8>| File {
        path: path.to_owned(),
        content,
        mode: DEFAULT_MODE,
        token: None,
    };
    let mut first = file("token", token.unwrap_or_default().into_bytes());
    first.token = Some(grant);
    vec![
        first,
        file("ca.crt", root.unwrap_or_default()),
        file("namespace", namespace.as_bytes().to_vec()),
    ]
}
