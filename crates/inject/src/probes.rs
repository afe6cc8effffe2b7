//! Sends probes and HTTP hooks through the agent, so that they work under strict mTLS and report the state of the
//! application rather than the proxy's.
//!
//! The agent learns the original action from `ISTIO_KUBE_APP_PROBERS`, a JSON map from path to action.

use crate::names;
use crate::prometheus::set_variable;
use crate::warning::Warning;
use remora_pod::view;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const VARIABLE: &str = "ISTIO_KUBE_APP_PROBERS";

/// Probe fields and the last part of their path at the agent.
const PROBES: [(&str, &str); 3] = [
    ("readinessProbe", "readyz"),
    ("livenessProbe", "livez"),
    ("startupProbe", "startupz"),
];
/// Hook fields and the last part of their path at the agent.
const HOOKS: [(&str, &str); 2] = [("preStop", "prestopz"), ("postStart", "poststartz")];

/// How to rewrite.
pub(crate) struct Rewrite {
    /// Port of the agent.
    pub(crate) agent_port: u16,
    /// Port whose probes count as rewritten already.
    pub(crate) mesh_status_port: u16,
    /// Do not rewrite probes that cannot work: see [`Rewrite::verdict`].
    pub(crate) repairs: bool,
    /// The proxy is a native sidecar.
    pub(crate) native: bool,
}

/// Rewrites every probe and hook of the application's containers.
pub(crate) fn rewrite(pod: &mut Value, rewrite: &Rewrite, warnings: &mut Vec<Warning>) {
    let Some(proxy) = view::container(pod, names::PROXY) else {
        return;
    };
    let known = known_probers(proxy);
    let mut probers = BTreeMap::new();
    for list in ["initContainers", "containers"] {
        let is_init = list == "initContainers";
        for container in view::list_mut(pod, &["spec", list]) {
            if view::name(container) != names::PROXY {
                rewrite.container(container, is_init, &mut probers, warnings);
            }
        }
    }
    probers.extend(known.into_iter().filter(|(path, _)| names_container(pod, path)));
    if probers.is_empty() {
        return;
    }
    let text = render(&probers);
    if let Some(proxy) = view::container_mut(pod, names::PROXY) {
        set_variable(proxy, VARIABLE, &text);
    }
}

/// Entries of an earlier pass; they hold the original actions, which the pod no longer has.
fn known_probers(proxy: &Value) -> BTreeMap<String, Value> {
    view::find(view::list(proxy, &["env"]), VARIABLE)
        .and_then(|variable| {
            serde_json::from_str::<Map<String, Value>>(variable.get("value")?.as_str()?).ok()
        })
        .into_iter()
        .flatten()
        .collect()
}

/// `/app-health/NAME/livez` names a container that still exists.
fn names_container(pod: &Value, path: &str) -> bool {
    path.split('/')
        .nth(2)
        .is_some_and(|name| view::container(pod, name).is_some())
}

/// What becomes of a probe.
enum Verdict {
    Rewrite,
    Keep,
    KeepAndSay(String),
}

impl Rewrite {
    fn container(
        &self,
        container: &mut Value,
        is_init: bool,
        probers: &mut BTreeMap<String, Value>,
        warnings: &mut Vec<Warning>,
    ) {
        let name = view::name(container).to_owned();
        let ports = view::list(container, &["ports"]).to_vec();
        for (field, end) in PROBES {
            let path = format!("/app-health/{name}/{end}");
            let Some(probe) = container.get(field).filter(|p| p.is_object()) else {
                continue;
            };
            match self.verdict(container, field, probe, is_init, &ports) {
                Verdict::Rewrite => {}
                Verdict::Keep => continue,
                Verdict::KeepAndSay(text) => {
                    warnings.push(Warning::container("probe-not-rewritten", &name, text));
                    continue;
                }
            }
            let timeout = probe.get("timeoutSeconds").cloned();
            if let Some(probe) = container.get_mut(field) {
                self.action(probe, &path, &ports, timeout.as_ref(), probers);
            }
        }
        for (field, end) in HOOKS {
            let path = format!("/app-lifecycle/{name}/{end}");
            if let Some(hook) = container.get_mut("lifecycle").and_then(|l| l.get_mut(field)) {
                if self.repairs && action_port(hook, &ports).is_none() && has_port(hook) {
                    let text = format!(
                        "{field}: its port is not among the container's ports, so the hook is left as it is"
                    );
                    warnings.push(Warning::container("probe-not-rewritten", &name, text));
                    continue;
                }
                // k8s: the kubelet never runs gRPC hooks; they are refused by the API.
                if hook.get("grpc").is_none() {
                    self.action(hook, &path, &ports, None, probers);
                }
            }
        }
    }

