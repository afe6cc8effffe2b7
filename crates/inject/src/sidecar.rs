//! The built-in template `sidecar`: what Istio's injection template renders, built as data.
//!
//! No text templates: a value of an annotation can only ever become a string in the field it is meant for.
//! [`Inputs::new`] derives everything once; the submodules build one part of the pod each.

mod env;
mod init;
mod metadata;
mod proxy;
mod volumes;

use crate::names::{self, annotation};
use crate::proxy_config::ProxyConfig;
use crate::settings::Settings;
use crate::values::{truthy, without_nulls};
use crate::workload::Workload;
use remora_pod::view;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub(crate) use env::service_attributes;

/// What the template is built from.
pub(crate) struct Inputs<'a> {
    pub(crate) settings: &'a Settings,
    /// The pod as the user wrote it: without what an earlier injection added.
    pub(crate) pod: &'a Value,
    pub(crate) workload: &'a Workload,
    pub(crate) config: &'a ProxyConfig,
    pub(crate) native: bool,
    pub(crate) hold: bool,
    /// Variables that are appended later and must not be in the template.
    pub(crate) tail: &'a BTreeMap<String, String>,
    /// Capture mode.
    pub(crate) mode: String,
    pub(crate) cni: bool,
    /// Agent port as text; `"0"` switches the proxy's probes off.
    pub(crate) status: String,
    /// Inbound ports that are not captured, the agent's included.
    pub(crate) excluded_inbound: String,
    pub(crate) resources: Value,
}

impl<'a> Inputs<'a> {
    pub(crate) fn new(
        settings: &'a Settings,
        pod: &'a Value,
        workload: &'a Workload,
        config: &'a ProxyConfig,
        (native, hold): (bool, bool),
        tail: &'a BTreeMap<String, String>,
    ) -> Self {
        let mut inputs = Self {
            settings,
            pod,
            workload,
            config,
            native,
            hold,
            tail,
            mode: String::new(),
            cni: settings.values.flag(&["pilot", "cni", "enabled"]),
            status: String::new(),
            excluded_inbound: String::new(),
            resources: Value::Null,
        };
        inputs.mode = inputs.own_or(annotation::INTERCEPTION_MODE, &json!(config.interception_mode()));
        inputs.status = inputs.own_or(annotation::STATUS_PORT, settings.values.proxy("statusPort"));
        inputs.excluded_inbound = inputs.inbound_exclusions();
        inputs.resources = inputs.effective_resources();
        inputs
    }

    /// The template as a pod patch.
    pub(crate) fn build(&self) -> Value {
        let mut init = Vec::new();
        init.extend(init::container(self));
        let proxy = proxy::container(self);
        let mut spec = Map::new();
        if self.native {
            init.push(proxy);
        } else {
            spec.insert("containers".to_owned(), json!([proxy]));
        }
        if !init.is_empty() {
            spec.insert("initContainers".to_owned(), Value::Array(init));
        }
        spec.insert("volumes".to_owned(), Value::Array(volumes::volumes(self)));
        let secrets = self.pull_secrets();
        if !secrets.is_empty() {
            spec.insert("imagePullSecrets".to_owned(), Value::Array(secrets));
        }
        json!({"metadata": metadata::metadata(self), "spec": spec})
    }

    /// An annotation of the pod, or a setting. An annotation counts even when it is empty.
    pub(crate) fn own_or(&self, key: &str, default: &Value) -> String {
        self.own(key).map_or_else(|| view::scalar(default), str::to_owned)
    }

