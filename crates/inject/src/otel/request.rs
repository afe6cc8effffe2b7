//! What a pod and its namespace ask for: languages, Instrumentations, container lists.

use serde_json::{Map, Value};

use super::instrumentation::Instrumentation;
use super::inventory::Inventory;
use super::language::Language;
use super::names;
use super::operator::Operator;
use crate::warning::Warning;

/// Maximum number of names in a list: more than any pod has containers.
const MAX_CONTAINER_NAMES: usize = 256;

/// Annotations of the pod and of its namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Annotations<'a> {
    pub(crate) pod: &'a Map<String, Value>,
    pub(crate) namespace: &'a Map<String, Value>,
}

impl<'a> Annotations<'a> {
    /// The effective value of a key; empty if neither sets it.
    ///
    /// 1. Only one side set: that one. 2. A pod value other than `true` (a name, `false`, a list): the pod's.
    /// 3. Pod `true`, namespace `false`: `true`. 4. Pod `true`, namespace `true` or a name: the namespace's.
    pub(crate) fn value(&self, key: &str) -> &'a str {
        let (pod, namespace) = (text(self.pod, key), text(self.namespace, key));
        if namespace.is_empty() || (!pod.is_empty() && !is_true(pod)) {
            return pod;
        }
        if is_true(pod) && is_false(namespace) {
            return pod;
        }
        namespace
    }
}

pub(crate) fn text<'a>(map: &'a Map<String, Value>, key: &str) -> &'a str {
    map.get(key).and_then(Value::as_str).map_or("", str::trim)
}

fn is_true(value: &str) -> bool {
    value.eq_ignore_ascii_case("true")
}

fn is_false(value: &str) -> bool {
    value.eq_ignore_ascii_case("false")
}

fn requested_value(annotations: Annotations<'_>, language: Language) -> Option<&str> {
    let value = annotations.value(language.inject_key());
    (!value.is_empty() && !is_false(value)).then_some(value)
}

/// Whether the annotations request any language.
pub(crate) fn any(annotations: Annotations<'_>) -> bool {
    Language::ALL
        .into_iter()
        .any(|language| requested_value(annotations, language).is_some())
}

/// What is wrong with the annotations themselves: values that are not text, keys that mean nothing.
pub(crate) fn remarks(pod: &Map<String, Value>) -> Vec<Warning> {
    let ours = pod.iter().filter(|(key, _)| key.starts_with(names::PREFIX));
    ours.filter_map(|(key, value)| {
        if !is_known(key) {
            let text = format!(
                "annotation {} is not known and has no effect; correct its name",
                quoted(key)
            );
            return Some(Warning::pod("otel-annotation-unknown", text));
        }
        (!value.is_string()).then(|| {
            let text = format!("annotation {key} is not text and has no effect; put its value in quotes");
            Warning::pod("otel-annotation-not-text", text)
        })
    })
    .collect()
}

fn is_known(key: &str) -> bool {
    let general = [
        names::CONTAINERS,
        names::PYTHON_PLATFORM,
        names::DOTNET_RUNTIME,
        names::GO_EXE,
    ];
    general.contains(&key)
        || Language::ALL
            .iter()
            .any(|l| key == l.inject_key() || key == l.containers_key())
}

/// One language to inject.
#[derive(Debug, Clone)]
pub(crate) struct Request<'a> {
    pub(crate) language: Language,
    pub(crate) instrumentation: &'a Instrumentation,
    /// Containers by name, each once; empty means "the first one".
    pub(crate) containers: Vec<String>,
    /// Those of them that the language's own list names.
    pub(crate) own: Vec<String>,
}

/// Everything a request is resolved against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub(crate) annotations: Annotations<'a>,
    pub(crate) namespace: &'a str,
    pub(crate) inventory: &'a Inventory,
    pub(crate) operator: &'a Operator,
}

/// Resolves all languages. An error means that the operator would leave the whole pod alone.
pub(crate) fn resolve<'a>(
    sources: Sources<'a>,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Request<'a>>, Warning> {
    let common = names_in(sources, names::CONTAINERS)?;
    let mut requests = Vec::new();
    for language in Language::ALL {
        let Some(value) = requested_value(sources.annotations, language) else {
            continue;
        };
        // differs from the operator: it looks the Instrumentation up before it looks at the switch, so that a
        // bad name for a language that is off fails the others, which users do not expect.
        if !sources.operator.enables(language) {
            warnings.push(disabled(language));
            continue;
        }
        let instrumentation = lookup(sources, language, value)?;
        let key = language.containers_key();
        let own = if sources.operator.multi {
            names_in(sources, key)?
        } else {
            Vec::new()
        };
        // differs from the operator: the union, because a name in both lists would switch injection off.
        let mut containers = Vec::new();
        for name in common.iter().chain(&own) {
            if !containers.contains(name) {
                containers.push(name.clone());
            }
        }
        requests.push(Request {
            language,
            instrumentation,
            containers,
            own,
        });
    }
    check_multi(sources.operator, &requests)?;
    Ok(requests)
}

