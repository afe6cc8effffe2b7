//! The ProxyConfig that is effective for a pod.
//!
//! Lowest to highest: built-in defaults, the mesh's `defaultConfig`, the pod's `proxy.istio.io/config`.
//! `proxyMetadata` merges key by key, every other field replaces. The container learns what differs from the
//! built-in defaults through the variable `PROXY_CONFIG`.

use remora_pod::{duration, yaml};
use serde_json::{Map, Value, json};

/// What a field of a ProxyConfig may hold.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Address,
    Port,
    Count,
    /// A wrapped number: zero is a value of its own, not "unset".
    OptionalCount,
    /// A wrapped bool: false is a value of its own, not "unset".
    OptionalBool,
    Duration,
    OneOf(&'static [&'static str]),
    TextMap,
    List,
    Object,
}

/// Fields in the order in which Istio prints them (the declaration order of its protobuf message).
const FIELDS: &[(&str, Kind)] = &[
    ("configPath", Kind::Text),
    ("binaryPath", Kind::Text),
    ("serviceCluster", Kind::Text),
    (
        "tracingServiceName",
        Kind::OneOf(&[
            "APP_LABEL_AND_NAMESPACE",
            "CANONICAL_NAME_ONLY",
            "CANONICAL_NAME_AND_NAMESPACE",
        ]),
    ),
    ("drainDuration", Kind::Duration),
    ("parentShutdownDuration", Kind::Duration),
    ("discoveryAddress", Kind::Address),
    ("discoveryRefreshDelay", Kind::Duration),
    ("zipkinAddress", Kind::Text),
    ("statsdUdpAddress", Kind::Text),
    ("envoyMetricsServiceAddress", Kind::Text),
    ("proxyAdminPort", Kind::Port),
    ("availabilityZone", Kind::Text),
    (
        "controlPlaneAuthPolicy",
        Kind::OneOf(&["NONE", "MUTUAL_TLS", "INHERIT"]),
    ),
    ("customConfigFile", Kind::Text),
    ("statNameLength", Kind::Count),
    ("concurrency", Kind::OptionalCount),
    ("proxyBootstrapTemplatePath", Kind::Text),
    ("interceptionMode", Kind::OneOf(&["REDIRECT", "TPROXY", "NONE"])),
    ("tracing", Kind::Object),
    ("sds", Kind::Object),
    ("envoyAccessLogService", Kind::Object),
    ("envoyMetricsService", Kind::Object),
    ("proxyMetadata", Kind::TextMap),
    ("runtimeValues", Kind::TextMap),
    ("statusPort", Kind::Port),
    ("extraStatTags", Kind::List),
    ("gatewayTopology", Kind::Object),
    ("terminationDrainDuration", Kind::Duration),
    ("meshId", Kind::Text),
    ("readinessProbe", Kind::Object),
    ("proxyStatsMatcher", Kind::Object),
    ("holdApplicationUntilProxyStarts", Kind::OptionalBool),
    ("caCertificatesPem", Kind::List),
    ("image", Kind::Object),
    ("privateKeyProvider", Kind::Object),
    ("proxyHeaders", Kind::Object),
    ("fileFlushInterval", Kind::Duration),
    ("fileFlushMinSizeKb", Kind::OptionalCount),
    ("statsCompression", Kind::OptionalBool),
];

/// Why a ProxyConfig cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProxyConfigError {
    /// The text is not YAML or JSON.
    #[error("not a YAML or JSON document: {0}")]
    Syntax(String),
    /// The document is not a map.
    #[error("a map of fields is wanted, not {0}")]
    NotAMap(&'static str),
    /// A field of another name.
    #[error("unknown field {0:?}")]
    Unknown(String),
    /// A value the field cannot hold.
    #[error("field {field}: {problem}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

/// The configuration of one proxy. Fields that are not set are not there.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxyConfig {
    fields: Map<String, Value>,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        let fields = json!({
            "configPath": "./etc/istio/proxy",
            "binaryPath": "/usr/local/bin/envoy",
            "serviceCluster": "istio-proxy",
            "drainDuration": "45s",
            "terminationDrainDuration": "5s",
            "proxyAdminPort": 15000,
            "controlPlaneAuthPolicy": "MUTUAL_TLS",
            "discoveryAddress": "istiod.istio-system.svc:15012",
            "statNameLength": 189,
            "statusPort": 15020,
        });
        match fields {
            Value::Object(fields) => Self { fields },
            _ => Self { fields: Map::new() },
        }
    }
}

impl ProxyConfig {
    /// The built-in defaults merged with the mesh's `defaultConfig`; also returns the names of unknown fields.
    pub fn of_mesh(overlay: &Value) -> Result<(Self, Vec<String>), ProxyConfigError> {
        let mut config = Self::default();
        let mut unknown = Vec::new();
        for (name, value) in as_map(overlay)? {
            if let Some((field, kind)) = field(name) {
                config.set(field, kind, value)?;
            } else {
                unknown.push(name.clone());
            }
        }
        Ok((config, unknown))
    }

