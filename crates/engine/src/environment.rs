//! The environment of a container, its command line, and the downward API.
//!
//! Pure: a pod, what is known about it and what it may refer to in; variables out.
//!
//! k8s: `envFrom` first, then `env` in order, where a value may refer to anything set before it by `$(NAME)`; the
//! variables of Services come last and override nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;

use remora_pod::quantity::Quantity;
use remora_pod::{object, view};
use serde_json::Value;

use crate::objects::Objects;
use crate::services::Service;

mod expand;

pub use expand::expand;

/// What is known about a pod besides its document.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its address.
    pub pod_ip: IpAddr,
    /// The address of the node.
    pub host_ip: IpAddr,
    /// The name of the node.
    pub node: String,
    /// Its uid.
    pub uid: String,
    /// Processors of the node, in thousandths.
    pub cpu_millis: i128,
    /// Memory of the node in bytes.
    pub memory: i128,
    /// When its tokens begin.
    pub now: SystemTime,
}

/// Something a container refers to does not exist. The container waits with `CreateContainerConfigError`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A `ConfigMap` or Secret.
    #[error("{kind} {name:?} not found")]
    Object {
        /// Which kind.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A key of one.
    #[error("{kind} {name:?} has no key {key:?}")]
    Key {
        /// Which kind.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The key.
        key: String,
    },
    /// A field of the pod nobody offers.
    #[error("field {path:?} is not offered by the downward API")]
    Field {
        /// As written.
        path: String,
    },
    /// A container or a resource that does not exist.
    #[error("resource {resource:?} of container {container:?} is not known")]
    Resource {
        /// The container.
        container: String,
        /// As written.
        resource: String,
    },
    /// A source nobody knows.
    #[error("variable {name:?} comes from a source that is not known")]
    Source {
        /// The variable.
        name: String,
    },
}

/// The variables of a container, in order.
pub fn variables(
    pod: &Value,
    container: &Value,
    facts: &Facts,
    objects: &Objects,
    services: &[Service],
) -> Result<Vec<(String, String)>, ConfigError> {
    let namespace = object::namespace(pod);
    let mut known = Ordered::default();
    for source in view::list(container, &["envFrom"]) {
        from_object(&mut known, source, namespace, objects)?;
    }
    let linked = service_variables(pod, services);
    for entry in view::list(container, &["env"]) {
        let name = view::name(entry);
        let value = if let Some(source) = entry.get("valueFrom").filter(|v| v.is_object()) {
            value_from(pod, container, name, source, facts, objects)?
        } else {
            let raw = view::text(entry, &["value"]).unwrap_or_default();
            Some(expand(raw, |n| known.get(n).or_else(|| linked.get(n).cloned())))
        };
        if let Some(value) = value {
            known.set(name, value);
        }
    }
    for (name, value) in linked {
        if known.get(&name).is_none() {
            known.set(&name, value);
        }
    }
    Ok(known.list)
}

/// Variables in the order in which they were first set; a later value takes the place of an earlier one.
#[derive(Debug, Default)]
struct Ordered {
    list: Vec<(String, String)>,
}

impl Ordered {
    fn get(&self, name: &str) -> Option<String> {
        let found = self.list.iter().find(|(n, _)| n == name);
        found.map(|(_, v)| v.clone())
    }

    fn set(&mut self, name: &str, value: String) {
        match self.list.iter_mut().find(|(n, _)| n == name) {
            Some((_, old)) => *old = value,
            None => self.list.push((name.to_owned(), value)),
        }
    }
}

fn from_object(
    known: &mut Ordered,
    source: &Value,
    namespace: &str,
    objects: &Objects,
) -> Result<(), ConfigError> {
    let prefix = view::text(source, &["prefix"]).unwrap_or_default();
    for (field, kind) in [("configMapRef", "ConfigMap"), ("secretRef", "Secret")] {
        let Some(reference) = source.get(field).filter(|r| r.is_object()) else {
            continue;
        };
        let name = view::name(reference);
        let content = match kind {
            "Secret" => objects.secret(namespace, name),
            _ => objects.config_map(namespace, name),
        };
        let Some(content) = content else {
            if is_optional(reference) {
                continue;
            }
            let name = name.to_owned();
            return Err(ConfigError::Object { kind, name });
        };
        for (key, value) in content {
            known.set(
                &format!("{prefix}{key}"),
                String::from_utf8_lossy(value).into_owned(),
            );
        }
    }
    Ok(())
}

