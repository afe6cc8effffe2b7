//! Applies a fix to the document of its finding.
//!
//! A mesh that is in the document is changed there *and* set by annotation, so that a later injection gives the same
//! pod; a mesh that is only assumed is set by annotation alone.

use serde_json::{Value, json};

use super::edit::{add_ports, annotate, annotation, container, drop_nested, join_ports, list, object, take};
use super::{Change, Fix, Place};
use crate::mesh::Mesh;
use remora_pod::spec::PodView;
use remora_rules::dialect::Dialect;
use remora_rules::options::Name;
use remora_rules::pod;

/// Why a fix could not be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// A field of the document has the wrong type.
    #[error("changing the pod: {0} is not of the expected shape")]
    Shape(String),
    /// The container that the fix changes does not exist.
    #[error("changing the pod: there is no container {0:?}")]
    NoContainer(String),
}

impl ApplyError {
    /// What the user can do about it.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Shape(_) => {
                "check the document against the API; `kubectl apply --dry-run=server` says what is wrong"
            }
            Self::NoContainer(_) => "apply the fix to the document it was found in",
        }
    }
}

/// Applies a fix.
pub fn apply(fix: &Fix, document: &mut Value) -> Result<(), ApplyError> {
    let view = PodView::read(document);
    let root = view.root.as_str();
    match &fix.change {
        Change::Native(mesh) => native(document, &view, mesh),
        Change::Hold(mesh) => hold(document, &view, mesh),
        Change::Move(mesh, name, place) => relocate(document, root, mesh, name, *place),
        Change::ExcludePorts(mesh, ports) => exclude_ports(document, root, mesh, ports),
        Change::ExcludeInbound(mesh, port) => add_ports(
            document,
            root,
            option_annotation(mesh, Name::IstioLocalExcludePorts)?,
            std::slice::from_ref(port),
        ),
        Change::RunAs(name, uid) => {
            let container = container(document, root, name)?;
            let security = container.entry("securityContext").or_insert_with(|| json!({}));
            let security = security
                .as_object_mut()
                .ok_or_else(|| ApplyError::Shape(format!("{name}/securityContext")))?;
            security.insert("runAsUser".to_owned(), json!(uid));
            Ok(())
        }
        Change::ClearUser(name) => clear_user(document, &view, name),
        Change::MakeStay(mesh) => {
            container(document, root, mesh.proxy())?.insert("restartPolicy".to_owned(), json!("Always"));
            Ok(())
        }
        Change::GateProxy(mesh) => gate(document, root, mesh),
        Change::StartupLikeLiveness(name) => startup_like_liveness(document, root, name),
        Change::DropProbe(name, kind) => {
            container(document, root, name)?.remove(kind.field());
            Ok(())
        }
        Change::DropHook(name, hook) => {
            drop_nested(container(document, root, name)?, "lifecycle", hook.field());
            Ok(())
        }
        Change::ProbePeriod(name, kind, seconds) => {
            let probe = container(document, root, name)?
                .get_mut(kind.field())
                .and_then(Value::as_object_mut);
            let probe = probe.ok_or_else(|| ApplyError::Shape(format!("{name}/{}", kind.field())))?;
            probe.insert("periodSeconds".to_owned(), json!(seconds));
            Ok(())
        }
        Change::NoopInit => noop_init(document, &view),
        Change::Grace(seconds) => {
            let spec = object(document, &format!("{root}/spec"))?;
            spec.insert("terminationGracePeriodSeconds".to_owned(), json!(seconds));
            Ok(())
        }
        Change::Instrument(name) => annotate(
            document,
            root,
            "instrumentation.opentelemetry.io/container-names",
            name.clone(),
        ),
    }
}

fn ready_probe(mesh: &Mesh) -> Value {
    json!({
        "httpGet": {"path": mesh.ready.0, "port": mesh.ready.1},
        "periodSeconds": 1,
        "timeoutSeconds": 3,
        "failureThreshold": 600,
    })
}

fn native(document: &mut Value, view: &PodView, mesh: &Mesh) -> Result<(), ApplyError> {
    let root = view.root.as_str();
    if let Some((key, value)) = mesh.native {
        annotate(document, root, key, value.to_owned())?;
    }
    let Some(mut proxy) = take(list(document, root, "containers")?, mesh.proxy()) else {
        return Ok(());
    };
    if let Some(map) = proxy.as_object_mut() {
        map.insert("restartPolicy".to_owned(), json!("Always"));
        map.entry("startupProbe").or_insert_with(|| ready_probe(mesh));
        drop_nested(map, "lifecycle", "postStart");
    }
    let inits = list(document, root, "initContainers")?;
    let mut mesh_first = Vec::new();
    for name in mesh.dialect.validation.iter().chain(mesh.capture()) {
        mesh_first.extend(take(inits, name));
    }
    mesh_first.push(proxy);
    inits.splice(0..0, mesh_first);
    Ok(())
}

fn hold(document: &mut Value, view: &PodView, mesh: &Mesh) -> Result<(), ApplyError> {
    let root = view.root.as_str();
    let (key, wanted) = mesh.hold;
    let value = match (annotation(document, root, key), wanted.contains(':')) {
        (None, true) => format!("{{{wanted}}}"),
        (Some(old), true) => add_to_config(&old, wanted),
        (_, false) => wanted.to_owned(),
    };
    annotate(document, root, key, value)?;
    let mains = list(document, root, "containers")?;
    let Some(mut proxy) = take(mains, mesh.proxy()) else {
        return Ok(());
    };
    if let Some(map) = proxy.as_object_mut() {
        let lifecycle = map.entry("lifecycle").or_insert_with(|| json!({}));
        if let Some(lifecycle) = lifecycle.as_object_mut() {
            lifecycle.insert("postStart".to_owned(), json!({"exec": {"command": mesh.wait}}));
        }
    }
    mains.insert(0, proxy);
    Ok(())
}

