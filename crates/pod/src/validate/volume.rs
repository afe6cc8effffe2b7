//! Volumes of the pod and mounts of its containers.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Report;
use crate::names;
use crate::path::Path;
use crate::quote::quote;

/// Checks the volumes and returns the names that can be mounted.
pub(super) fn check<'a>(
    spec: &'a Value,
    at: &Path,
    extra: &'a [&'a str],
    report: &mut Report,
) -> BTreeSet<&'a str> {
    let mut known = BTreeSet::new();
    for (here, volume) in report.objects(spec, at, "volumes") {
        if let Some(name) = report.name(volume, &here, "name", names::dns_label)
            && !known.insert(name)
        {
            report.add(&here.join("name"), format!("duplicate volume {}", quote(name)));
        }
        let sources: Vec<&str> = volume
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(field, value)| *field != "name" && !value.is_null())
            .map(|(field, _)| field.as_str())
            .collect();
        if sources.len() > 1 {
            report.add(
                &here,
                format!("must have one source, not {}", sources.join(" and ")),
            );
        }
    }
    known.extend(extra);
    known
}

pub(super) fn check_mounts(container: &Value, at: &Path, volumes: &BTreeSet<&str>, report: &mut Report) {
    let mut paths = BTreeSet::new();
    for (here, mount) in report.objects(container, at, "volumeMounts") {
        match report.text(mount, &here, "name") {
            None | Some("") => report.add(&here.join("name"), "is required"),
            Some(name) if !volumes.contains(name) => {
                report.add(&here.join("name"), format!("there is no volume {}", quote(name)));
            }
            Some(_) => {}
        }
        match report.text(mount, &here, "mountPath") {
            None | Some("") => report.add(&here.join("mountPath"), "is required"),
            Some(path) if !paths.insert(path) => {
                report.add(
                    &here.join("mountPath"),
                    format!("{} is mounted twice", quote(path)),
                );
            }
            Some(_) => {}
        }
        if let Some(inner) = report.text(mount, &here, "subPath")
            && (inner.starts_with('/') || inner.split('/').any(|part| part == ".."))
        {
            report.add(&here.join("subPath"), "must be a relative path without '..'");
        }
    }
}
