//! Probes and hooks.

use serde_json::Value;

use super::{Report, set_fields};
use crate::names;
use crate::path::Path;
use crate::quote::{brief, quote};

const PROBE_HANDLERS: &[&str] = &["exec", "httpGet", "tcpSocket", "grpc"];
const HOOK_HANDLERS: &[&str] = &["exec", "httpGet", "tcpSocket", "sleep"];
const COUNTS: [&str; 5] = [
    "initialDelaySeconds",
    "timeoutSeconds",
    "periodSeconds",
    "successThreshold",
    "failureThreshold",
];

pub(super) const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

/// The probes and hooks of a container that may have them.
pub(super) fn check(container: &Value, at: &Path, report: &mut Report) {
    for field in PROBES {
        if let Some(probe) = container.get(field).filter(|probe| !probe.is_null()) {
            check_probe(probe, &at.join(field), field, report);
        }
    }
    let lifecycle = container.get("lifecycle").unwrap_or(&Value::Null);
    for field in ["postStart", "preStop"] {
        if let Some(hook) = lifecycle.get(field).filter(|hook| !hook.is_null()) {
            let at = at.join("lifecycle").join(field);
            check_handler(hook, &at, HOOK_HANDLERS, report);
            if let Some(sleep) = hook.get("sleep") {
                report.integer(sleep, &at.join("sleep"), "seconds", 0, i64::MAX);
            }
        }
    }
}

fn check_probe(probe: &Value, at: &Path, field: &str, report: &mut Report) {
    if !probe.is_object() {
        return report.add(at, "must be an object");
    }
    check_handler(probe, at, PROBE_HANDLERS, report);
    for count in COUNTS {
        report.integer(probe, at, count, 0, i64::from(i32::MAX));
    }
    let successes = probe.get("successThreshold").and_then(Value::as_i64).unwrap_or(1);
    if field != "readinessProbe" && successes > 1 {
        report.add(&at.join("successThreshold"), format!("must be 1 for a {field}"));
    }
    let grace = "terminationGracePeriodSeconds";
    if field == "readinessProbe" && !set_fields(probe, &[grace]).is_empty() {
        report.add(&at.join(grace), "must not be set for a readinessProbe");
    } else {
        report.integer(probe, at, grace, 1, i64::MAX);
    }
}

fn check_handler(handler: &Value, at: &Path, kinds: &[&str], report: &mut Report) {
    let set = set_fields(handler, kinds);
    match &set[..] {
        [] => report.add(at, format!("must have one of {}", kinds.join(", "))),
        [_] => {}
        several => report.add(
            at,
            format!("must have one handler, not {}", several.join(" and ")),
        ),
    }
    for kind in set {
        let Some(action) = handler.get(kind) else { continue };
        let here = at.join(kind);
        if !action.is_object() {
            report.add(&here, "must be an object");
            continue;
        }
        match kind {
            "exec" => check_exec(action, &here, report),
            "httpGet" => check_http(action, &here, report),
            "tcpSocket" => check_port(action, &here, true, report),
            "grpc" => check_port(action, &here, false, report),
            _ => {}
        }
    }
}

fn check_exec(action: &Value, at: &Path, report: &mut Report) {
    let words = action.get("command").and_then(Value::as_array);
    match words {
        Some(words) if !words.is_empty() && words.iter().all(Value::is_string) => {}
        Some(words) if !words.is_empty() => report.add(&at.join("command"), "must be a list of strings"),
        _ => report.add(&at.join("command"), "is required"),
    }
}

fn check_http(action: &Value, at: &Path, report: &mut Report) {
    check_port(action, at, true, report);
    report.one_of(action, at, "scheme", &["HTTP", "HTTPS"]);
    report.text(action, at, "path");
    report.text(action, at, "host");
    for (here, header) in report.objects(action, at, "httpHeaders") {
        let name = report.text(header, &here, "name").unwrap_or("");
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            report.add(
                &here.join("name"),
                format!("{} is not the name of an HTTP header", quote(name)),
            );
        }
        report.text(header, &here, "value");
    }
}

/// A port is a number or, where `named` ports are possible, the name of one.
fn check_port(action: &Value, at: &Path, named: bool, report: &mut Report) {
    let at = at.join("port");
    match action.get("port") {
        None | Some(Value::Null) => report.add(&at, "is required"),
        Some(Value::Number(number)) if number.as_i64().is_some_and(|port| (1..=65535).contains(&port)) => {}
        Some(Value::String(name)) if named => {
            if let Err(rule) = names::port_name(name) {
                report.add(&at, format!("port name {} {rule}", quote(name)));
            }
        }
        Some(other) => report.add(
            &at,
            format!("must be a port from 1 to 65535, not {}", brief(other)),
        ),
    }
}
