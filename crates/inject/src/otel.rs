//! OpenTelemetry auto-instrumentation: what the OpenTelemetry operator does to a pod, as a pure function.
//!
//! [`instrument`] reads the pod's and its namespace's annotations, finds the `Instrumentation` they mean and
//! changes the pod spec: agents, variables, mounts and volumes under the operator's names, so that an
//! operator in the cluster leaves the pod alone.
//!
//! It promises that
//! - running it on its own output, or on the operator's, changes nothing that is there already;
//! - every problem is a [`Warning`], never an error: what failed is left as it was, per language, or for the
//!   whole pod where the operator would give up on the whole pod;
//! - containers that an injector added (mesh proxies, collectors, agents) are never instrumented;
//! - untrusted text is only written to JSON strings meant for it, never to a script.
//!
//! It does not inject collector sidecars, does not talk to a cluster, and leaves the order of init
//! containers to the start-up planner (copies are placed as the operator does).

use std::collections::HashSet;

use serde_json::{Map, Value};

mod agent;
mod env;
mod golang;
mod identity;
mod instrumentation;
mod inventory;
mod language;
mod names;
mod operator;
mod pod;
mod request;
mod sdk;
mod security;
mod select;
mod tls;
mod webserver;

#[cfg(test)]
mod tests;

pub use crate::warning::Warning;
pub use inventory::{Inventory, Owner};
pub use language::Language;
pub use operator::{Operator, OperatorError};

use identity::{App, Identity};
use instrumentation::Instrumentation;
use pod::{Malformed, Place};
use request::{Annotations, Request, Sources};

/// The pod's namespace, name and workload.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// The namespace the pod will be created in.
    pub namespace: &'a str,
    /// The pod's name; `None` for pods of a workload.
    pub pod_name: Option<&'a str>,
    /// The enclosing workload. Owner references in the metadata are read in addition.
    pub owner: Option<Owner>,
}

/// Choices of the caller.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The inventory holds every Secret and ConfigMap there is, so that a missing one is an error.
    pub inventory_complete: bool,
}

/// A container that has been instrumented, now or before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its name.
    pub container: String,
    /// Whether it is an init container.
    pub init: bool,
    /// For which language.
    pub language: Language,
}

/// The result of an instrumentation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the pod spec was changed.
    pub changed: bool,
    /// Problems, with remedies.
    pub warnings: Vec<Warning>,
    /// Containers that carry instrumentation now.
    pub targets: Vec<Target>,
}

/// Everything an injector needs to know besides the pod spec it changes.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) annotations: Annotations<'a>,
    pub(crate) namespace_labels: &'a Map<String, Value>,
    pub(crate) identity: &'a Identity<'a>,
    pub(crate) instrumentation: &'a Instrumentation,
    pub(crate) operator: &'a Operator,
    /// Containers that the language's own list names.
    pub(crate) own: &'a [String],
}

/// Whether the annotations of a pod and its namespace ask for any instrumentation.
pub fn requested(pod: &Map<String, Value>, namespace: &Map<String, Value>) -> bool {
    request::any(Annotations { pod, namespace })
}

/// Instruments a pod or pod template in place.
pub fn instrument(
    metadata: &Value,
    spec: &mut Value,
    subject: &Subject<'_>,
    inventory: &Inventory,
    operator: &Operator,
    options: Options,
) -> Outcome {
    let empty = Map::new();
    let metadata = metadata.as_object().unwrap_or(&empty);
    let pod_annotations = metadata
        .get("annotations")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let namespace_annotations = inventory.namespace_annotations(subject.namespace);
    let annotations = Annotations {
        pod: pod_annotations,
        namespace: namespace_annotations,
    };
    let mut outcome = Outcome {
        warnings: request::remarks(pod_annotations),
        ..Outcome::default()
    };
    if !request::any(annotations) {
        return outcome;
    }
    let Some(given) = spec.as_object() else {
        outcome.warnings.push(Warning::pod(
            "otel-pod-malformed",
            "the pod spec is not an object; correct the manifest",
        ));
        return outcome;
    };
    outcome.warnings.extend(select::misplaced_agents(given));
    let sources = Sources {
        annotations,
        namespace: subject.namespace,
        inventory,
        operator,
    };
    let requests = request::resolve(sources, &mut outcome.warnings)
        .and_then(|requests| confirm(requests, subject, inventory, options, &mut outcome.warnings));
    match requests {
        Ok(requests) => {
            let identity = Identity::new(subject, metadata, given, inventory, &empty);
            let work = inject_all(given, sources, &identity, &requests, &mut outcome);
            outcome.changed = work != *given;
            if outcome.changed {
                *spec = Value::Object(work);
            }
        }
        Err(warning) => outcome.warnings.push(warning),
    }
    outcome.warnings = once_each(outcome.warnings);
    outcome
}

