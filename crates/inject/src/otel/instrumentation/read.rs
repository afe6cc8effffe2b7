//! Reads the JSON of an Instrumentation into its types, and notes every field of the wrong shape.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Extension, Instrumentation, Problem, Section, Tls};
use crate::otel::language::Language;

/// Collects what is wrong while reading.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub(super) problems: Vec<Problem>,
    pub(super) notes: Vec<Problem>,
}

impl Reader {
    pub(super) fn problem(&mut self, field: impl Into<String>, text: impl Into<String>) {
        self.problems.push(Problem {
            field: field.into(),
            text: text.into(),
        });
    }

    pub(super) fn note(&mut self, field: impl Into<String>, text: impl Into<String>) {
        self.notes.push(Problem {
            field: field.into(),
            text: text.into(),
        });
    }

    fn text(&mut self, map: &Map<String, Value>, at: &str, key: &str) -> String {
        match map.get(key) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(_) => {
                self.problem(format!("{at}.{key}"), "must be text");
                String::new()
            }
        }
    }

    fn flag(&mut self, map: &Map<String, Value>, at: &str, key: &str) -> bool {
        match map.get(key) {
            None | Some(Value::Null) => false,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                self.problem(format!("{at}.{key}"), "must be true or false");
                false
            }
        }
    }

    fn object<'a>(
        &mut self,
        map: &'a Map<String, Value>,
        at: &str,
        key: &str,
    ) -> Option<&'a Map<String, Value>> {
        match map.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::Object(inner)) => Some(inner),
            Some(_) => {
                self.problem(format!("{at}.{key}"), "must be an object");
                None
            }
        }
    }

    /// An object handed on as it is, if it says anything.
    fn opaque(&mut self, map: &Map<String, Value>, at: &str, key: &str) -> Option<Value> {
        let inner = self.object(map, at, key)?;
        (!inner.is_empty()).then(|| Value::Object(inner.clone()))
    }

    fn list<'a>(&mut self, map: &'a Map<String, Value>, at: &str, key: &str) -> &'a [Value] {
        match map.get(key) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(items)) => items,
            Some(_) => {
                self.problem(format!("{at}.{key}"), "must be a list");
                &[]
            }
        }
    }

    fn texts(&mut self, map: &Map<String, Value>, at: &str, key: &str) -> Vec<String> {
        let items = self.list(map, at, key);
        if items.iter().any(|item| !item.is_string()) {
            self.problem(format!("{at}.{key}"), "must be a list of text");
        }
        items
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    }

    fn text_map(&mut self, map: &Map<String, Value>, at: &str, key: &str) -> BTreeMap<String, String> {
        let Some(inner) = self.object(map, at, key) else {
            return BTreeMap::new();
        };
        let mut out = BTreeMap::new();
        for (name, value) in inner {
            match value.as_str() {
                Some(text) => drop(out.insert(name.clone(), text.to_owned())),
                None => self.problem(format!("{at}.{key}[{name}]"), "must be text"),
            }
        }
        out
    }

    /// Environment variables that a pod can carry as they are.
    fn env(&mut self, map: &Map<String, Value>, at: &str, key: &str) -> Vec<Value> {
        let mut out = Vec::new();
        for (index, entry) in self.list(map, at, key).iter().enumerate() {
            match env_fault(entry) {
                None => out.push(entry.clone()),
                Some(fault) => self.problem(format!("{at}.{key}[{index}]"), fault),
            }
        }
        out
    }
}

/// k8s: an API server refuses pods with such variables, so they must not get that far.
fn env_fault(entry: &Value) -> Option<&'static str> {
    let name = entry.get("name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() || name.contains('=') || !name.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
        return Some("needs a name of printable characters without =");
    }
    let value = entry.get("value").filter(|v| !v.is_null());
    let source = entry.get("valueFrom").filter(|v| !v.is_null());
    match (value, source) {
        (Some(value), _) if !value.is_string() => Some("value must be text; quote numbers and booleans"),
        (Some(value), Some(_)) if value.as_str() != Some("") => Some("has both value and valueFrom"),
        (_, Some(source)) if !source.is_object() => Some("valueFrom must be an object"),
        _ => None,
    }
}

