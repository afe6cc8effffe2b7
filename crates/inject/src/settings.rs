//! Everything an injection depends on besides the pod.
//!
//! Built once from the user's documents, then shared by every pod. Nothing here reads files or the
//! environment: the caller hands documents over.

use crate::otel;
use crate::proxy_config::{ProxyConfig, ProxyConfigError};
use crate::values::Values;
use remora_pod::{view, yaml};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// How containers are ordered, and with it whether Istio's defects are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// A planned order in which everything starts; repairs what Istio leaves broken.
    #[default]
    Safe,
    /// Istio's own order and output, quirks included.
    Istio,
}

/// Which injections run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Injectors {
    /// The sidecar.
    pub mesh: bool,
    /// OpenTelemetry auto-instrumentation.
    pub otel: bool,
}

impl Default for Injectors {
    fn default() -> Self {
        Self {
            mesh: true,
            otel: true,
        }
    }
}

/// The injector's own configuration document (`istio-sidecar-injector`, key `config`).
#[derive(Debug, Clone, PartialEq)]
pub struct InjectConfig {
    /// `enabled` or `disabled`: applies to pods without a label or annotation.
    pub policy: String,
    /// Templates applied when the pod names none.
    pub default_templates: Vec<String>,
    /// Templates by name, as Go template text. `sidecar` is built in unless it is defined here.
    pub templates: BTreeMap<String, String>,
    /// Names that represent several templates.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// Pods never injected, as label selectors.
    pub never_inject: Vec<Value>,
    /// Pods always injected, as label selectors.
    pub always_inject: Vec<Value>,
    /// Annotations written on every injected pod.
    pub injected_annotations: BTreeMap<String, String>,
}

impl Default for InjectConfig {
    fn default() -> Self {
        Self {
            policy: "enabled".to_owned(),
            default_templates: Vec::new(),
            templates: BTreeMap::new(),
            aliases: BTreeMap::new(),
            never_inject: Vec::new(),
            always_inject: Vec::new(),
            injected_annotations: BTreeMap::new(),
        }
    }
}

/// Why a settings document cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// `defaultConfig` of the mesh configuration.
    #[error("mesh configuration, defaultConfig")]
    MeshDefaults(#[source] ProxyConfigError),
    /// A field of the wrong type.
    #[error("{document}: {field} must be {wanted}")]
    Type {
        /// The document.
        document: &'static str,
        /// The field.
        field: String,
        /// The required type.
        wanted: &'static str,
    },
    /// The injector configuration cannot be parsed.
    #[error("injector configuration is neither YAML nor a template: {0}")]
    Config(yaml::ReadError),
    /// An injector configuration without templates.
    #[error("injector configuration has no `templates`, and is no template with `spec` or `metadata` either")]
    NoTemplate,
}

/// The mesh configuration, with what is derived from it once.
#[derive(Debug, Clone, PartialEq)]
pub struct Mesh {
    document: Value,
    /// Defaults of every proxy.
    pub proxy: ProxyConfig,
    /// Unknown fields of `defaultConfig`.
    pub unknown: Vec<String>,
}

impl Default for Mesh {
    fn default() -> Self {
        Self {
            document: Value::Object(Map::new()),
            proxy: ProxyConfig::default(),
            unknown: Vec::new(),
        }
    }
}

impl Mesh {
    /// Reads a mesh configuration document.
    pub fn new(document: Value) -> Result<Self, SettingsError> {
        let overlay = document.get("defaultConfig").unwrap_or(&Value::Null);
        let (proxy, unknown) = ProxyConfig::of_mesh(overlay).map_err(SettingsError::MeshDefaults)?;
        Ok(Self {
            document,
            proxy,
            unknown,
        })
    }

    /// The whole document.
    pub fn document(&self) -> &Value {
        &self.document
    }

    /// A field as text, or the default when it is missing or empty.
    pub fn text<'a>(&'a self, field: &str, default: &'a str) -> &'a str {
        view::text(&self.document, &[field])
            .filter(|t| !t.is_empty())
            .unwrap_or(default)
    }

    /// A port, or the default when it is missing or zero.
    pub fn port(&self, field: &str, default: u64) -> u64 {
        self.document
            .get(field)
            .and_then(Value::as_u64)
            .filter(|p| *p != 0)
            .unwrap_or(default)
    }

    /// Whether the agent merges the application's metrics.
    pub fn merges_metrics(&self) -> bool {
        self.document
            .get("enablePrometheusMerge")
            .and_then(Value::as_bool)
            .unwrap_or(true)
    }

    /// Whether inbound traffic reaches the application on loopback.
    pub fn inbound_is_localhost(&self) -> bool {
        view::text(&self.document, &["inboundTrafficPolicy", "mode"]) == Some("LOCALHOST")
    }

    /// Whether some OpenTelemetry provider wants service attributes on spans.
    pub fn enriches_service_attributes(&self) -> bool {
        view::list(&self.document, &["extensionProviders"])
            .iter()
            .any(|provider| {
                view::text(provider, &["opentelemetry", "serviceAttributeEnrichment"])
                    == Some("OTEL_SEMANTIC_CONVENTIONS")
            })
    }
}