fn is_optional(reference: &Value) -> bool {
    reference.get("optional").and_then(Value::as_bool) == Some(true)
}

/// `None`: the source is optional and not there, so the variable is not set.
fn value_from(
    pod: &Value,
    container: &Value,
    name: &str,
    source: &Value,
    facts: &Facts,
    objects: &Objects,
) -> Result<Option<String>, ConfigError> {
    let namespace = object::namespace(pod);
    if let Some(path) = view::text(source, &["fieldRef", "fieldPath"]) {
        return field(pod, path, facts).map(Some);
    }
    if let Some(reference) = source.get("resourceFieldRef") {
        return resource(pod, container, reference, facts).map(Some);
    }
    for (key, kind) in [("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")] {
        if let Some(reference) = source.get(key) {
            let object = view::name(reference);
            let content = match kind {
                "Secret" => objects.secret(namespace, object),
                _ => objects.config_map(namespace, object),
            };
            return keyed(kind, reference, content);
        }
    }
    Err(ConfigError::Source {
        name: name.to_owned(),
    })
}

fn keyed(
    kind: &'static str,
    reference: &Value,
    content: Option<&crate::objects::Content>,
) -> Result<Option<String>, ConfigError> {
    let key = view::text(reference, &["key"]).unwrap_or_default();
    if let Some(value) = content.and_then(|c| c.get(key)) {
        return Ok(Some(String::from_utf8_lossy(value).into_owned()));
    }
    if is_optional(reference) {
        return Ok(None);
    }
    let name = view::name(reference).to_owned();
    Err(match content {
        None => ConfigError::Object { kind, name },
        Some(_) => ConfigError::Key {
            kind,
            name,
            key: key.to_owned(),
        },
    })
}

/// A field of the pod, as the downward API offers it.
pub fn field(pod: &Value, path: &str, facts: &Facts) -> Result<String, ConfigError> {
    let unknown = || ConfigError::Field {
        path: path.to_owned(),
    };
    if let Some((map, key)) = subscript(path) {
        let value = match map {
            "metadata.labels" => object::label(pod, key),
            "metadata.annotations" => object::annotation(pod, key),
            _ => return Err(unknown()),
        };
        return Ok(value.unwrap_or_default().to_owned());
    }
    Ok(match path {
        "metadata.name" => object::name(pod).to_owned(),
        "metadata.namespace" => object::namespace(pod).to_owned(),
        "metadata.uid" => facts.uid.clone(),
        "metadata.labels" => lines(object::labels(pod)),
        "metadata.annotations" => lines(object::annotations(pod)),
        "spec.nodeName" => facts.node.clone(),
        "spec.serviceAccountName" => service_account(pod).to_owned(),
        "status.hostIP" | "status.hostIPs" => facts.host_ip.to_string(),
        "status.podIP" | "status.podIPs" => facts.pod_ip.to_string(),
        _ => return Err(unknown()),
    })
}

/// The service account of a pod.
pub fn service_account(pod: &Value) -> &str {
    ["serviceAccountName", "serviceAccount"]
        .iter()
        .find_map(|key| view::text(pod, &["spec", key]).filter(|t| !t.is_empty()))
        .unwrap_or("default")
}

/// `metadata.labels['key']` in its two parts.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once("['")?;
    Some((map, rest.strip_suffix("']")?))
}

/// k8s: one `key="value"` a line, sorted.
fn lines(map: Option<&serde_json::Map<String, Value>>) -> String {
    let sorted: BTreeMap<&String, &Value> = map.into_iter().flatten().collect();
    let quoted = |value: &Value| format!("{:?}", view::scalar(value));
    let lines = sorted.iter().map(|(k, v)| format!("{k}={}", quoted(v)));
    lines.collect::<Vec<_>>().join("\n")
}

