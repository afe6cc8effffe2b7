//! Which containers a language goes to, and whether the result is still a pod.

use serde_json::{Map, Value};

use super::language::Language;
use super::names;
use super::pod::{self, Place};
use super::request::quoted;
use crate::warning::Warning;

/// The targets of a language: init containers in pod order, then regular ones in list order. Without a list
/// the first regular container that no injector added.
pub(crate) fn targets(
    spec: &Map<String, Value>,
    language: Language,
    listed: &[String],
    warnings: &mut Vec<Warning>,
) -> Vec<Place> {
    let all: Vec<Place> = pod::containers(spec).map(|(place, _)| place).collect();
    let chosen = if listed.is_empty() {
        first(&all)
    } else {
        by_name(&all, listed, warnings)
    };
    let mut usable: Vec<Place> = chosen
        .into_iter()
        .filter(|place| is_usable(language, place, warnings))
        .collect();
    usable.sort_by_key(|place| if place.init { (0, place.index) } else { (1, 0) });
    if usable.is_empty() {
        let text = format!(
            "no container can be instrumented for {}; name one in annotation {}",
            language.name(),
            language.containers_key()
        );
        warnings.push(Warning::pod("otel-no-target", text));
    }
    usable
}

fn first(all: &[Place]) -> Vec<Place> {
    all.iter()
        .find(|place| !place.init && !names::is_injected(&place.name))
        .cloned()
        .into_iter()
        .collect()
}

fn by_name(all: &[Place], listed: &[String], warnings: &mut Vec<Warning>) -> Vec<Place> {
    let mut chosen = Vec::new();
    for name in listed {
        match all.iter().find(|place| place.name == *name) {
            Some(place) => chosen.push(place.clone()),
            None => warnings.push(unknown(name)),
        }
    }
    chosen
}

fn unknown(name: &str) -> Warning {
    let text = "a container list names it, but the pod has no such container; correct the annotation";
    Warning::container(
        "otel-container-unknown",
        name,
        format!("container {}: {text}", quoted(name)),
    )
}

fn is_usable(language: Language, place: &Place, warnings: &mut Vec<Warning>) -> bool {
    let fault = if names::is_injected(&place.name) {
        Some("it was injected and is never instrumented; name the application's container instead")
    } else if place.init && !language.instruments_init() {
        Some("init containers cannot be instrumented for this language; name a regular container")
    } else if !place.name.is_empty() && !names::is_label(&place.name) {
        Some("its name is not valid; use lower case letters, digits and dashes")
    } else {
        None
    };
    if let Some(fault) = fault {
        let text = format!(
            "container {} was not instrumented for {}: {fault}",
            quoted(&place.name),
            language.name()
        );
        warnings.push(Warning::container("otel-container-refused", &place.name, text));
    }
    fault.is_none()
}

/// Mesh containers that carry an agent: the work of an operator that looked at the first container only.
pub(crate) fn misplaced_agents(spec: &Map<String, Value>) -> Vec<Warning> {
    pod::containers(spec)
        .filter(|(place, container)| names::is_mesh(&place.name) && carries_agent(container))
        .map(|(place, _)| {
            let text = format!(
                "container {} carries OpenTelemetry instrumentation that belongs to the application, probably \
                 because it was first in the list when the operator ran; set annotation {} to the application's \
                 container and create the pod again from its original manifest",
                quoted(&place.name),
                names::CONTAINERS,
            );
            Warning::container("otel-mesh-container-instrumented", &place.name, text)
        })
        .collect()
}

fn carries_agent(container: &Value) -> bool {
    let Some(map) = container.as_object() else {
        return false;
    };
    let mounted = pod::mounts(map)
        .iter()
        .any(|mount| pod::name(mount).starts_with(names::AGENT));
    mounted || super::sdk::is_present(map)
}

/// The same container in another version of the pod, found by name (by place if it has none).
pub(crate) fn same_container(spec: &Map<String, Value>, place: &Place) -> Option<Map<String, Value>> {
    if place.name.is_empty() {
        return pod::container(spec, place).ok();
    }
    let index = pod::find(spec, place.init, &place.name)?;
    pod::container(
        spec,
        &Place {
            index,
            ..place.clone()
        },
    )
    .ok()
}

/// A container name that occurs more than once after a change and did not before.
pub(crate) fn newly_repeated(before: &Map<String, Value>, after: &Map<String, Value>) -> Option<String> {
    let old = repeated(before);
    repeated(after).into_iter().find(|name| !old.contains(name))
}

fn repeated(spec: &Map<String, Value>) -> Vec<String> {
    let mut names: Vec<String> = pod::containers(spec).map(|(place, _)| place.name).collect();
    names.sort_unstable();
    names
        .windows(2)
        .filter(|pair| pair[0] == pair[1])
        .map(|pair| pair[0].clone())
        .collect()
}