fn disabled(language: Language) -> Warning {
    let switch = language.switch().unwrap_or_default();
    let name = language.name();
    let text = format!(
        "{name} instrumentation was asked for, but it is switched off in the operator; \
         set {switch} to true in the operator configuration or remove the annotation"
    );
    Warning::pod("otel-language-off", text)
}

/// Several languages on one pod must say which container is which.
fn check_multi(operator: &Operator, requests: &[Request<'_>]) -> Result<(), Warning> {
    if !operator.multi || requests.len() < 2 {
        return Ok(());
    }
    let Some(open) = requests.iter().find(|request| request.containers.is_empty()) else {
        return Ok(());
    };
    let text = format!(
        "{} languages are asked for, but {} names no container, so no language was injected; \
         set the annotation {} for each language",
        requests.len(),
        open.language.name(),
        open.language.containers_key(),
    );
    Err(Warning::pod("otel-containers-missing", text))
}

/// Reads a comma list of container names. Blanks around names are dropped.
fn names_in(sources: Sources<'_>, key: &str) -> Result<Vec<String>, Warning> {
    let value = sources.annotations.value(key);
    let listed = value.split(',').map(str::trim).filter(|name| !name.is_empty());
    let names: Vec<String> = listed
        .map(|name| container_name(key, name))
        .collect::<Result<_, _>>()?;
    if names.len() > MAX_CONTAINER_NAMES {
        let text = format!(
            "annotation {key} lists {} containers, so nothing was instrumented; list at most {MAX_CONTAINER_NAMES}",
            names.len()
        );
        return Err(Warning::pod("otel-containers-invalid", text));
    }
    Ok(names)
}

fn container_name(key: &str, name: &str) -> Result<String, Warning> {
    if name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Ok(name.to_owned());
    }
    let text = format!(
        "annotation {key} contains {}, which is no container name, so nothing was instrumented; \
         list container names separated by commas",
        quoted(name)
    );
    Err(Warning::pod("otel-containers-invalid", text))
}

/// Untrusted text for a message: escaped and of bounded length.
pub(crate) fn quoted(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    let dots = if short.len() < text.len() { "..." } else { "" };
    format!("{short:?}{dots}")
}

fn lookup<'a>(sources: Sources<'a>, language: Language, value: &str) -> Result<&'a Instrumentation, Warning> {
    let found = if is_true(value) {
        only_one(sources, language)?
    } else {
        named(sources, language, value)?
    };
    match found.problems.first() {
        None => Ok(found),
        Some(problem) => {
            let text = format!(
                "Instrumentation {} cannot be used for {}: {} {}; nothing was instrumented, correct that field",
                quoted(&found.name),
                language.name(),
                problem.field,
                problem.text,
            );
            Err(Warning::pod("otel-instrumentation-invalid", text))
        }
    }
}

fn named<'a>(sources: Sources<'a>, language: Language, value: &str) -> Result<&'a Instrumentation, Warning> {
    let (namespace, name) = value.split_once('/').unwrap_or((sources.namespace, value));
    sources.inventory.instrumentation(namespace, name).ok_or_else(|| {
        let text = format!(
            "Instrumentation {} for {} was not found in namespace {}, so nothing was instrumented; \
             add it to the input or correct annotation {}",
            quoted(name),
            language.name(),
            quoted(namespace),
            language.inject_key(),
        );
        Warning::pod("otel-lookup", text)
    })
}

fn only_one(sources: Sources<'_>, language: Language) -> Result<&Instrumentation, Warning> {
    if !sources.operator.crds {
        return sources.operator.embedded.as_ref().ok_or_else(|| {
            let text = "the operator reads no Instrumentation resources and its configuration brings none; \
                        name one in the annotation or set EnableInstrumentationCRDs";
            Warning::pod("otel-lookup", text)
        });
    }
    match sources.inventory.instrumentations(sources.namespace).as_slice() {
        [one] => Ok(one),
        several => {
            let text = format!(
                "annotation {} is \"true\", but namespace {} has {} Instrumentations instead of one, \
                 so nothing was instrumented; add one to the input or name it in the annotation",
                language.inject_key(),
                quoted(sources.namespace),
                several.len(),
            );
            Err(Warning::pod("otel-lookup", text))
        }
    }
}