    /// What becomes of a probe.
    ///
    /// differs from istio: it rewrites all of them and leaves probes that can only fail.
    fn verdict(
        &self,
        container: &Value,
        field: &str,
        probe: &Value,
        is_init: bool,
        ports: &[Value],
    ) -> Verdict {
        if !self.repairs || !has_port(probe) {
            return Verdict::Rewrite;
        }
        if action_port(probe, ports).is_none() {
            return Verdict::KeepAndSay(format!(
                "{field}: its port has a name that is not among the container's ports, so the probe is left as it is"
            ));
        }
        if !is_init {
            return Verdict::Rewrite;
        }
        if !view::is_native_sidecar(container) {
            // An invalid pod: the API server's error is clearer if the probe is not rewritten.
            return Verdict::Keep;
        }
        if field == "startupProbe" && !self.native {
            return Verdict::KeepAndSay(
                "startupProbe is not sent through the agent: with a classic sidecar the agent starts only after this \
                 container, so a rewritten probe could never succeed; use a native sidecar to have it rewritten"
                    .to_owned(),
            );
        }
        Verdict::Rewrite
    }

    fn action(
        &self,
        holder: &mut Value,
        path: &str,
        ports: &[Value],
        timeout: Option<&Value>,
        probers: &mut BTreeMap<String, Value>,
    ) {
        let Some((kind, action)) = network_action(holder) else {
            return;
        };
        let action = action.clone();
        if !self.is_rewritten(kind, &action, path)
            && let Some(port) = resolve(&action, ports)
        {
            let mut entry = Map::new();
            entry.insert(kind.to_owned(), original(kind, &action, port));
            if let Some(seconds) = timeout.filter(|t| t.as_i64().is_some_and(|s| s != 0)) {
                entry.insert("timeoutSeconds".to_owned(), seconds.clone());
            }
            probers.insert(path.to_owned(), Value::Object(entry));
        }
        let rewritten = self.towards_agent(kind, &action, path);
        if let Some(fields) = holder.as_object_mut() {
            fields.remove(kind);
            fields.insert("httpGet".to_owned(), rewritten);
        }
    }

    fn is_rewritten(&self, kind: &str, action: &Value, path: &str) -> bool {
        let port = action.get("port").and_then(Value::as_u64);
        let at_agent =
            port == Some(u64::from(self.mesh_status_port)) || port == Some(u64::from(self.agent_port));
        at_agent && (kind != "httpGet" || !self.repairs || view::text(action, &["path"]) == Some(path))
    }

    fn towards_agent(&self, kind: &str, action: &Value, path: &str) -> Value {
        let mut out = Map::new();
        if kind == "httpGet" {
            for key in ["host", "httpHeaders", "scheme"] {
                if let Some(value) = action.get(key) {
                    out.insert(key.to_owned(), value.clone());
                }
            }
            if out.get("scheme").and_then(Value::as_str) == Some("HTTPS") {
                out.insert("scheme".to_owned(), json!("HTTP"));
            }
        }
        out.insert("path".to_owned(), json!(path));
        out.insert("port".to_owned(), json!(self.agent_port));
        Value::Object(out)
    }
}

/// The action of a probe or hook that goes over the network.
fn network_action(holder: &Value) -> Option<(&'static str, &Value)> {
    ["httpGet", "tcpSocket", "grpc"].into_iter().find_map(|kind| {
        holder
            .get(kind)
            .filter(|a| a.is_object())
            .map(|action| (kind, action))
    })
}

fn has_port(holder: &Value) -> bool {
    network_action(holder).is_some()
}

fn action_port(holder: &Value, ports: &[Value]) -> Option<u64> {
    network_action(holder).and_then(|(_, action)| resolve(action, ports))
}

/// The port as a number; names are looked up among the container's own ports.
fn resolve(action: &Value, ports: &[Value]) -> Option<u64> {
    match action.get("port")? {
        Value::Number(number) => number.as_u64().filter(|p| *p != 0),
        Value::String(text) => match text.parse::<u64>() {
            Ok(number) => Some(number),
            Err(_) => view::find(ports, text)?.get("containerPort")?.as_u64(),
        },
        _ => None,
    }
}

fn original(kind: &str, action: &Value, port: u64) -> Value {
    let mut action = action.clone();
    let fields = view::map_mut(&mut action, &[]);
    fields.insert("port".to_owned(), json!(port));
    if kind == "grpc" {
        // istio: printed as null when unset, because the API's field is a pointer.
        fields.entry("service").or_insert(Value::Null);
    }
    action
}

fn render(probers: &BTreeMap<String, Value>) -> String {
    json!(probers).to_string()
}