    pub(crate) fn own(&self, key: &str) -> Option<&'a str> {
        view::annotation(self.pod, key)
    }

    pub(crate) fn text(&self, path: &[&str]) -> String {
        self.settings.values.text(path)
    }

    pub(crate) fn proxy_value(&self, key: &str) -> &'a Value {
        self.settings.values.proxy(key)
    }

    pub(crate) fn is_tproxy(&self) -> bool {
        self.mode == "TPROXY"
    }

    pub(crate) fn has_probes(&self) -> bool {
        self.status != "0"
    }

    /// Whether containers wait for a native proxy because its `postStart` hook does, rather than for its startup probe.
    ///
    /// The hook ends when the proxy is ready, the kubelet runs the probe once a second. A probe continues after a
    /// restart of the kubelet, a hook does not.
    pub(crate) fn waits_by_hook(&self) -> bool {
        let wanted = self.own_or(annotation::GATE, self.settings.values.at(&["remora", "gate"]));
        self.native && self.has_probes() && wanted == "hook"
    }

    /// Whether the proxy captures the traffic itself before it does anything else, without `istio-init`.
    ///
    /// A kubelet notices the end of an init container only at its relist, once a second; this saves that delay.
    pub(crate) fn captures_itself(&self) -> bool {
        self.is_to_capture() && self.cannot_capture().is_none()
    }

    fn is_to_capture(&self) -> bool {
        let wanted = self.own_or(
            annotation::CAPTURE,
            self.settings.values.at(&["remora", "capture"]),
        );
        self.mode != "NONE" && wanted == "sidecar"
    }

    /// Why the proxy cannot capture the traffic, where it should.
    pub(crate) fn cannot_capture(&self) -> Option<&'static str> {
        let context = view::container(self.pod, names::PROXY).and_then(|c| c.get("securityContext"));
        let own = |key: &str| context.is_some_and(|c| c.get(key).is_some());
        let gated = self.has_probes() && (self.waits_by_hook() || proxy::has_startup_probe(self));
        let reason = if !self.native {
            "it is no native sidecar, so the application would start without it if that failed"
        } else if self.cni {
            "a CNI plugin captures"
        } else if !gated {
            "nothing waits until it has done so"
        } else if self.is_tproxy() || self.binds_low_ports() || proxy::traces(self) {
            "it needs rights afterwards that it would give up"
        } else if own("runAsUser") || own("runAsGroup") || own("capabilities") {
            "the pod says with which rights it runs"
        } else {
            return None;
        };
        self.is_to_capture().then_some(reason)
    }

    pub(crate) fn uses_istiod_certificates(&self) -> bool {
        self.text(&["global", "pilotCertProvider"]) == "istiod"
    }

    pub(crate) fn binds_low_ports(&self) -> bool {
        truthy(&json!(self.own_or(
            annotation::CAP_NET_BIND,
            self.proxy_value("capNetBindService")
        )))
    }

    /// Application containers, in order.
    pub(crate) fn apps(&self) -> impl Iterator<Item = &'a str> {
        view::containers(self.pod)
            .iter()
            .map(view::name)
            .filter(|name| *name != names::PROXY)
    }

    /// A setting that an annotation of the pod replaces, when either of them says something.
    pub(crate) fn given(&self, key: &str, default: &str) -> Option<String> {
        let value = self.own_or(key, self.proxy_value(default));
        (self.own(key).is_some() || !value.is_empty()).then_some(value)
    }

    fn inbound_exclusions(&self) -> String {
        let listed = self.own_or(
            annotation::EXCLUDE_IN_PORTS,
            self.proxy_value("excludeInboundPorts"),
        );
        with_port(&listed, &self.status)
    }

    /// istio: as soon as one of the four annotations exists, only annotations count.
    fn effective_resources(&self) -> Value {
        let table = [
            (annotation::PROXY_CPU, "requests", "cpu"),
            (annotation::PROXY_MEMORY, "requests", "memory"),
            (annotation::PROXY_CPU_LIMIT, "limits", "cpu"),
            (annotation::PROXY_MEMORY_LIMIT, "limits", "memory"),
        ];
        let mut own = json!({});
        for (key, group, resource) in table {
            if let Some(quantity) = self.own(key) {
                view::map_mut(&mut own, &[group]).insert(resource.to_owned(), json!(quantity));
            }
        }
        if own.as_object().is_some_and(Map::is_empty) {
            return without_nulls(self.proxy_value("resources"));
        }
        own
    }

    fn pull_secrets(&self) -> Vec<Value> {
        view::list(self.settings.values.document(), &["global", "imagePullSecrets"])
            .iter()
            .map(|secret| json!({"name": view::scalar(secret)}))
            .collect()
    }

    /// The part of the security context that both containers share.
    pub(crate) fn security(&self) -> Map<String, Value> {
        let privileged = truthy(self.proxy_value("privileged"));
        let mut context = Map::new();
        context.insert("allowPrivilegeEscalation".to_owned(), json!(privileged));
        context.insert("privileged".to_owned(), json!(privileged));
        context.insert("capabilities".to_owned(), json!({"drop": ["ALL"]}));
        let seccomp = self.proxy_value("seccompProfile");
        if seccomp.as_object().is_some_and(|s| !s.is_empty()) {
            context.insert("seccompProfile".to_owned(), seccomp.clone());
        }
        context
    }

    /// Adds what every mesh container has in common.
    pub(crate) fn finish(&self, container: &mut Map<String, Value>) {
        let policy = self.text(&["global", "imagePullPolicy"]);
        if !policy.is_empty() {
            container.insert("imagePullPolicy".to_owned(), json!(policy));
        }
        if self.resources.as_object().is_some_and(|r| !r.is_empty()) {
            container.insert("resources".to_owned(), self.resources.clone());
        }
    }
}

/// A list of ports with one more, unless that is zero or in the list already.
///
/// istio: the list is tidied only when something is added to it.
pub(crate) fn with_port(list: &str, port: &str) -> String {
    if port.is_empty() || port == "0" || list.split(',').any(|p| p == port) {
        return list.to_owned();
    }
    let mut ports: Vec<&str> = list.split(',').map(str::trim).filter(|p| !p.is_empty()).collect();
    ports.push(port);
    ports.join(",")
}
