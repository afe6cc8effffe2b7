//! The init container that captures traffic, or checks that a CNI plugin did.

use super::Inputs;
use crate::image;
use crate::names::{self, annotation};
use serde_json::{Map, Value, json};

/// `istio-init` or `istio-validation`; none when nothing is captured, or the proxy does it.
pub(super) fn container(inputs: &Inputs<'_>) -> Option<Value> {
    if inputs.mode == "NONE" || inputs.captures_itself() {
        return None;
    }
    let base = inputs.text(&["global", "proxy_init", "image"]);
    let mut container = Map::new();
    container.insert(
        "name".to_owned(),
        json!(if inputs.cni {
            names::VALIDATION
        } else {
            names::INIT
        }),
    );
    container.insert(
        "image".to_owned(),
        json!(image::reference(inputs.settings, inputs.pod, &base, None)),
    );
    container.insert("args".to_owned(), json!(arguments(inputs)));
    let env: Vec<Value> = inputs
        .config
        .metadata()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    if !env.is_empty() {
        container.insert("env".to_owned(), Value::Array(env));
    }
    container.insert("securityContext".to_owned(), security(inputs));
    inputs.finish(&mut container);
    Some(Value::Object(container))
}

/// The command that captures traffic, with its flags.
pub(super) fn arguments(inputs: &Inputs<'_>) -> Vec<String> {
    let mesh = &inputs.settings.mesh;
    let mut args = vec!["istio-iptables".to_owned()];
    let mut flag = |name: &str, value: String| args.extend([name.to_owned(), value]);
    flag("-p", mesh.port("proxyListenPort", 15001).to_string());
    flag("-z", mesh.port("proxyInboundListenPort", 15006).to_string());
    flag("-u", names::PROXY_ID.to_string());
    flag("-m", inputs.mode.clone());
    flag(
        "-i",
        inputs.own_or(
            annotation::INCLUDE_OUT_RANGES,
            inputs.proxy_value("includeIPRanges"),
        ),
    );
    flag(
        "-x",
        inputs.own_or(
            annotation::EXCLUDE_OUT_RANGES,
            inputs.proxy_value("excludeIPRanges"),
        ),
    );
    flag(
        "-b",
        inputs.own_or(
            annotation::INCLUDE_IN_PORTS,
            inputs.proxy_value("includeInboundPorts"),
        ),
    );
    flag("-d", excluded_inbound(inputs));
    if let Some(ports) = inputs.given(annotation::INCLUDE_OUT_PORTS, "includeOutboundPorts") {
        flag("-q", ports);
    }
    if let Some(ports) = inputs.given(annotation::EXCLUDE_OUT_PORTS, "excludeOutboundPorts") {
        flag("-o", ports);
    }
    let virtual_interfaces = inputs
        .own(annotation::REROUTE_INTERFACES)
        .or_else(|| inputs.own(annotation::KUBEVIRT_INTERFACES));
    if let Some(interfaces) = virtual_interfaces {
        flag("-k", interfaces.to_owned());
    }
    if let Some(interfaces) = inputs.own(annotation::EXCLUDE_INTERFACES) {
        flag("-c", interfaces.to_owned());
    }
    args.extend(switches(inputs));
    args
}

/// istio: the proxy's own ports are always excluded; annotations cannot change that.
fn excluded_inbound(inputs: &Inputs<'_>) -> String {
    match inputs.excluded_inbound.as_str() {
        "" => "15090,15021".to_owned(),
        more => format!("15090,15021,{more}"),
    }
}

fn switches(inputs: &Inputs<'_>) -> Vec<String> {
    let values = &inputs.settings.values;
    let level = inputs.own_or(
        annotation::AGENT_LOG_LEVEL,
        values.at(&["global", "logging", "level"]),
    );
    let mut args = vec![format!("--log_output_level={level}")];
    if values.flag(&["global", "logAsJson"]) {
        args.push("--log_as_json".to_owned());
    }
    if inputs.cni {
        args.extend(["--run-validation".to_owned(), "--skip-rule-apply".to_owned()]);
    } else if values.flag(&["global", "proxy_init", "forceApplyIptables"]) {
        args.push("--force-apply".to_owned());
    }
    if values.flag(&["global", "nativeNftables"]) {
        args.push("--native-nftables".to_owned());
    }
    args
}

fn security(inputs: &Inputs<'_>) -> Value {
    let mut context = inputs.security();
    let mut set = |key: &str, value: Value| context.insert(key.to_owned(), value);
    if inputs.cni {
        set("readOnlyRootFilesystem", json!(true));
        set("runAsUser", json!(names::PROXY_ID));
        set("runAsGroup", json!(names::PROXY_ID));
        set("runAsNonRoot", json!(true));
    } else {
        set(
            "capabilities",
            json!({"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]}),
        );
        set("readOnlyRootFilesystem", json!(false));
        set("runAsUser", json!(0));
        set("runAsGroup", json!(0));
        set("runAsNonRoot", json!(false));
    }
    Value::Object(context)
}
