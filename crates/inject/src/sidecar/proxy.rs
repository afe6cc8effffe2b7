//! The container `istio-proxy`.

use super::{Inputs, env, init, volumes};
use crate::image;
use crate::names::{self, annotation};
use remora_pod::view;
use serde_json::{Map, Value, json};

pub(super) fn container(inputs: &Inputs<'_>) -> Value {
    let base = view::scalar(inputs.proxy_value("image"));
    let reference = image::reference(inputs.settings, inputs.pod, &base, inputs.config.image_type());
    let mut container = Map::new();
    let mut set = |key: &str, value: Value| container.insert(key.to_owned(), value);
    set("name", json!(names::PROXY));
    set("image", json!(reference));
    set(
        "ports",
        json!([{"containerPort": 15090, "name": "http-envoy-prom", "protocol": "TCP"}]),
    );
    set("args", json!(arguments(inputs)));
    set("env", Value::Array(env::variables(inputs)));
    set("securityContext", security(inputs));
    set("volumeMounts", Value::Array(volumes::mounts(inputs)));
    if inputs.native {
        set("restartPolicy", json!("Always"));
    }
    if let Some(lifecycle) = lifecycle(inputs) {
        set("lifecycle", lifecycle);
    }
    if inputs.has_probes() {
        if let Some(probe) = startup_probe(inputs).filter(|_| !inputs.waits_by_hook()) {
            set("startupProbe", probe);
        }
        set("readinessProbe", readiness_probe(inputs));
    }
    inputs.finish(&mut container);
    Value::Object(container)
}

fn arguments(inputs: &Inputs<'_>) -> Vec<String> {
    let values = &inputs.settings.values;
    let level = inputs.own_or(annotation::LOG_LEVEL, inputs.proxy_value("logLevel"));
    let components = inputs.own_or(
        annotation::COMPONENT_LOG_LEVEL,
        inputs.proxy_value("componentLogLevel"),
    );
    let agent = inputs.own_or(
        annotation::AGENT_LOG_LEVEL,
        values.at(&["global", "logging", "level"]),
    );
    let mut args = Vec::new();
    if inputs.captures_itself() {
        // An agent that does not know this form captures, ends and never gets ready: the application does not start.
        args = init::arguments(inputs);
        args.push("--".to_owned());
    }
    args.extend([
        "proxy".to_owned(),
        "sidecar".to_owned(),
        "--domain".to_owned(),
        format!(
            "$(POD_NAMESPACE).svc.{}",
            view::scalar(inputs.proxy_value("clusterDomain"))
        ),
        format!("--proxyLogLevel={level}"),
        format!("--proxyComponentLogLevel={components}"),
        format!("--log_output_level={agent}"),
    ]);
    let sts = inputs.text(&["global", "sts", "servicePort"]);
    if !sts.is_empty() && sts != "0" {
        args.push(format!("--stsPort={sts}"));
    }
    if values.flag(&["global", "logAsJson"]) {
        args.push("--log_as_json".to_owned());
    }
    let outliers = view::scalar(inputs.proxy_value("outlierLogPath"));
    if !outliers.is_empty() {
        args.push(format!("--outlierLogPath={outliers}"));
    }
    args
}

/// istio: a configured lifecycle replaces both the hold hook and the drain hook.
fn lifecycle(inputs: &Inputs<'_>) -> Option<Value> {
    let configured = inputs.proxy_value("lifecycle");
    if configured.as_object().is_some_and(|l| !l.is_empty()) {
        return Some(configured.clone());
    }
    if inputs.hold {
        return Some(json!({"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}));
    }
    if !inputs.native {
        return None;
    }
    // differs from istio: without an agent port the agent has no endpoint, so the hook could only fail.
    if inputs.settings.repairs() && !inputs.has_probes() {
        return None;
    }
    let port = format!("--debug-port={}", inputs.status);
    let mut lifecycle =
        json!({"preStop": {"exec": {"command": ["pilot-agent", "request", port, "POST", "drain"]}}});
    if inputs.waits_by_hook() {
        lifecycle["postStart"] = json!({"exec": {"command": ["pilot-agent", "wait"]}});
    }
    Some(lifecycle)
}

fn health_check() -> Value {
    json!({"path": "/healthz/ready", "port": names::HEALTH_PORT})
}

pub(super) fn has_startup_probe(inputs: &Inputs<'_>) -> bool {
    let settings = inputs.proxy_value("startupProbe");
    settings.get("enabled").is_some_and(crate::values::truthy)
}

fn startup_probe(inputs: &Inputs<'_>) -> Option<Value> {
    let settings = inputs.proxy_value("startupProbe");
    has_startup_probe(inputs).then(|| {
        json!({
            "httpGet": health_check(),
            "periodSeconds": 1,
            "timeoutSeconds": 3,
            "failureThreshold": settings.get("failureThreshold").unwrap_or(&json!(600)),
        })
    })
}

pub(super) fn traces(inputs: &Inputs<'_>) -> bool {
    inputs.config.metadata_of("IPTABLES_TRACE_LOGGING") == Some("true")
}

fn readiness_probe(inputs: &Inputs<'_>) -> Value {
    let number = |key: &str, default: &str| {
        inputs
            .own_or(key, inputs.proxy_value(default))
            .parse::<u32>()
            .map_or(Value::Null, |n| json!(n))
    };
    let mut probe = json!({
        "httpGet": health_check(),
        "initialDelaySeconds": number(annotation::READINESS_DELAY, "readinessInitialDelaySeconds"),
        "periodSeconds": number(annotation::READINESS_PERIOD, "readinessPeriodSeconds"),
        "timeoutSeconds": 3,
        "failureThreshold": number(annotation::READINESS_FAILURES, "readinessFailureThreshold"),
    });
    if let Some(fields) = probe.as_object_mut() {
        fields.retain(|_, value| !value.is_null() && *value != json!(0));
    }
    probe
}

fn security(inputs: &Inputs<'_>) -> Value {
    let mut context = inputs.security();
    let tproxy = inputs.is_tproxy();
    let low_ports = inputs.binds_low_ports();
    let trace = traces(inputs);
    let mut add = Vec::new();
    // A proxy that captures the traffic drops this capability before it does anything else.
    if tproxy || trace || inputs.captures_itself() {
        add.push("NET_ADMIN");
    }
    if low_ports {
        add.push("NET_BIND_SERVICE");
    }
    let mut set = |key: &str, value: Value| context.insert(key.to_owned(), value);
    if !add.is_empty() {
        set("capabilities", json!({"add": add, "drop": ["ALL"]}));
    }
    if trace {
        set("privileged", json!(true));
        set("allowPrivilegeEscalation", json!(true));
    }
    let root = !add.is_empty();
    set("readOnlyRootFilesystem", json!(true));
    set("runAsUser", json!(if root { 0 } else { names::PROXY_ID }));
    set("runAsGroup", json!(names::PROXY_ID));
    set("runAsNonRoot", json!(!root));
    Value::Object(context)
}
