//! Labels and annotations.

use serde_json::{Map, Value};

use super::Report;
use crate::names;
use crate::path::Path;
use crate::quote::{brief, quote};

/// k8s: all annotation keys and values of an object together.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;

pub(super) fn check(metadata: &Value, at: &Path, report: &mut Report) {
    match metadata {
        Value::Null => return,
        Value::Object(_) => {}
        _ => return report.add(at, "must be an object"),
    }
    if let Some(labels) = strings(metadata, at, "labels", report) {
        for (key, value) in labels {
            let here = at.join("labels").join(key.as_str());
            if let Err(rule) = names::qualified_name(key) {
                report.add(&here, format!("label key {} {rule}", quote(key)));
            }
            if let Some(Err(rule)) = value.as_str().map(names::label_value) {
                report.add(
                    &here,
                    format!("label value {} {rule}", quote(value.as_str().unwrap_or(""))),
                );
            }
        }
    }
    if let Some(annotations) = strings(metadata, at, "annotations", report) {
        let mut size = 0;
        for (key, value) in annotations {
            size += key.len() + value.as_str().map_or(0, str::len);
            if let Err(rule) = names::annotation_key(key) {
                let here = at.join("annotations").join(key.as_str());
                report.add(&here, format!("annotation key {} {rule}", quote(key)));
            }
        }
        if size > MAX_ANNOTATION_BYTES {
            let message = format!(
                "all annotations together must have at most {MAX_ANNOTATION_BYTES} bytes, not {size}"
            );
            report.add(&at.join("annotations"), message);
        }
    }
}

/// A map of strings; values of another type are reported.
fn strings<'v>(
    metadata: &'v Value,
    at: &Path,
    field: &str,
    report: &mut Report,
) -> Option<&'v Map<String, Value>> {
    let at = at.join(field);
    let map = match metadata.get(field) {
        None | Some(Value::Null) => return None,
        Some(Value::Object(map)) => map,
        Some(_) => {
            report.add(&at, "must be an object");
            return None;
        }
    };
    for (key, value) in map {
        if !value.is_string() && !value.is_null() {
            report.add(
                &at.join(key.as_str()),
                format!("must be a string, not {}; put it in quotes", brief(value)),
            );
        }
    }
    Some(map)
}