/// A limit or request of a container, in units of the divisor, rounded up.
pub fn resource(
    pod: &Value,
    container: &Value,
    reference: &Value,
    facts: &Facts,
) -> Result<String, ConfigError> {
    let wanted = view::text(reference, &["resource"]).unwrap_or_default();
    let named = view::text(reference, &["containerName"]).filter(|n| !n.is_empty());
    let container = named.map_or(Some(container), |name| view::container(pod, name));
    let unknown = || ConfigError::Resource {
        container: named.unwrap_or_default().to_owned(),
        resource: wanted.to_owned(),
    };
    let container = container.ok_or_else(unknown)?;
    let (list, name) = wanted.split_once('.').ok_or_else(unknown)?;
    let quantity = |value: &Value| view::scalar(value).parse::<Quantity>().ok();
    let declared = view::at(container, &["resources", list, name]).and_then(quantity);
    let millis = match (declared, list, name) {
        (Some(quantity), ..) => quantity.millis(),
        // k8s: a limit that is not set is what the node has; a request that is not set is nothing.
        (None, "limits", "cpu") => facts.cpu_millis,
        (None, "limits", "memory") => facts.memory.saturating_mul(1000),
        (None, "limits" | "requests", _) => 0,
        _ => return Err(unknown()),
    };
    let divisor = reference.get("divisor").and_then(quantity);
    let divisor = divisor.filter(|d| !d.is_zero()).map_or(1000, |d| d.millis());
    Ok(((millis + divisor - 1) / divisor).to_string())
}

/// The variables that tell containers where the Services of their namespace are.
fn service_variables(pod: &Value, services: &[Service]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    if view::at(pod, &["spec", "enableServiceLinks"]).and_then(Value::as_bool) == Some(false) {
        return found;
    }
    for service in services.iter().filter(|s| s.namespace == object::namespace(pod)) {
        let (Some(address), Some(first)) = (service.address, service.ports.first()) else {
            continue;
        };
        let upper = |text: &str| text.to_ascii_uppercase().replace('-', "_");
        let name = upper(&service.name);
        found.insert(format!("{name}_SERVICE_HOST"), address.to_string());
        found.insert(format!("{name}_SERVICE_PORT"), first.port.to_string());
        found.insert(
            format!("{name}_PORT"),
            format!("{}://{address}:{}", first.protocol.word(), first.port),
        );
        for port in &service.ports {
            if !port.name.is_empty() {
                let key = format!("{name}_SERVICE_PORT_{}", upper(&port.name));
                found.insert(key, port.port.to_string());
            }
            let word = port.protocol.word();
            let base = format!("{name}_PORT_{}_{}", port.port, word.to_ascii_uppercase());
            found.insert(base.clone(), format!("{word}://{address}:{}", port.port));
            found.insert(format!("{base}_PROTO"), word.to_owned());
            found.insert(format!("{base}_PORT"), port.port.to_string());
            found.insert(format!("{base}_ADDR"), address.to_string());
        }
    }
    found
}

/// The words of a container's command line, with `$(NAME)` replaced.
///
/// k8s: a command replaces the image's entrypoint and drops its arguments; arguments alone replace only those.
pub fn command_line(
    container: &Value,
    variables: &[(String, String)],
    entrypoint: &[String],
    arguments: &[String],
) -> Vec<String> {
    let look = |name: &str| {
        let found = variables.iter().rev().find(|(n, _)| n == name);
        found.map(|(_, v)| v.clone())
    };
    let words = |field: &str| -> Vec<String> {
        let list = view::list(container, &[field]).iter();
        list.map(|word| expand(&view::scalar(word), look)).collect()
    };
    let (command, given) = (words("command"), words("args"));
    let mut line = match (command.is_empty(), given.is_empty()) {
        (false, _) => command,
        (true, _) => entrypoint.to_vec(),
    };
    let keeps_arguments = given.is_empty() && view::list(container, &["command"]).is_empty();
    line.extend(if keeps_arguments {
        arguments.to_vec()
    } else {
        given
    });
    line
}

#[cfg(test)]
mod tests;