    /// This configuration merged with a pod's annotation.
    pub fn with_annotation(&self, text: &str) -> Result<Self, ProxyConfigError> {
        let document = yaml::parse_str(text).map_err(|e| ProxyConfigError::Syntax(e.to_string()))?;
        let document = document.map(|d| d.value).unwrap_or_default();
        let mut config = self.clone();
        for (name, value) in as_map(&document)? {
            let (field, kind) = field(name).ok_or_else(|| ProxyConfigError::Unknown(name.clone()))?;
            config.set(field, kind, value)?;
        }
        Ok(config)
    }

    fn set(&mut self, field: &'static str, kind: Kind, value: &Value) -> Result<(), ProxyConfigError> {
        if value.is_null() {
            return Ok(());
        }
        let value = checked(kind, value).map_err(|problem| ProxyConfigError::Value { field, problem })?;
        if let (Kind::TextMap, Some(Value::Object(old)), Value::Object(new)) =
            (kind, self.fields.get_mut(field), &value)
        {
            old.extend(new.clone());
            return Ok(());
        }
        self.fields.insert(field.to_owned(), value);
        Ok(())
    }

    /// A field, if it is set.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field)
    }

    /// All fields, as a JSON document.
    pub fn to_value(&self) -> Value {
        Value::Object(self.fields.clone())
    }

    /// Whether the application waits for the proxy; `None` when it is not set.
    pub fn hold(&self) -> Option<bool> {
        self.get("holdApplicationUntilProxyStarts")
            .and_then(Value::as_bool)
    }

    /// Capture mode.
    pub fn interception_mode(&self) -> &str {
        self.get("interceptionMode")
            .and_then(Value::as_str)
            .unwrap_or("REDIRECT")
    }

    /// Port of the agent.
    pub fn status_port(&self) -> u16 {
        self.get("statusPort")
            .and_then(Value::as_u64)
            .and_then(|p| u16::try_from(p).ok())
            .unwrap_or(15020)
    }

    /// Variables for the proxy and the init container, sorted.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        self.get("proxyMetadata")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default()))
    }

    /// One variable.
    pub fn metadata_of(&self, key: &str) -> Option<&str> {
        self.metadata().find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    /// Suffix of the image tag.
    pub fn image_type(&self) -> Option<&str> {
        self.get("image")?
            .get("imageType")?
            .as_str()
            .filter(|t| !t.is_empty())
    }

    /// The value of `PROXY_CONFIG`: what differs from the built-in defaults, in declaration order.
    pub fn render(&self) -> String {
        let defaults = Self::default();
        let mut out = String::from("{");
        for (name, kind) in FIELDS {
            let Some(value) = self.get(name) else { continue };
            if defaults.get(name) == Some(value) || is_unset(*kind, value) {
                continue;
            }
            if out.len() > 1 {
                out.push(',');
            }
            out.push_str(&json!(name).to_string());
            out.push(':');
            out.push_str(&value.to_string());
        }
        out.push_str("}\n");
        out
    }
}

fn field(name: &str) -> Option<(&'static str, Kind)> {
    FIELDS
        .iter()
        .find(|(known, _)| *known == name || snake_case(known) == name)
        .copied()
}

