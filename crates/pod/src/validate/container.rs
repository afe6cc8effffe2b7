//! Containers of all three lists.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Options, Report, probe, set_fields, volume};
use crate::names;
use crate::path::Path;
use crate::quantity::Quantity;
use crate::quote::{brief, quote};

/// Which list a container is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Init,
    Regular,
    Ephemeral,
}

const LISTS: [(Role, &str); 3] = [
    (Role::Init, "initContainers"),
    (Role::Regular, "containers"),
    (Role::Ephemeral, "ephemeralContainers"),
];

pub(super) fn check_all(
    spec: &Value,
    at: &Path,
    volumes: &BTreeSet<&str>,
    options: Options<'_>,
    report: &mut Report,
) {
    if spec
        .get("containers")
        .is_none_or(|list| list.is_null() || list.as_array().is_some_and(Vec::is_empty))
    {
        report.add(&at.join("containers"), "is required");
    }
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool).unwrap_or(false);
    let mut names_seen = BTreeMap::new();
    let mut host_ports = BTreeSet::new();
    for (role, list) in LISTS {
        for (here, container) in report.objects(spec, at, list) {
            check_name(container, &here, &mut names_seen, report);
            check_image(container, &here, options.require_image, report);
            check_role(container, &here, role, report);
            check_ports(container, &here, host_network, report);
            // Init containers run one after the other, so they may claim the same port.
            if role == Role::Regular {
                check_host_ports(container, &here, &mut host_ports, report);
            }
            check_env(container, &here, report);
            check_resources(container, &here, report);
            check_security(container, &here, report);
            volume::check_mounts(container, &here, volumes, report);
        }
    }
}

fn check_name<'v>(container: &'v Value, at: &Path, seen: &mut BTreeMap<&'v str, Path>, report: &mut Report) {
    let Some(name) = report.name(container, at, "name", names::dns_label) else {
        return;
    };
    if let Some(first) = seen.get(name) {
        report.add(
            &at.join("name"),
            format!("duplicate container {} (first at {first})", quote(name)),
        );
    } else {
        seen.insert(name, at.clone());
    }
}

fn check_image(container: &Value, at: &Path, required: bool, report: &mut Report) {
    match report.text(container, at, "image") {
        None | Some("") if required => report.add(&at.join("image"), "is required"),
        Some(image) if image.trim() != image => {
            report.add(&at.join("image"), "must not have blanks at its ends");
        }
        _ => {}
    }
    report.one_of(
        container,
        at,
        "imagePullPolicy",
        &["Always", "IfNotPresent", "Never"],
    );
}

/// What only some kinds of containers may have.
fn check_role(container: &Value, at: &Path, role: Role, report: &mut Report) {
    report.one_of(container, at, "restartPolicy", &["Always", "OnFailure", "Never"]);
    let restarts = container.get("restartPolicy").and_then(Value::as_str) == Some("Always");
    if role == Role::Regular || (role == Role::Init && restarts) {
        return probe::check(container, at, report);
    }
    let kind = if role == Role::Init {
        "an init container that runs to its end"
    } else {
        "an ephemeral container"
    };
    for field in set_fields(container, &probe::PROBES)
        .into_iter()
        .chain(set_fields(container, &["lifecycle"]))
    {
        report.add(&at.join(field), format!("must not be set for {kind}"));
    }
}

fn check_ports(container: &Value, at: &Path, host_network: bool, report: &mut Report) {
    let mut seen = BTreeSet::new();
    for (here, port) in report.objects(container, at, "ports") {
        if let Some(name) = report.text(port, &here, "name").filter(|name| !name.is_empty()) {
            if let Err(rule) = names::port_name(name) {
                report.add(&here.join("name"), format!("port name {} {rule}", quote(name)));
            } else if !seen.insert(name) {
                report.add(&here.join("name"), format!("duplicate port name {}", quote(name)));
            }
        }
        if set_fields(port, &["containerPort"]).is_empty() {
            report.add(&here.join("containerPort"), "is required");
        }
        report.integer(port, &here, "containerPort", 1, 65535);
        report.integer(port, &here, "hostPort", 0, 65535);
        report.one_of(port, &here, "protocol", &["TCP", "UDP", "SCTP"]);
        let number = |field| port.get(field).and_then(Value::as_i64).unwrap_or(0);
        if host_network && number("hostPort") != 0 && number("hostPort") != number("containerPort") {
            report.add(
                &here.join("hostPort"),
                "must equal containerPort when hostNetwork is true",
            );
        }
    }
}

