//! What added init containers run as.

use serde_json::{Map, Value};

use super::Scene;
use super::pod::{self, Place};
use super::request::quoted;
use crate::warning::Warning;

/// As configured, else as the first target (container level only; the pod's applies by itself).
pub(crate) fn of_added(spec: &Map<String, Value>, scene: &Scene<'_>, first: &Place) -> Option<Value> {
    let inherited = || pod::container(spec, first).ok()?.get("securityContext").cloned();
    scene.instrumentation.init_security.clone().or_else(inherited)
}

/// Agent images run as root by default; a pod that forbids root and sets no user never starts.
pub(crate) fn obstacle(
    spec: &Map<String, Value>,
    scene: &Scene<'_>,
    first: &Place,
    image: &str,
) -> Option<Warning> {
    let own = of_added(spec, scene, first);
    let setting = |key: &str| {
        let inner = own.as_ref().and_then(|context| context.get(key));
        inner
            .or_else(|| spec.get("securityContext")?.get(key))
            .filter(|value| !value.is_null())
    };
    if setting("runAsNonRoot") != Some(&Value::Bool(true)) || setting("runAsUser").is_some() {
        return None;
    }
    let text = format!(
        "the container that copies the agent must not run as root but names no user, so it will not start if \
         image {} runs as root; set runAsUser in spec.initContainerSecurityContext of Instrumentation {}",
        quoted(image),
        quoted(&scene.instrumentation.name),
    );
    Some(Warning::container("otel-copy-needs-user", &first.name, text))
}
