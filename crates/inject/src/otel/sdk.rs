//! The environment every SDK reads: service name, exporter, propagators, sampler, resource attributes.

use serde_json::{Map, Value};

use super::env::{self, Held};
use super::identity::{self, App, Identity};
use super::instrumentation::Instrumentation;
use super::pod::{self, Malformed};
use super::tls::{self, Certificates};
use crate::warning::Warning;

const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// The variable whose presence shows that a container has this environment.
///
/// differs from the operator: it looks for the node name, which is absent when the pod is bound to a node.
pub(crate) fn is_present(container: &Map<String, Value>) -> bool {
    pod::list(container, "env").iter().any(|entry| {
        let path = entry
            .pointer("/valueFrom/fieldRef/fieldPath")
            .and_then(Value::as_str);
        env::name(entry) == identity::POD_NAME && path == Some("metadata.name")
    })
}

/// Adds what comes after the language's own variables: existing variables always win.
pub(crate) fn apply(
    container: &mut Map<String, Value>,
    identity: &Identity<'_>,
    instrumentation: &Instrumentation,
    app: App<'_>,
    certificates: &Certificates,
) -> Result<Option<Warning>, Malformed> {
    tls::mount(certificates, container)?;
    let env = pod::list_mut(container, "env")?;
    let service = identity.service_name(instrumentation, app);
    if !service.is_empty() {
        env::append_value(env, "OTEL_SERVICE_NAME", &service);
    }
    if !instrumentation.endpoint.is_empty() {
        env::append_value(env, "OTEL_EXPORTER_OTLP_ENDPOINT", &instrumentation.endpoint);
    }
    for (name, path) in &certificates.env {
        env::append_value(env, name, path);
    }
    env::append_field(env, identity::POD_NAME, "metadata.name");
    if instrumentation.add_uids && identity.pod_uid.is_empty() {
        env::append_field(env, identity::POD_UID, "metadata.uid");
    }
    if identity.node_name.is_empty() {
        env::append_field(env, identity::NODE_NAME, "spec.nodeName");
    }
    append_tracing(env, instrumentation);
    Ok(append_attributes(env, identity, instrumentation, app))
}

fn append_tracing(env: &mut Vec<Value>, instrumentation: &Instrumentation) {
    if !instrumentation.propagators.is_empty() {
        env::append_value(env, "OTEL_PROPAGATORS", &instrumentation.propagators.join(","));
    }
    let (sampler, argument) = ("OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG");
    // The two belong together: half a sampler from the user is not completed with half of another.
    if instrumentation.sampler.is_empty() || env::has(env, sampler) || env::has(env, argument) {
        return;
    }
    env::append_value(env, sampler, &instrumentation.sampler);
    if !instrumentation.sampler_argument.is_empty() {
        env::append_value(env, argument, &instrumentation.sampler_argument);
    }
}

/// Extends the attributes and moves them to the end, behind the variables they refer to.
fn append_attributes(
    env: &mut Vec<Value>,
    identity: &Identity<'_>,
    instrumentation: &Instrumentation,
    app: App<'_>,
) -> Option<Warning> {
    let existing = match env::held(env, ATTRIBUTES) {
        Held::Indirect => {
            let text = "OTEL_RESOURCE_ATTRIBUTES comes from valueFrom, so nothing can be added to it; \
                        give it a literal value to get the Kubernetes attributes";
            return Some(Warning::container(
                "otel-attributes-indirect",
                app.container,
                text,
            ));
        }
        Held::Literal(old) => old.to_owned(),
        Held::Absent => String::new(),
    };
    let value = identity::join_attributes(&existing, identity.attributes(instrumentation, app));
    let entry = env::take(env, ATTRIBUTES);
    env.extend(entry);
    env::set(env, ATTRIBUTES, &value);
    None
}
