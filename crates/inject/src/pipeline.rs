//! One pod, from what the user wrote to what runs.
//!
//! 1. decide; 2. validate annotations; 3. instrument (OpenTelemetry), while all containers are the user's;
//! 4. render templates and merge them; 5. merge the user's own definitions; 6. metrics; 7. order;
//! 8. probes, over the final lists; 9. the status annotation.
//!
//! The steps work on a pod that was injected before as well: templates see the pod without what they added
//! earlier, and every step gives the same result on its own output.

use crate::annotations;
use crate::decision::{self, Skip};
use crate::error::InjectError;
use crate::mesh::Mesh;
use crate::otel;
use crate::reorder;
use crate::settings::Settings;
use crate::warning::Warning;
use crate::workload::Workload;
use remora_pod::{validate, view};
use serde_json::{Value, json};

/// The result for one pod.
#[derive(Debug, Clone)]
pub struct Injected {
    /// The pod: `metadata` and `spec`, changed where something was injected.
    pub pod: Value,
    /// Why the sidecar was not injected, if so.
    pub skipped: Option<Skip>,
    /// Whether the pod differs from what was given.
    pub changed: bool,
    /// Warnings for the user.
    pub warnings: Vec<Warning>,
}

/// A pod to be injected.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// `metadata` and `spec`.
    pub pod: &'a Value,
    /// The workload it belongs to.
    pub workload: &'a Workload,
    /// Namespace it will run in.
    pub namespace: &'a str,
    /// Whether its sidecar is native, if the caller decided that for this pod; else the settings decide. The pod's
    /// annotation overrides both.
    pub native: Option<bool>,
}

/// Injects one pod.
pub fn inject_pod(
    subject: Subject<'_>,
    settings: &Settings,
    inventory: &otel::Inventory,
) -> Result<Injected, Vec<InjectError>> {
    let mut warnings = Vec::new();
    let skipped = if settings.injectors.mesh {
        decision::decide(subject.pod, subject.namespace, &settings.config, &mut warnings).err()
    } else {
        Some(Skip::NotAsked)
    };
    let mesh = skipped.is_none();
    check_shape(subject.pod)?;
    if mesh {
        let errors = annotations::check(subject.pod);
        if !errors.is_empty() {
            return Err(errors);
        }
        annotations::unknown(subject.pod, &mut warnings);
    }
    let mut pod = subject.pod.clone();
    if settings.injectors.otel {
        instrument(&mut pod, subject, settings, inventory, &mut warnings);
    }
    if settings.repairs() {
        // Templates print the containers in order, so the declared order comes first.
        reorder::order_main(&mut pod);
    }
    if mesh {
        let errors = |error| vec![error];
        let native = subject.native.unwrap_or(settings.native);
        let mesh = Mesh::new(subject.workload, settings, native, &pod, &mut warnings).map_err(errors)?;
        let plan = mesh.plan(&pod, &mut warnings).map_err(errors)?;
        mesh.apply(plan, &mut pod, &mut warnings).map_err(errors)?;
    } else if pod != *subject.pod {
        let cni = settings.values.flag(&["pilot", "cni", "enabled"]);
        reorder::reorder(&mut pod, settings.order, false, cni, &mut warnings);
    }
    let changed = pod != *subject.pod;
    if changed {
        check_validity(subject.pod, &pod)?;
    }
    Ok(Injected {
        pod,
        skipped,
        changed,
        warnings,
    })
}

/// Fields whose type every later step relies on.
fn check_shape(pod: &Value) -> Result<(), Vec<InjectError>> {
    let mut errors = Vec::new();
    let mut check = |path: &[&str], is_right: fn(&Value) -> bool, wanted: &str| {
        if let Some(value) = view::at(pod, path).filter(|v| !v.is_null() && !is_right(v)) {
            let found = crate::error::shown(&value.to_string());
            errors.push(InjectError::Malformed(format!(
                "{} must be {wanted}, not {found}",
                path.join(".")
            )));
        }
    };
    check(&["metadata"], Value::is_object, "a map");
    check(&["metadata", "annotations"], Value::is_object, "a map");
    check(&["metadata", "labels"], Value::is_object, "a map");
    check(&["spec"], Value::is_object, "a map");
    for list in ["containers", "initContainers", "volumes", "imagePullSecrets"] {
        check(
            &["spec", list],
            |v| v.as_array().is_some_and(|l| l.iter().all(Value::is_object)),
            "a list of maps",
        );
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// The injector never makes a valid pod invalid.
fn check_validity(before: &Value, after: &Value) -> Result<(), Vec<InjectError>> {
    let judge = |pod: &Value| {
        let empty = json!({});
        validate::pod(
            pod.get("metadata").unwrap_or(&empty),
            pod.get("spec").unwrap_or(&empty),
        )
    };
    let found = judge(after);
    if found.is_empty() {
        return Ok(());
    }
    let known = judge(before);
    let new: Vec<InjectError> = found
        .into_iter()
        .filter(|problem| !known.iter().any(|k| k.message == problem.message))
        .map(|problem| InjectError::Invalid(problem.to_string()))
        .collect();
    if new.is_empty() { Ok(()) } else { Err(new) }
}

fn instrument(
    pod: &mut Value,
    subject: Subject<'_>,
    settings: &Settings,
    inventory: &otel::Inventory,
    warnings: &mut Vec<Warning>,
) {
    let workload = subject.workload;
    let owner = (workload.kind != "Pod" && !workload.name.is_empty()).then(|| otel::Owner {
        api_version: workload.api_version.clone(),
        kind: workload.kind.clone(),
        name: workload.name.clone(),
        uid: None,
    });
    let who = otel::Subject {
        namespace: subject.namespace,
        pod_name: view::text(subject.pod, &["metadata", "name"]),
        owner,
    };
    let metadata = pod.get("metadata").cloned().unwrap_or_default();
    let spec = view::map_mut(pod, &[]).entry("spec").or_insert(Value::Null);
    let outcome = otel::instrument(
        &metadata,
        spec,
        &who,
        inventory,
        &settings.otel,
        otel::Options::default(),
    );
    warnings.extend(outcome.warnings);
}
