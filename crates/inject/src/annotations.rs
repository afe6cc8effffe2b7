//! The annotations a pod may carry, and what their values may be.
//!
//! Every value is validated before anything is built. A valid value only ever becomes a separate string in the pod:
//! there is no text template it could break out of.

mod rule;

use crate::error::{InjectError, shown};
use crate::names::annotation as name;
use crate::warning::Warning;
use remora_pod::view;
use rule::Rule;
use serde_json::{Map, Value};

/// Values longer than this are refused: the API server allows 256 KiB for all annotations together.
const MAX_VALUE_BYTES: usize = 256 * 1024;

/// Annotations with a rule.
const RULES: &[(&str, Rule)] = &[
    (name::TEMPLATES, Rule::TemplateNames),
    (name::OVERRIDES, Rule::JsonMap),
    (
        name::INTERCEPTION_MODE,
        Rule::OneOf(&["REDIRECT", "TPROXY", "NONE"]),
    ),
    (name::CAP_NET_BIND, Rule::OneOf(&["true", "false", ""])),
    (name::PROXY_IMAGE, Rule::Image),
    (name::PROXY_IMAGE_TYPE, Rule::Tag),
    (name::PROXY_CPU, Rule::Quantity),
    (name::PROXY_MEMORY, Rule::Quantity),
    (name::PROXY_CPU_LIMIT, Rule::Quantity),
    (name::PROXY_MEMORY_LIMIT, Rule::Quantity),
    (name::LOG_LEVEL, Rule::LogLevels),
    (name::COMPONENT_LOG_LEVEL, Rule::LogLevels),
    (name::AGENT_LOG_LEVEL, Rule::LogLevels),
    (name::BOOTSTRAP_OVERRIDE, Rule::ObjectName),
    (name::USER_VOLUME, Rule::JsonVolumes),
    (name::USER_VOLUME_MOUNT, Rule::JsonVolumes),
    (name::STATUS_PORT, Rule::PortOrZero),
    (name::READINESS_DELAY, Rule::Count),
    (name::READINESS_PERIOD, Rule::Count),
    (name::READINESS_FAILURES, Rule::Count),
    (name::INCLUDE_OUT_RANGES, Rule::CidrsOrAll),
    (name::EXCLUDE_OUT_RANGES, Rule::Cidrs),
    (name::INCLUDE_IN_PORTS, Rule::PortsOrAll),
    (name::EXCLUDE_IN_PORTS, Rule::Ports),
    (name::INCLUDE_OUT_PORTS, Rule::PortsOrAll),
    (name::EXCLUDE_OUT_PORTS, Rule::Ports),
    (name::EXCLUDE_INTERFACES, Rule::Interfaces),
    (name::KUBEVIRT_INTERFACES, Rule::Interfaces),
    (name::REROUTE_INTERFACES, Rule::Interfaces),
    (name::MERGE_METRICS, Rule::Bool),
    (name::SECURE_PORT, Rule::PortOrZero),
    (name::DATADOG_ENV, Rule::JsonMap),
    (name::GATE, Rule::OneOf(&["probe", "hook"])),
    (name::CAPTURE, Rule::OneOf(&["init", "sidecar"])),
];

/// Known annotations without a rule: read by other components, or validated elsewhere.
const KNOWN_WITHOUT_RULE: &[&str] = &[
    name::INJECT,
    name::STATUS,
    name::PROXY_CONFIG,
    name::NATIVE,
    name::REWRITE_PROBES,
    name::SCRAPE_TARGETS,
    name::REVISION,
    "readiness.status.sidecar.istio.io/applicationPorts",
    "sidecar.istio.io/controlPlaneAuthPolicy",
    "sidecar.istio.io/discoveryAddress",
    "sidecar.istio.io/enableCoreDump",
    "sidecar.istio.io/extraStatTags",
    "sidecar.istio.io/statsCompression",
    "sidecar.istio.io/statsHistogramBuckets",
    "sidecar.istio.io/statsEvictionInterval",
    "sidecar.istio.io/statsInclusionPrefixes",
    "sidecar.istio.io/statsInclusionRegexps",
    "sidecar.istio.io/statsInclusionSuffixes",
    "security.istio.io/tlsMode",
    "ambient.istio.io/redirection",
    "ambient.istio.io/bypass-inbound-capture",
    "ambient.istio.io/dns-capture",
    "networking.istio.io/exportTo",
    "networking.istio.io/tunnel",
    "networking.istio.io/traffic-distribution",
    "networking.istio.io/service-type",
    "topology.istio.io/controlPlaneClusters",
    "topology.istio.io/network",
    "gateway.istio.io/controller-version",
    "gateway.istio.io/name-override",
    "gateway.istio.io/service-account",
    "galley.istio.io/analyze-suppress",
    "internal.istio.io/parents",
    "istio.io/autoRegistrationGroup",
    "istio.io/workloadController",
    "istio.io/dry-run",
];