/// Everything an injection depends on besides the pod.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Mesh configuration.
    pub mesh: Mesh,
    /// Installation values.
    pub values: Values,
    /// The injector's configuration.
    pub config: InjectConfig,
    /// Revision; empty is the default one.
    pub revision: String,
    /// Native sidecars, unless the pod says otherwise.
    pub native: bool,
    /// How containers are ordered.
    pub order: Order,
    /// Which injections run.
    pub injectors: Injectors,
    /// Variables a webhook's URL adds (`ISTIO_META_CLUSTER_ID`, `ISTIO_META_NETWORK`, others).
    pub extra_env: BTreeMap<String, String>,
    /// Compliance policy of the installation; empty is none.
    pub compliance_policy: String,
    /// The OpenTelemetry operator's switches.
    pub otel: otel::Operator,
}

impl Settings {
    /// Revision as pods and labels name it.
    pub fn revision_name(&self) -> &str {
        if self.revision.is_empty() {
            "default"
        } else {
            &self.revision
        }
    }

    /// The default order repairs what Istio leaves broken.
    pub fn repairs(&self) -> bool {
        self.order == Order::Safe
    }
}

impl InjectConfig {
    /// The configuration of an installation that has only values.
    pub fn from_values(values: &Values) -> Result<Self, SettingsError> {
        let webhook = values.at(&["sidecarInjectorWebhook"]);
        let mut config = Self {
            policy: values.text(&["global", "proxy", "autoInject"]),
            ..Self::default()
        };
        config.read(webhook, "values, sidecarInjectorWebhook")?;
        Ok(config)
    }

    /// A configuration file: a document with `templates`, or a bare template that takes `sidecar`'s place.
    ///
    /// istio: a file that is no YAML map (Go template text rarely is) or has no `templates` is a template.
    pub fn from_text(text: &str) -> Result<Self, SettingsError> {
        let mut config = Self::default();
        match yaml::parse_str(text).map(|d| d.map(|d| d.value).unwrap_or_default()) {
            Ok(document) if document.get("templates").is_some() => {
                if let Some(policy) = view::text(&document, &["policy"]) {
                    policy.clone_into(&mut config.policy);
                }
                config.read(&document, "injector configuration")?;
            }
            Ok(_) | Err(_) if text.contains("spec:") || text.contains("metadata:") => {
                config.templates.insert("sidecar".to_owned(), text.to_owned());
            }
            Ok(_) => {
                return Err(SettingsError::NoTemplate);
            }
            Err(error) => return Err(SettingsError::Config(error)),
        }
        Ok(config)
    }

    fn read(&mut self, source: &Value, document: &'static str) -> Result<(), SettingsError> {
        let field = |name: &str| source.get(name).filter(|v| !v.is_null());
        if let Some(value) = field("defaultTemplates") {
            self.default_templates = texts(value, document, "defaultTemplates")?;
        }
        if let Some(value) = field("templates") {
            self.templates.extend(text_map(value, document, "templates")?);
        }
        if let Some(value) = field("aliases") {
            for (name, list) in map(value, document, "aliases")? {
                self.aliases
                    .insert(name.clone(), texts(list, document, "aliases")?);
            }
        }
        if let Some(value) = field("injectedAnnotations") {
            self.injected_annotations = text_map(value, document, "injectedAnnotations")?;
        }
        if let Some(value) = field("neverInjectSelector") {
            list(value, document, "neverInjectSelector")?.clone_into(&mut self.never_inject);
        }
        if let Some(value) = field("alwaysInjectSelector") {
            list(value, document, "alwaysInjectSelector")?.clone_into(&mut self.always_inject);
        }
        Ok(())
    }
}

fn wrong(document: &'static str, field: &str, wanted: &'static str) -> SettingsError {
    SettingsError::Type {
        document,
        field: field.to_owned(),
        wanted,
    }
}

fn map<'a>(
    v: &'a Value,
    document: &'static str,
    field: &str,
) -> Result<&'a Map<String, Value>, SettingsError> {
    v.as_object().ok_or_else(|| wrong(document, field, "a map"))
}

fn list<'a>(v: &'a Value, document: &'static str, field: &str) -> Result<&'a Vec<Value>, SettingsError> {
    v.as_array().ok_or_else(|| wrong(document, field, "a list"))
}

fn texts(v: &Value, document: &'static str, field: &str) -> Result<Vec<String>, SettingsError> {
    list(v, document, field)?
        .iter()
        .map(|item| {
            item.as_str()
                .map(str::to_owned)
                .ok_or_else(|| wrong(document, field, "a list of texts"))
        })
        .collect()
}

fn text_map(
    v: &Value,
    document: &'static str,
    field: &str,
) -> Result<BTreeMap<String, String>, SettingsError> {
    map(v, document, field)?
        .iter()
        .map(|(key, value)| match value {
            Value::String(text) => Ok((key.clone(), text.clone())),
            _ => Err(wrong(document, &format!("{field}.{key}"), "a text")),
        })
        .collect()
}