/// Applies all languages, one after the other, to a copy.
fn inject_all(
    given: &Map<String, Value>,
    sources: Sources<'_>,
    identity: &Identity<'_>,
    requests: &[Request<'_>],
    outcome: &mut Outcome,
) -> Map<String, Value> {
    let mut work = given.clone();
    for request in requests {
        let scene = Scene {
            annotations: sources.annotations,
            namespace_labels: sources.inventory.namespace_labels(sources.namespace),
            identity,
            instrumentation: request.instrumentation,
            operator: sources.operator,
            own: &request.own,
        };
        inject(&mut work, given, &scene, request, outcome);
    }
    work
}

/// Several languages often meet the same problem.
fn once_each(warnings: Vec<Warning>) -> Vec<Warning> {
    let mut said = HashSet::new();
    warnings
        .into_iter()
        .filter(|warning| said.insert(warning.clone()))
        .collect()
}

/// Checks what the Instrumentations refer to, once each, and passes on remarks about them.
fn confirm<'a>(
    requests: Vec<Request<'a>>,
    subject: &Subject<'_>,
    inventory: &Inventory,
    options: Options,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Request<'a>>, Warning> {
    let mut seen: Vec<&Instrumentation> = Vec::new();
    for request in &requests {
        let found = request.instrumentation;
        if seen.iter().any(|other| std::ptr::eq(*other, found)) {
            continue;
        }
        seen.push(found);
        for note in &found.notes {
            let text = format!(
                "Instrumentation {}: {} {}",
                request::quoted(&found.name),
                note.field,
                note.text
            );
            warnings.push(Warning::pod("otel-instrumentation-note", text));
        }
        warnings.extend(tls::check(found, subject, inventory, options)?);
    }
    Ok(requests)
}

/// Applies one language; on any failure the pod is what it was before that language.
fn inject(
    work: &mut Map<String, Value>,
    given: &Map<String, Value>,
    scene: &Scene<'_>,
    request: &Request<'_>,
    outcome: &mut Outcome,
) {
    let language = request.language;
    let places = select::targets(work, language, &request.containers, &mut outcome.warnings);
    let (present, fresh): (Vec<Place>, Vec<Place>) = places
        .into_iter()
        .partition(|place| is_present(work, given, language, place));
    let mut after = work.clone();
    let mut warnings = Vec::new();
    let accepted = match apply(&mut after, scene, language, &fresh, &mut warnings) {
        Ok(accepted) => accepted,
        Err(Malformed(what)) => {
            let text = format!(
                "{} was not injected: {what}; correct the manifest",
                language.name()
            );
            outcome.warnings.push(Warning::pod("otel-pod-malformed", text));
            Vec::new()
        }
    };
    if let Some(name) = select::newly_repeated(work, &after) {
        let text = format!(
            "{} was not injected: a container is called {name:?} already; rename it",
            language.name()
        );
        outcome
            .warnings
            .push(Warning::container("otel-name-taken", &name, text));
    } else {
        outcome.warnings.append(&mut warnings);
        if !accepted.is_empty() {
            *work = after;
        }
        let both = present.into_iter().chain(accepted);
        outcome.targets.extend(both.map(|place| Target {
            container: place.name,
            init: place.init,
            language,
        }));
    }
}

fn apply(
    spec: &mut Map<String, Value>,
    scene: &Scene<'_>,
    language: Language,
    fresh: &[Place],
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Place>, Malformed> {
    if fresh.is_empty() {
        return Ok(Vec::new());
    }
    match language {
        Language::Java | Language::NodeJs | Language::Python | Language::DotNet => {
            agent::inject(spec, scene, language, fresh, warnings)
        }
        Language::Go => golang::inject(spec, scene, fresh, warnings),
        Language::ApacheHttpd | Language::Nginx => webserver::inject(spec, scene, language, fresh, warnings),
        Language::Sdk => inject_sdk(spec, scene, fresh, warnings),
    }
}

/// Whether a container has this language already. For the bare SDK the pod as given counts: variables that
/// another language added in this pass do not stand for it.
fn is_present(
    work: &Map<String, Value>,
    given: &Map<String, Value>,
    language: Language,
    place: &Place,
) -> bool {
    let look = if language == Language::Sdk {
        select::same_container(given, place)
    } else {
        pod::container(work, place).ok()
    };
    let Some(container) = look else { return false };
    match language {
        Language::Go => golang::is_present(work),
        Language::ApacheHttpd | Language::Nginx => webserver::is_present(&container),
        Language::Sdk => sdk::is_present(&container),
        _ => agent::is_present(language, &container),
    }
}

fn inject_sdk(
    spec: &mut Map<String, Value>,
    scene: &Scene<'_>,
    targets: &[Place],
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Place>, Malformed> {
    let certificates = tls::plan(scene.instrumentation, spec);
    let mut accepted = Vec::new();
    for place in targets {
        let mut container = pod::container(spec, place)?;
        let image = container
            .get("image")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let app = App {
            container: &place.name,
            image: &image,
        };
        match add_sdk_environment(&mut container, scene, &[], app, &certificates) {
            Ok(remark) => {
                pod::put_container(spec, place, container);
                warnings.extend(remark);
                accepted.push(place.clone());
            }
            Err(cause) => {
                warnings.push(agent::Refusal::from(cause).warning(Language::Sdk, &place.name));
            }
        }
    }
    tls::add_volumes(&certificates, spec)?;
    Ok(accepted)
}

/// Gives a container the SDK's environment, with `own` variables of a language in front.
pub(crate) fn add_sdk_environment(
    container: &mut Map<String, Value>,
    scene: &Scene<'_>,
    own: &[Value],
    app: App<'_>,
    certificates: &tls::Certificates,
) -> Result<Option<Warning>, Malformed> {
    let env = pod::list_mut(container, "env")?;
    env::prepend_addresses(env);
    env::append_absent(env, own);
    env::append_absent(env, &scene.instrumentation.env);
    sdk::apply(
        container,
        scene.identity,
        scene.instrumentation,
        app,
        certificates,
    )
}
