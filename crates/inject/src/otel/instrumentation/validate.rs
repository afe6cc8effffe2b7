//! What the operator's validating webhook refuses or remarks on, and what only a hostile author writes.

use serde_json::Value;

use super::read::Reader;
use super::{Instrumentation, Section};
use crate::otel::language::Language;
use crate::otel::names;

const PROPAGATORS: [&str; 8] = [
    "tracecontext",
    "baggage",
    "b3",
    "b3multi",
    "jaeger",
    "xray",
    "ottrace",
    "none",
];
const PULL_POLICIES: [&str; 4] = ["", "Always", "IfNotPresent", "Never"];

/// Judges a resource that was read.
pub(super) fn check(reader: &mut Reader, found: &Instrumentation) {
    if let Some(text) = sampler_fault(&found.sampler, &found.sampler_argument) {
        reader.problem("spec.sampler", text);
    }
    for name in found
        .propagators
        .iter()
        .filter(|name| !PROPAGATORS.contains(&name.as_str()))
    {
        reader.problem("spec.propagators", format!("{name:?} is not a propagator"));
    }
    if !PULL_POLICIES.contains(&found.pull_policy.as_str()) {
        reader.problem("spec.imagePullPolicy", "must be Always, IfNotPresent or Never");
    }
    if found.endpoint.chars().any(char::is_control) {
        reader.problem("spec.exporter.endpoint", "contains control characters");
    }
    check_tls(reader, found);
    for (language, section) in &found.sections {
        let at = format!("spec.{}", language.section().unwrap_or_default());
        check_section(reader, &at, *language, section);
    }
}

fn check_section(reader: &mut Reader, at: &str, language: Language, section: &Section) {
    if section.claim.is_some() && section.limit.is_some() {
        reader.problem(
            format!("{at}.volumeClaimTemplate"),
            "cannot be combined with volumeLimitSize",
        );
    }
    if let Some(limit) = &section.limit
        && !is_quantity(limit)
    {
        reader.problem(
            format!("{at}.volumeLimitSize"),
            "must be a quantity such as 200Mi",
        );
    }
    if section.image.chars().any(|c| c.is_control() || c.is_whitespace()) {
        reader.problem(format!("{at}.image"), "contains blanks or control characters");
    }
    if language == Language::ApacheHttpd && !["", "2.2", "2.4"].contains(&section.version.as_str()) {
        reader.problem(format!("{at}.version"), "must be 2.4 or 2.2");
    }
}

fn check_tls(reader: &mut Reader, found: &Instrumentation) {
    let Some(tls) = &found.tls else { return };
    // differs from the operator: https without tls is no remark, because a public certificate needs no more.
    if !found.endpoint.starts_with("https://") {
        reader.note(
            "spec.exporter.tls",
            "has no effect on an endpoint that is not https",
        );
    }
    if tls.cert_file.is_empty() != tls.key_file.is_empty() {
        reader.note(
            "spec.exporter.tls",
            "needs both cert_file and key_file, or neither",
        );
    }
    for (field, name) in [("secretName", &tls.secret), ("configMapName", &tls.config_map)] {
        if !name.is_empty() && !names::is_object_name(name) {
            reader.problem(
                format!("spec.exporter.tls.{field}"),
                "is not the name of an object",
            );
        }
    }
    let files = [
        ("ca_file", &tls.ca_file),
        ("cert_file", &tls.cert_file),
        ("key_file", &tls.key_file),
    ];
    for (field, file) in files {
        if file.chars().any(char::is_control) || file.split('/').any(|part| part == "..") {
            reader.problem(format!("spec.exporter.tls.{field}"), "is not a plain path");
        }
    }
}

/// Why a sampler is refused.
fn sampler_fault(kind: &str, argument: &str) -> Option<String> {
    match kind {
        "" | "always_on" | "always_off" | "parentbased_always_on" | "parentbased_always_off" | "xray" => None,
        "traceidratio" | "parentbased_traceidratio" => (!argument.is_empty() && !is_ratio(argument))
            .then(|| format!("argument {argument:?} must be a number from 0 to 1")),
        "jaeger_remote" | "parentbased_jaeger_remote" => jaeger_fault(argument),
        other => Some(format!("type {other:?} is not a sampler")),
    }
}

fn jaeger_fault(argument: &str) -> Option<String> {
    if argument.is_empty() {
        return None;
    }
    for entry in argument.split(',') {
        let Some((key, value)) = entry.split_once('=') else {
            return Some(format!("argument entry {entry:?} must be key=value"));
        };
        let good = match key.trim() {
            "endpoint" => !value.is_empty(),
            "pollingIntervalMs" => value.parse::<i64>().is_ok(),
            "initialSamplingRate" => is_ratio(value),
            _ => true,
        };
        if !good {
            return Some(format!("argument entry {entry:?} has a bad value"));
        }
    }
    None
}

fn is_ratio(text: &str) -> bool {
    text.parse::<f64>()
        .is_ok_and(|number| (0.0..=1.0).contains(&number))
}

/// k8s: decimal digits with an SI or binary suffix, or an integer.
fn is_quantity(value: &Value) -> bool {
    const SUFFIXES: [&str; 16] = [
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    match value {
        Value::Number(number) => number.as_u64().is_some(),
        Value::String(text) => {
            let digits = text
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(text.len());
            let (number, suffix) = text.split_at(digits);
            number.parse::<f64>().is_ok() && SUFFIXES.contains(&suffix)
        }
        _ => false,
    }
}
