//! The switches of an OpenTelemetry operator, as flags, environment or its configuration file name them.
//!
//! [`Operator::default`] is an operator without configuration. [`Operator::from_json`] is one with a configuration:
//! then switches that it does not mention are off, exactly as in the operator's own structure.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::instrumentation::Instrumentation;
use super::language::Language;

/// Why an operator configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The text is not JSON.
    #[error("read the operator configuration as json")]
    Json(#[source] serde_json::Error),
    /// The text is JSON, but not an object.
    #[error("read the operator configuration: expected an object, found {found}")]
    NotAnObject {
        /// What was there instead.
        found: &'static str,
    },
    /// A switch that is not a boolean, or an image that is not text.
    #[error("read the operator configuration: {key} must be {expected}")]
    Type {
        /// The key as written.
        key: String,
        /// What it must hold.
        expected: &'static str,
    },
    /// A key that looks like a switch but is none.
    #[error("read the operator configuration: {key} is not a switch of the operator")]
    UnknownSwitch {
        /// The key as written.
        key: String,
    },
}

impl OperatorError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Json(_) | Self::NotAnObject { .. } => {
                "give an object such as {\"EnableJavaAutoInstrumentation\": true}; what is left out is off"
            }
            Self::Type { .. } => "switches are true or false, images are text",
            Self::UnknownSwitch { .. } => {
                "the switches are EnableInstrumentationCRDs, EnableMultiInstrumentation, \
                 EnableApacheHttpdInstrumentation and Enable{Java,NodeJS,Python,DotNet,Go,Nginx}AutoInstrumentation"
            }
        }
    }
}

/// What an OpenTelemetry operator would be configured with.
#[derive(Debug, Clone)]
pub struct Operator {
    /// Languages that are switched on.
    enabled: Vec<Language>,
    /// Whether per-language container lists are read.
    pub(crate) multi: bool,
    /// Whether `true` means "the Instrumentation of the namespace".
    pub(crate) crds: bool,
    /// The Instrumentation `true` means when resources are switched off.
    pub(crate) embedded: Option<Instrumentation>,
    /// Whether a configuration was given: then Instrumentations are as the operator's webhook stored them.
    pub(crate) explicit: bool,
    images: BTreeMap<Language, String>,
}

impl Default for Operator {
    fn default() -> Self {
        let off = [Language::Go, Language::Nginx];
        Self {
            enabled: Language::ALL.into_iter().filter(|l| !off.contains(l)).collect(),
            multi: true,
            crds: true,
            embedded: None,
            explicit: false,
            images: BTreeMap::new(),
        }
    }
}

impl Operator {
    /// A configured operator in which nothing is switched on (only the bare SDK has no switch).
    pub fn all_off() -> Self {
        Self {
            enabled: vec![Language::Sdk],
            multi: false,
            crds: true,
            embedded: None,
            explicit: true,
            images: BTreeMap::new(),
        }
    }

    /// Reads switches and default images; keys may be written as in the operator's code
    /// (`EnableGoAutoInstrumentation`), its flags (`enable-go-instrumentation`) or its environment.
    /// Keys that have nothing to do with instrumentation are ignored.
    pub fn from_json(text: &str) -> Result<Self, OperatorError> {
        match serde_json::from_str(text).map_err(OperatorError::Json)? {
            Value::Object(map) => Self::from_map(&map),
            other => Err(OperatorError::NotAnObject {
                found: type_of(&other),
            }),
        }
    }

    /// Whether a language is switched on.
    pub fn enables(&self, language: Language) -> bool {
        self.enabled.contains(&language)
    }

    /// The image for an Instrumentation that names none.
    pub(crate) fn image(&self, language: Language) -> &str {
        self.images
            .get(&language)
            .map_or(language.default_image(), String::as_str)
    }

    fn from_map(map: &Map<String, Value>) -> Result<Self, OperatorError> {
        let mut operator = Self::all_off();
        let mut crds = None;
        for (key, value) in map {
            match Key::of(key) {
                Key::Switch(language) => {
                    if flag(key, value)? && !operator.enables(language) {
                        operator.enabled.push(language);
                    }
                }
                Key::Multi => operator.multi = flag(key, value)?,
                Key::Crds => crds = Some(flag(key, value)?),
                Key::Image(language) => {
                    if let Some(image) = image(key, value)? {
                        operator.images.insert(language, image);
                    }
                }
                Key::Embedded => operator.embedded = Instrumentation::embedded(value),
                Key::Unknown => return Err(OperatorError::UnknownSwitch { key: key.clone() }),
                Key::Unrelated => {}
            }
        }
        // A configuration that says nothing about resources and brings no Instrumentation of its own can
        // only mean that they are to be read.
        operator.crds = crds.unwrap_or(operator.embedded.is_none());
        Ok(operator)
    }
}

/// What a configuration key is about.
enum Key {
    Switch(Language),
    Image(Language),
    Multi,
    Crds,
    Embedded,
    Unknown,
    Unrelated,
}

impl Key {
    fn of(key: &str) -> Self {
        let plain: String = key
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|c| c.to_ascii_lowercase())
            .collect();
        match plain.as_str() {
            "enablemultiinstrumentation" => return Self::Multi,
            "enableinstrumentationcrds" => return Self::Crds,
            "instrumentation" => return Self::Embedded,
            _ => {}
        }
        for language in Language::ALL.into_iter().filter(|l| l.switch().is_some()) {
            let name = language.name().replace('-', "");
            if plain == format!("enable{name}instrumentation")
                || plain == format!("enable{name}autoinstrumentation")
            {
                return Self::Switch(language);
            }
            if plain == format!("autoinstrumentation{name}image") {
                return Self::Image(language);
            }
        }
        if plain.starts_with("enable") && plain.contains("instrumentation") {
            return Self::Unknown;
        }
        Self::Unrelated
    }
}

fn flag(key: &str, value: &Value) -> Result<bool, OperatorError> {
    value.as_bool().ok_or(OperatorError::Type {
        key: key.to_owned(),
        expected: "true or false",
    })
}

fn image(key: &str, value: &Value) -> Result<Option<String>, OperatorError> {
    match value {
        Value::String(text) if !text.is_empty() => Ok(Some(text.clone())),
        Value::String(_) | Value::Null => Ok(None),
        _ => Err(OperatorError::Type {
            key: key.to_owned(),
            expected: "text",
        }),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