/// Validates every annotation of a pod and returns all problems.
pub(crate) fn check(pod: &Value) -> Vec<InjectError> {
    let Some(annotations) = view::at(pod, &["metadata", "annotations"]).and_then(Value::as_object) else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    for (key, value) in annotations {
        if let Err(problem) = validate_value(key, value) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            errors.push(InjectError::Annotation {
                name: key.clone(),
                value: shown(&value),
                problem,
            });
        }
    }
    errors
}

fn validate_value(key: &str, value: &Value) -> Result<(), String> {
    let ours = is_istio(key) || key.starts_with("remora.dev/") || key.starts_with("prometheus.io");
    let Some(text) = value.as_str() else {
        return if ours {
            Err("a text is wanted; put the value in quotes".to_owned())
        } else {
            Ok(())
        };
    };
    if ours && text.len() > MAX_VALUE_BYTES {
        return Err(format!("longer than {MAX_VALUE_BYTES} bytes"));
    }
    if key.starts_with(name::NETWORK_PREFIX) {
        return Rule::OneOf(&["direct", "mesh", "none"]).judge(text);
    }
    if key.starts_with(name::START_AFTER_PREFIX) {
        return Rule::ContainerNames.judge(text);
    }
    match RULES.iter().find(|(known, _)| *known == key) {
        Some((_, rule)) => rule.judge(text),
        None => Ok(()),
    }
}

/// The domain part of a key is `istio.io` or below.
fn is_istio(key: &str) -> bool {
    key.split_once('/')
        .is_some_and(|(domain, _)| domain == "istio.io" || domain.ends_with(".istio.io"))
}

/// Unknown annotations in the mesh's domains: usually a typing error.
pub(crate) fn unknown(pod: &Value, warnings: &mut Vec<Warning>) {
    let empty = Map::new();
    let annotations = view::at(pod, &["metadata", "annotations"])
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    for key in annotations.keys().filter(|key| is_unknown(key)) {
        let text = match nearest(key) {
            Some(known) => format!("annotation {key} is not known; did you mean {known}?"),
            None => format!("annotation {key} is not known and does nothing"),
        };
        warnings.push(Warning::pod("unknown-annotation", text));
    }
}

fn is_unknown(key: &str) -> bool {
    if let Some(rest) = key.strip_prefix("remora.dev/") {
        return !(rest.starts_with("network.")
            || rest.starts_with("start-after.")
            || rest.starts_with("demo.")
            || rest == "gate"
            || rest == "capture"
            || rest == "enforce");
    }
    is_istio(key) && !known_names().any(|known| known == key)
}

fn known_names() -> impl Iterator<Item = &'static str> {
    RULES
        .iter()
        .map(|(key, _)| *key)
        .chain(KNOWN_WITHOUT_RULE.iter().copied())
}

/// The known annotation a key was probably meant to be.
fn nearest(key: &str) -> Option<&'static str> {
    known_names()
        .map(|known| (distance(key, known), known))
        .min()
        .filter(|(distance, known)| *distance <= 3.max(known.len() / 8))
        .map(|(_, known)| known)
}

/// Levenshtein distance, capped in effect by short inputs: keys are at most a few dozen bytes.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(128).collect(), b.chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (j, y) in b.iter().enumerate() {
            let above = row.get(j + 1).copied().unwrap_or_default();
            let cost = (diagonal + usize::from(x != y)).min(above + 1).min(left + 1);
            diagonal = above;
            if let Some(slot) = row.get_mut(j) {
                *slot = left;
            }
            left = cost;
        }
        if let Some(last) = row.last_mut() {
            *last = left;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests;
