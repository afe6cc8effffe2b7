//! Go: a privileged sidecar that attaches to the application's process from outside.
//!
//! The sidecar carries all variables; they speak for the application container. Nothing is changed unless
//! everything it needs is there.

use serde_json::{Map, Value, json};

use super::Scene;
use super::env::{self, Held};
use super::identity::App;
use super::instrumentation::Section;
use super::language::Language;
use super::names::{self, AGENT};
use super::pod::{self, Malformed, Place};
use super::request::text;
use super::sdk;
use super::tls;
use crate::warning::Warning;

const TARGET_EXE: &str = "OTEL_GO_AUTO_TARGET_EXE";
const DEBUG_VOLUME: &str = "kernel-debug";
const DEBUG_DIR: &str = "/sys/kernel/debug";

/// Whether the sidecar is there.
pub(crate) fn is_present(spec: &Map<String, Value>) -> bool {
    pod::find(spec, false, AGENT).is_some() || pod::find(spec, true, AGENT).is_some()
}

/// Adds the sidecar for the first target; returns it if it was accepted.
pub(crate) fn inject(
    spec: &mut Map<String, Value>,
    scene: &Scene<'_>,
    targets: &[Place],
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Place>, Malformed> {
    let Some(app) = targets.first() else {
        return Ok(Vec::new());
    };
    let section = scene.instrumentation.section(Language::Go, scene.operator);
    if let Some(reason) = obstacle(spec, scene, &section) {
        let text = format!("container was not instrumented for go: {reason}");
        warnings.push(Warning::container("otel-container-refused", &app.name, text));
        return Ok(Vec::new());
    }
    if targets.len() > 1 {
        let text = "go instruments one container of a pod; the others in the list are left alone";
        warnings.push(Warning::container("otel-go-single", &app.name, text));
    }
    let certificates = tls::plan(scene.instrumentation, spec);
    let target = pod::container(spec, app)?;
    let image = target.get("image").and_then(Value::as_str).unwrap_or_default();
    let mut sidecar = sidecar(scene, &section);
    let speaks_for = App {
        container: &app.name,
        image,
    };
    warnings.extend(sdk::apply(
        &mut sidecar,
        scene.identity,
        scene.instrumentation,
        speaks_for,
        &certificates,
    )?);
    spec.insert("shareProcessNamespace".to_owned(), Value::Bool(true));
    pod::add_volume(spec, debug_volume())?;
    pod::list_mut(spec, "containers")?.push(Value::Object(sidecar));
    tls::add_volumes(&certificates, spec)?;
    Ok(vec![app.clone()])
}

/// Why the pod cannot take the sidecar, with the remedy.
fn obstacle(spec: &Map<String, Value>, scene: &Scene<'_>, section: &Section) -> Option<String> {
    if spec.get("shareProcessNamespace") == Some(&Value::Bool(false)) {
        return Some("shareProcessNamespace is false; remove it, the agent must see the process".to_owned());
    }
    let listed = text(scene.annotations.pod, Language::Go.containers_key());
    if listed.split(',').filter(|name| !name.trim().is_empty()).count() > 1 {
        return Some(format!(
            "{} lists several containers; name one",
            Language::Go.containers_key()
        ));
    }
    let level = text(scene.namespace_labels, "pod-security.kubernetes.io/enforce");
    if matches!(level, "restricted" | "baseline") {
        return Some(format!(
            "its agent is privileged and mounts a host directory, which namespace {} refuses \
             (pod-security.kubernetes.io/enforce: {level})",
            scene.identity.namespace
        ));
    }
    let debug = pod::volume(spec, DEBUG_VOLUME).map(|volume| volume.pointer("/hostPath/path"));
    if debug.is_some_and(|path| path.and_then(Value::as_str) != Some(DEBUG_DIR)) {
        return Some(format!(
            "volume {DEBUG_VOLUME} is used for something else; rename it"
        ));
    }
    let lists = [section.env.as_slice(), scene.instrumentation.env.as_slice()];
    let named = !text(scene.annotations.pod, names::GO_EXE).is_empty()
        || !matches!(env::held_in(&lists, TARGET_EXE), Held::Absent | Held::Literal(""));
    (!named).then(|| {
        format!(
            "the path of the binary is not known; set pod annotation {} or {TARGET_EXE}",
            names::GO_EXE
        )
    })
}

fn sidecar(scene: &Scene<'_>, section: &Section) -> Map<String, Value> {
    let mut env = Vec::new();
    env::prepend_addresses(&mut env);
    let exe = text(scene.annotations.pod, names::GO_EXE);
    if !exe.is_empty() {
        env::append_value(&mut env, TARGET_EXE, exe);
    }
    env::append_absent(&mut env, &section.env);
    env::append_absent(&mut env, &scene.instrumentation.env);
    let privileged = || json!({"privileged": true, "runAsUser": 0});
    let mut map = Map::new();
    map.insert("name".to_owned(), Value::from(AGENT));
    map.insert("image".to_owned(), Value::from(section.image.as_str()));
    map.insert("env".to_owned(), Value::Array(env));
    let mount = json!([{"name": DEBUG_VOLUME, "mountPath": DEBUG_DIR}]);
    map.insert("volumeMounts".to_owned(), mount);
    map.insert(
        "securityContext".to_owned(),
        section.security.clone().unwrap_or_else(privileged),
    );
    pod::set_some(&mut map, "resources", section.resources.clone());
    let policy = &scene.instrumentation.pull_policy;
    pod::set_some(
        &mut map,
        "imagePullPolicy",
        (!policy.is_empty()).then(|| Value::from(policy.as_str())),
    );
    map
}

fn debug_volume() -> Value {
    json!({"name": DEBUG_VOLUME, "hostPath": {"path": DEBUG_DIR}})
}