fn check_host_ports(
    container: &Value,
    at: &Path,
    taken: &mut BTreeSet<(String, String, i64)>,
    report: &mut Report,
) {
    let ports = container
        .get("ports")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    for (index, port) in ports.enumerate() {
        let text = |field, default: &str| {
            port.get(field)
                .and_then(Value::as_str)
                .unwrap_or(default)
                .to_owned()
        };
        let Some(number) = port
            .get("hostPort")
            .and_then(Value::as_i64)
            .filter(|port| *port != 0)
        else {
            continue;
        };
        if !taken.insert((text("protocol", "TCP"), text("hostIP", ""), number)) {
            let here = at.join("ports").join(index).join("hostPort");
            report.add(
                &here,
                format!("host port {number} is taken by another container of the pod"),
            );
        }
    }
}

fn check_env(container: &Value, at: &Path, report: &mut Report) {
    const SOURCES: &[&str] = &[
        "fieldRef",
        "resourceFieldRef",
        "configMapKeyRef",
        "secretKeyRef",
        "fileKeyRef",
    ];
    for (here, variable) in report.objects(container, at, "env") {
        report.name(variable, &here, "name", names::env_name);
        let value = match variable.get("value") {
            Some(value @ (Value::Number(_) | Value::Bool(_))) => {
                report.add(
                    &here.join("value"),
                    format!("must be a string, not {}; put it in quotes", brief(value)),
                );
                ""
            }
            _ => report.text(variable, &here, "value").unwrap_or(""),
        };
        let Some(source) = variable.get("valueFrom").filter(|source| !source.is_null()) else {
            continue;
        };
        let here = here.join("valueFrom");
        if !value.is_empty() {
            report.add(&here, "must not be set together with value");
        }
        match &set_fields(source, SOURCES)[..] {
            [_] => {}
            [] => report.add(&here, format!("must have one of {}", SOURCES.join(", "))),
            several => report.add(
                &here,
                format!("must have one source, not {}", several.join(" and ")),
            ),
        }
    }
}

fn check_resources(container: &Value, at: &Path, report: &mut Report) {
    let Some(resources) = container.get("resources") else {
        return;
    };
    let at = at.join("resources");
    let limits = amounts(resources, &at, "limits", report);
    let requests = amounts(resources, &at, "requests", report);
    for (name, request) in requests {
        if limits.get(name).is_some_and(|limit| request > *limit) {
            let message = format!(
                "must not be more than the limit of {}",
                limits.get(name).map_or(String::new(), Quantity::to_string)
            );
            report.add(&at.join("requests").join(name), message);
        }
    }
}

fn amounts<'v>(
    resources: &'v Value,
    at: &Path,
    field: &str,
    report: &mut Report,
) -> BTreeMap<&'v str, Quantity> {
    let mut found = BTreeMap::new();
    let at = at.join(field);
    let map = match resources.get(field) {
        None | Some(Value::Null) => return found,
        Some(Value::Object(map)) => map,
        Some(_) => {
            report.add(&at, "must be an object");
            return found;
        }
    };
    for (name, value) in map {
        let here = at.join(name.as_str());
        if let Err(rule) = names::qualified_name(name) {
            report.add(&here, format!("resource name {} {rule}", quote(name)));
        }
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            // k8s: null decodes to zero.
            Value::Null => "0".to_owned(),
            _ => {
                report.add(&here, "must be a quantity");
                continue;
            }
        };
        match text.parse::<Quantity>() {
            Ok(amount) if amount.is_negative() => report.add(&here, "must not be negative"),
            Ok(amount) => {
                found.insert(name.as_str(), amount);
            }
            Err(_) => report.add(&here, format!("{} is not a quantity", quote(&text))),
        }
    }
    found
}

fn check_security(container: &Value, at: &Path, report: &mut Report) {
    let Some(context) = container.get("securityContext") else {
        return;
    };
    let at = at.join("securityContext");
    for field in ["runAsUser", "runAsGroup"] {
        report.integer(context, &at, field, 0, i64::from(i32::MAX));
    }
    let flag = |field| context.get(field).and_then(Value::as_bool);
    if flag("allowPrivilegeEscalation") == Some(false) {
        if flag("privileged") == Some(true) {
            report.add(
                &at,
                "allowPrivilegeEscalation must not be false when privileged is true",
            );
        }
        let added = context
            .get("capabilities")
            .and_then(|capabilities| capabilities.get("add"));
        if added
            .and_then(Value::as_array)
            .is_some_and(|list| list.iter().any(|name| name == "CAP_SYS_ADMIN"))
        {
            report.add(
                &at,
                "allowPrivilegeEscalation must not be false with capability CAP_SYS_ADMIN",
            );
        }
    }
}
