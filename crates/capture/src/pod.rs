//! What a pod asks for: the options that its manifest stands for.
//!
//! A pod that was injected with an init container carries a command line; any other pod says what it wants by
//! annotations, as Istio's CNI plugin reads them. The result is options with their origin, to be read by
//! [`crate::options::Settings`] like any others.

use crate::options::{ArgvError, Given, Origin, parse_argv};
use serde_json::Value;

/// Why a pod's options cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// Not a pod, nor something with a pod template.
    #[error("this is not a pod and has no pod template")]
    NotAPod,
    /// The init container's command line.
    #[error("read the arguments of container {container}")]
    Arguments {
        /// The container.
        container: String,
        /// What is wrong.
        #[source]
        source: ArgvError,
    },
}

/// How a pod's traffic comes to be captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapturedBy {
    /// By the init container with this name.
    InitContainer(String),
    /// By annotations, as with CNI.
    Annotations,
}

/// The options that a pod (or the pod template of a workload) stands for.
pub fn options(object: &Value) -> Result<(CapturedBy, Vec<Given>), PodError> {
    let pod = template(object).ok_or(PodError::NotAPod)?;
    for container in containers(pod, "initContainers") {
        if let Some(arguments) = command_line(container) {
            let name = text(container, "name").to_owned();
            let given = parse_argv(&arguments).map_err(|source| PodError::Arguments {
                container: name.clone(),
                source,
            })?;
            return Ok((CapturedBy::InitContainer(name), given));
        }
    }
    Ok((CapturedBy::Annotations, annotated(pod)))
}

/// The pod itself, or the template of a workload.
fn template(object: &Value) -> Option<&Value> {
    let has_containers = |pod: &&Value| pod.pointer("/spec/containers").is_some();
    let places = ["", "/spec/template", "/spec/jobTemplate/spec/template"];
    places
        .iter()
        .filter_map(|place| object.pointer(place))
        .find(has_containers)
}

fn containers<'a>(pod: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    pod.pointer(&format!("/spec/{list}"))
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// What follows `istio-iptables` in a container's command and arguments, up to what the container does afterwards.
fn command_line(container: &Value) -> Option<Vec<&str>> {
    let words = ["command", "args"]
        .into_iter()
        .filter_map(|key| container.get(key)?.as_array())
        .flatten();
    let words: Vec<&str> = words.filter_map(Value::as_str).collect();
    let at = words
        .iter()
        .take(3)
        .position(|word| word.rsplit('/').next() == Some("istio-iptables"))?;
    let flags = words[at + 1..].iter().copied().take_while(|word| *word != "--");
    Some(flags.collect())
}

// istio: cni/pkg/plugin/sidecar_redirect.go. The annotation, the option, the value without the annotation.
const ANNOTATIONS: &[(&str, &str, &str)] = &[
    (
        "sidecar.istio.io/interceptionMode",
        "istio-inbound-interception-mode",
        "REDIRECT",
    ),
    (
        "traffic.sidecar.istio.io/includeOutboundIPRanges",
        "istio-service-cidr",
        "*",
    ),
    (
        "traffic.sidecar.istio.io/excludeOutboundIPRanges",
        "istio-service-exclude-cidr",
        "",
    ),
    (
        "traffic.sidecar.istio.io/includeInboundPorts",
        "istio-inbound-ports",
        "*",
    ),
    (
        "traffic.sidecar.istio.io/excludeInboundPorts",
        "istio-local-exclude-ports",
        "15020",
    ),
    (
        "traffic.sidecar.istio.io/excludeOutboundPorts",
        "istio-local-outbound-ports-exclude",
        "15020",
    ),
    (
        "traffic.sidecar.istio.io/includeOutboundPorts",
        "istio-outbound-ports",
        "",
    ),
    (
        "traffic.sidecar.istio.io/excludeInterfaces",
        "istio-exclude-interfaces",
        "",
    ),
    (
        "traffic.sidecar.istio.io/kubevirtInterfaces",
        "kube-virt-interfaces",
        "",
    ),
    ("istio.io/reroute-virtual-interfaces", "kube-virt-interfaces", ""),
];

/// Ports of the proxy itself that are never captured, whatever the annotation says.
const OWN_PORTS: [&str; 3] = ["15020", "15021", "15090"];

fn annotated(pod: &Value) -> Vec<Given> {
    let mut given = Vec::new();
    for (annotation, option, default) in ANNOTATIONS {
        let value = pod
            .pointer("/metadata/annotations")
            .and_then(|all| all.get(*annotation)?.as_str());
        let origin = if value.is_some() {
            Origin::Annotation(annotation)
        } else {
            Origin::Default
        };
        // The newer of two names for one option must not be undone by the absence of the other.
        if value.is_none() && given.iter().any(|known: &Given| known.option == *option) {
            continue;
        }
        let mut value = value.unwrap_or(default).to_owned();
        if *option == "istio-local-exclude-ports" {
            value = with_own_ports(&value);
        }
        given.push(Given {
            option,
            value,
            origin,
        });
    }
    let proxy = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|list| containers(pod, list))
        .find(|container| text(container, "name") == "istio-proxy");
    given.extend(proxy.into_iter().flat_map(of_proxy));
    given
}

fn with_own_ports(list: &str) -> String {
    let mut ports: Vec<&str> = Vec::new();
    for port in list.split(',').filter(|port| !port.is_empty()).chain(OWN_PORTS) {
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    ports.join(",")
}

/// What the proxy's own container says: who it runs as, and some of its environment.
fn of_proxy(container: &Value) -> Vec<Given> {
    let mut given = Vec::new();
    let ids = [("runAsUser", "proxy-uid"), ("runAsGroup", "proxy-gid")];
    for (field, option) in ids {
        let id = container
            .pointer(&format!("/securityContext/{field}"))
            .and_then(Value::as_u64);
        // istio: 0 counts as not set.
        let id = id.filter(|id| *id != 0).unwrap_or(1337);
        given.push(Given {
            option,
            value: id.to_string(),
            origin: Origin::Pod("securityContext of istio-proxy"),
        });
    }
    let variables = [
        ("ISTIO_META_DNS_CAPTURE", "redirect-dns"),
        ("ISTIO_META_DNS_CAPTURE", "capture-all-dns"),
        ("ISTIO_DUAL_STACK", "dual-stack"),
        ("INVALID_DROP", "drop-invalid"),
    ];
    for (name, option) in variables {
        let all = container
            .get("env")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let value = all
            .filter(|item| text(item, "name") == name)
            .find_map(|item| item.get("value")?.as_str());
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            given.push(Given {
                option,
                value: value.to_owned(),
                origin: Origin::Pod("environment of istio-proxy"),
            });
        }
    }
    given
}

#[cfg(test)]
mod tests;