/// Reads the whole spec.
pub(super) fn spec(reader: &mut Reader, name: &str, spec: &Map<String, Value>) -> Instrumentation {
    // v1beta1: exporter, propagators and sampler live under envConfig.
    let moved = reader.object(spec, "spec", "envConfig").unwrap_or(spec);
    let exporter = reader.object(moved, "spec", "exporter");
    let sampler = reader.object(moved, "spec", "sampler");
    let resource = reader.object(spec, "spec", "resource");
    let defaults = reader.object(spec, "spec", "defaults");
    let mut found = Instrumentation {
        name: name.to_owned(),
        propagators: reader.texts(moved, "spec", "propagators"),
        env: reader.env(spec, "spec", "env"),
        pull_policy: reader.text(spec, "spec", "imagePullPolicy"),
        init_security: reader.opaque(spec, "spec", "initContainerSecurityContext"),
        use_labels: defaults
            .is_some_and(|map| reader.flag(map, "spec.defaults", "useLabelsForResourceAttributes")),
        ..Instrumentation::default()
    };
    if let Some(exporter) = exporter {
        found.endpoint = reader.text(exporter, "spec.exporter", "endpoint");
        found.tls = reader
            .object(exporter, "spec.exporter", "tls")
            .map(|map| tls(reader, map));
    }
    if let Some(sampler) = sampler {
        found.sampler = reader.text(sampler, "spec.sampler", "type");
        found.sampler_argument = reader.text(sampler, "spec.sampler", "argument");
    }
    if let Some(resource) = resource {
        read_resource(reader, resource, &mut found);
    }
    for language in Language::ALL {
        let Some(key) = language.section() else { continue };
        if let Some(map) = reader.object(spec, "spec", key) {
            let read = section(reader, &format!("spec.{key}"), map);
            found.sections.insert(language, read);
        }
    }
    found
}

fn read_resource(reader: &mut Reader, resource: &Map<String, Value>, found: &mut Instrumentation) {
    let at = "spec.resource";
    found.attributes = reader.text_map(resource, at, "resourceAttributes");
    found
        .attributes
        .extend(reader.text_map(resource, at, "attributes"));
    found.add_uids = reader.flag(resource, at, "addK8sUIDAttributes");
    if let Some(metadata) = reader.object(resource, at, "k8sMetadata") {
        found.add_uids |= reader.flag(metadata, "spec.resource.k8sMetadata", "includeUIDs");
    }
}

fn tls(reader: &mut Reader, map: &Map<String, Value>) -> Tls {
    let at = "spec.exporter.tls";
    Tls {
        secret: reader.text(map, at, "secretName"),
        config_map: reader.text(map, at, "configMapName"),
        ca_file: reader.text(map, at, "ca_file"),
        cert_file: reader.text(map, at, "cert_file"),
        key_file: reader.text(map, at, "key_file"),
    }
}

fn section(reader: &mut Reader, at: &str, map: &Map<String, Value>) -> Section {
    let attrs = reader.env(map, at, "attrs");
    if attrs
        .iter()
        .any(|attr| attr.get("valueFrom").is_some_and(|v| !v.is_null()))
    {
        reader.note(
            format!("{at}.attrs"),
            "entries with valueFrom are left out: configuration lines need a value",
        );
    }
    let config = reader.text(map, at, "configPath");
    Section {
        image: reader.text(map, at, "image"),
        claim: reader.opaque(map, at, "volumeClaimTemplate"),
        limit: map.get("volumeLimitSize").filter(|v| !v.is_null()).cloned(),
        env: reader.env(map, at, "env"),
        resources: reader
            .opaque(map, at, "resourceRequirements")
            .or_else(|| reader.opaque(map, at, "resources")),
        security: reader.opaque(map, at, "securityContext"),
        extensions: extensions(reader, at, map),
        attrs: attrs.iter().filter_map(attr).collect(),
        version: reader.text(map, at, "version"),
        config: if config.is_empty() {
            reader.text(map, at, "configFile")
        } else {
            config
        },
    }
}

fn attr(entry: &Value) -> Option<(String, String)> {
    let text = |key: &str| {
        entry
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    entry
        .get("valueFrom")
        .is_none_or(Value::is_null)
        .then(|| (text("name"), text("value")))
}

fn extensions(reader: &mut Reader, at: &str, map: &Map<String, Value>) -> Vec<Extension> {
    let mut out = Vec::new();
    for (index, entry) in reader.list(map, at, "extensions").iter().enumerate() {
        let text = |key: &str| {
            entry
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (image, dir) = (text("image"), text("dir"));
        if image.is_empty() || !dir.starts_with('/') || dir.chars().any(char::is_control) {
            reader.problem(
                format!("{at}.extensions[{index}]"),
                "needs an image and an absolute dir",
            );
        }
        out.push(Extension { image, dir });
    }
    out
}