/// Adds a setting to a small YAML or JSON mapping kept in an annotation.
fn add_to_config(old: &str, wanted: &str) -> String {
    let name = wanted.split(':').next().unwrap_or_default();
    let off = |line: &str| line.trim_start().trim_start_matches('"').starts_with(name);
    if let Ok(Value::Object(mut map)) = serde_json::from_str::<Value>(old) {
        map.insert(name.to_owned(), json!(true));
        return Value::Object(map).to_string();
    }
    let flow = old.trim();
    if let Some(inner) = flow.strip_prefix('{').and_then(|f| f.strip_suffix('}')) {
        let kept: Vec<&str> = inner
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty() && !off(part))
            .collect();
        return format!(
            "{{{}}}",
            kept.into_iter().chain([wanted]).collect::<Vec<_>>().join(", ")
        );
    }
    let kept: Vec<&str> = old.lines().filter(|l| !l.trim().is_empty() && !off(l)).collect();
    kept.into_iter().chain([wanted]).collect::<Vec<_>>().join("\n")
}

fn relocate(
    document: &mut Value,
    root: &str,
    mesh: &Mesh,
    name: &str,
    place: Place,
) -> Result<(), ApplyError> {
    let inits = list(document, root, "initContainers")?;
    let missing = || ApplyError::NoContainer(name.to_owned());
    let moved = take(inits, name).ok_or_else(missing)?;
    let at = match place {
        Place::BeforeCapture => inits
            .iter()
            .position(|c| mesh.capture().iter().any(|n| c["name"] == *n)),
        Place::AfterProxy => inits
            .iter()
            .position(|c| c["name"] == mesh.proxy())
            .map(|i| i + 1),
    };
    inits.insert(at.unwrap_or(inits.len()), moved);
    Ok(())
}

/// The annotation of a mesh that sets an option.
fn option_annotation(mesh: &Mesh, option: Name) -> Result<&'static str, ApplyError> {
    let missing = || ApplyError::Shape(format!("an annotation of {} for this", mesh.name));
    mesh.dialect.annotation(option).ok_or_else(missing)
}

fn exclude_ports(document: &mut Value, root: &str, mesh: &Mesh, ports: &[u16]) -> Result<(), ApplyError> {
    let option = Name::IstioLocalOutboundPortsExclude;
    add_ports(document, root, option_annotation(mesh, option)?, ports)?;
    // istio: the rules of an injected pod are in the arguments, not in the annotation.
    let view = PodView::read(document);
    let inits = &view.containers[view.init_slots()];
    for by in inits.iter().filter(|c| pod::arguments(c, mesh.dialect).is_some()) {
        let container = container(document, root, &by.name)?;
        for key in ["command", "args"] {
            if let Some(Value::Array(words)) = container.get_mut(key) {
                exclude_in(words, mesh.dialect, ports);
            }
        }
    }
    Ok(())
}

/// Adds ports to the ones that a command line excludes.
fn exclude_in(words: &mut Vec<Value>, dialect: &Dialect, ports: &[u16]) {
    let text: Vec<String> = words
        .iter()
        .map(|w| w.as_str().unwrap_or_default().to_owned())
        .collect();
    if let Some(changed) =
        pod::change_arguments(&text, dialect, Name::IstioLocalOutboundPortsExclude, |list| {
            join_ports(list.to_owned(), ports)
        })
    {
        *words = changed.into_iter().map(Value::String).collect();
    }
}

fn clear_user(document: &mut Value, view: &PodView, name: &str) -> Result<(), ApplyError> {
    let root = view.root.as_str();
    let one = container(document, root, name)?;
    for key in ["runAsUser", "runAsGroup"] {
        drop_nested(one, "securityContext", key);
    }
    // The pod's security context may set the user that was removed from the container.
    let view = PodView::read(document);
    let still = view.slot(name).map(|s| &view.containers[s]);
    if still.is_some_and(|c| c.uid.is_some() || c.gid.is_some()) {
        let spec = object(document, &format!("{root}/spec"))?;
        for key in ["runAsUser", "runAsGroup"] {
            drop_nested(spec, "securityContext", key);
        }
    }
    Ok(())
}

fn gate(document: &mut Value, root: &str, mesh: &Mesh) -> Result<(), ApplyError> {
    container(document, root, mesh.proxy())?.insert("startupProbe".to_owned(), ready_probe(mesh));
    Ok(())
}

fn startup_like_liveness(document: &mut Value, root: &str, name: &str) -> Result<(), ApplyError> {
    let one = container(document, root, name)?;
    let liveness = one.get("livenessProbe").and_then(Value::as_object);
    let mut probe = liveness
        .cloned()
        .ok_or_else(|| ApplyError::Shape(format!("{name}/livenessProbe")))?;
    probe.insert("periodSeconds".to_owned(), json!(1));
    probe.insert("failureThreshold".to_owned(), json!(120));
    one.insert("startupProbe".to_owned(), Value::Object(probe));
    Ok(())
}

fn noop_init(document: &mut Value, view: &PodView) -> Result<(), ApplyError> {
    let image = view
        .main_slots()
        .map(|s| view.containers[s].image.clone())
        .find(|i| !i.is_empty());
    let image = image.unwrap_or_else(|| "registry.k8s.io/pause:3.10".to_owned());
    let inits = list(document, &view.root, "initContainers")?;
    inits.insert(
        0,
        json!({"name": "publish-address", "image": image, "command": ["true"]}),
    );
    Ok(())
}