/// istio: protobuf's JSON mapping takes the original field names too.
fn snake_case(camel: &str) -> String {
    let mut out = String::with_capacity(camel.len() + 4);
    for c in camel.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn as_map(value: &Value) -> Result<&Map<String, Value>, ProxyConfigError> {
    static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    match value {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(&EMPTY),
        Value::Array(_) => Err(ProxyConfigError::NotAMap("a list")),
        _ => Err(ProxyConfigError::NotAMap("a plain value")),
    }
}

/// istio: protobuf prints no field that holds its type's zero, except wrapped ones.
fn is_unset(kind: Kind, value: &Value) -> bool {
    match kind {
        Kind::Text | Kind::Address => value.as_str() == Some(""),
        Kind::Port | Kind::Count => value.as_i64() == Some(0),
        Kind::OneOf(all) => value.as_str() == all.first().copied(),
        Kind::TextMap => value.as_object().is_some_and(Map::is_empty),
        Kind::List => value.as_array().is_some_and(Vec::is_empty),
        Kind::OptionalCount | Kind::OptionalBool | Kind::Duration | Kind::Object => false,
    }
}

fn checked(kind: Kind, value: &Value) -> Result<Value, String> {
    let wrong = |wanted: &str| Err(format!("{wanted} is wanted, not {value}"));
    match kind {
        Kind::Text => value.as_str().map_or_else(|| wrong("a text"), |t| Ok(json!(t))),
        Kind::Address => match value.as_str() {
            Some(text) if is_address(text) => Ok(json!(text)),
            _ => wrong("an address host:port"),
        },
        Kind::Port => match number(value) {
            Some(port) if (1..=65535).contains(&port) => Ok(json!(port)),
            _ => wrong("a port from 1 to 65535"),
        },
        Kind::Count | Kind::OptionalCount => match number(value) {
            Some(count) if count >= 0 => Ok(json!(count)),
            _ => wrong("a number that is not negative"),
        },
        Kind::OptionalBool => value
            .as_bool()
            .map_or_else(|| wrong("true or false"), |b| Ok(json!(b))),
        Kind::Duration => checked_duration(value),
        Kind::OneOf(all) => match value.as_str() {
            Some(text) if all.contains(&text) => Ok(json!(text)),
            _ => wrong(&format!("one of {}", all.join(", "))),
        },
        Kind::TextMap => checked_text_map(value),
        Kind::List => value.as_array().map_or_else(|| wrong("a list"), |l| Ok(json!(l))),
        Kind::Object => value.as_object().map_or_else(|| wrong("a map"), |m| Ok(json!(m))),
    }
}

/// Whole seconds and at least one, as the proxy's drain timers need it; printed as protobuf does.
fn checked_duration(value: &Value) -> Result<Value, String> {
    let text = value
        .as_str()
        .ok_or_else(|| format!("a duration such as \"5s\" is wanted, not {value}"))?;
    let nanos = duration::parse(text).map_err(|e| e.to_string())?;
    if nanos < 1_000_000_000 || nanos % 1_000_000_000 != 0 {
        return Err(format!("{text:?} is not a whole number of seconds, at least one"));
    }
    Ok(json!(format!("{}s", nanos / 1_000_000_000)))
}

fn checked_text_map(value: &Value) -> Result<Value, String> {
    let map = value
        .as_object()
        .ok_or_else(|| format!("a map of texts is wanted, not {value}"))?;
    for (key, value) in map {
        if !value.is_string() {
            return Err(format!("{key:?} must be a text (put it in quotes), not {value}"));
        }
        if remora_pod::names::env_name(key).is_err() {
            return Err(format!("{key:?} is not the name of a variable"));
        }
    }
    Ok(value.clone())
}

fn number(value: &Value) -> Option<i64> {
    value
        .as_i64()
        .or_else(|| value.as_str().and_then(|t| t.parse().ok()))
}

fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && !host.contains(|c: char| c.is_whitespace() || c.is_control())
            && port.parse::<u16>().is_ok_and(|p| p > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::{ProxyConfig, ProxyConfigError};
    use serde_json::json;

    #[test]
    fn all_defaults_print_as_an_empty_map() {
        assert_eq!(ProxyConfig::default().render(), "{}\n");
        let (config, unknown) =
            ProxyConfig::of_mesh(&json!({"connectTimeout": "1s", "drainDuration": "45s"})).unwrap();
        assert_eq!(config.render(), "{}\n");
        assert_eq!(unknown, ["connectTimeout"]);
    }

    #[test]
    fn fields_print_in_declaration_order_and_metadata_merges() {
        let (mesh, _) = ProxyConfig::of_mesh(&json!({"proxyMetadata": {"A": "1", "B": "2"}})).unwrap();
        let pod = mesh
            .with_annotation(
                "proxyMetadata: {B: x}\nconcurrency: 0\ndiscoveryAddress: foo:123\ntracing: {}\n",
            )
            .unwrap();
        assert_eq!(
            pod.render(),
            "{\"discoveryAddress\":\"foo:123\",\"concurrency\":0,\"tracing\":{},\"proxyMetadata\":{\"A\":\"1\",\"B\":\"x\"}}\n"
        );
    }

    #[test]
    fn wrapped_false_is_a_value_and_durations_are_canonical() {
        let config = ProxyConfig::default()
            .with_annotation("{holdApplicationUntilProxyStarts: false, terminationDrainDuration: 1m30s}")
            .unwrap();
        assert_eq!(
            config.render(),
            "{\"terminationDrainDuration\":\"90s\",\"holdApplicationUntilProxyStarts\":false}\n"
        );
    }

    #[test]
    fn bad_values_name_the_field() {
        let fails = |text: &str| {
            ProxyConfig::default()
                .with_annotation(text)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(fails("statusport: 1"), "unknown field \"statusport\"");
        assert!(fails("statusPort: 70000").starts_with("field statusPort: a port from 1 to 65535"));
        assert!(fails("drainDuration: 1500ms").contains("whole number of seconds"));
        assert!(fails("discoveryAddress: nowhere").contains("host:port"));
        assert!(fails("proxyMetadata: {A: 1}").contains("put it in quotes"));
        assert!(fails("interceptionMode: redirect").contains("REDIRECT, TPROXY, NONE"));
        assert!(matches!(
            ProxyConfig::default().with_annotation("[1]"),
            Err(ProxyConfigError::NotAMap("a list"))
        ));
    }
}
