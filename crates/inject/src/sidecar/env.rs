//! The variables of `istio-proxy`, in Istio's order.

use super::Inputs;
use crate::names::{annotation, label};
use remora_pod::{view, yaml};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A list of variables that is being built.
struct Variables(Vec<Value>);

impl Variables {
    fn value(&mut self, name: &str, value: impl Into<String>) {
        self.0.push(json!({"name": name, "value": value.into()}));
    }

    fn field(&mut self, name: &str, path: &str) {
        self.0
            .push(json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}));
    }

    fn resource(&mut self, name: &str, resource: &str) {
        self.0.push(
            json!({"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": "1"}}}),
        );
    }
}

pub(super) fn variables(inputs: &Inputs<'_>) -> Vec<Value> {
    let mut env = Variables(Vec::with_capacity(32));
    control_plane(inputs, &mut env);
    downward(&mut env);
    env.value("PROXY_CONFIG", inputs.config.render());
    env.value("ISTIO_META_POD_PORTS", pod_ports(view::containers(inputs.pod)));
    env.value(
        "ISTIO_META_APP_CONTAINERS",
        inputs.apps().collect::<Vec<_>>().join(","),
    );
    env.resource("GOMEMLIMIT", "limits.memory");
    compliance(inputs, &mut env);
    identity(inputs, &mut env);
    tracing(inputs, &mut env);
    for (name, value) in inputs.config.metadata() {
        env.value(name, value);
    }
    env.0
        .retain(|variable| !inputs.tail.contains_key(view::name(variable)));
    env.0
}

fn control_plane(inputs: &Inputs<'_>, env: &mut Variables) {
    if inputs.settings.mesh.inbound_is_localhost() {
        env.value("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", "true");
    }
    env.value(
        "PILOT_CERT_PROVIDER",
        inputs.text(&["global", "pilotCertProvider"]),
    );
    let address = inputs.text(&["global", "caAddress"]);
    env.value(
        "CA_ADDR",
        if address.is_empty() {
            istiod_address(inputs)
        } else {
            address
        },
    );
}

fn istiod_address(inputs: &Inputs<'_>) -> String {
    let namespace = inputs.text(&["global", "istioNamespace"]);
    match inputs.text(&["revision"]).as_str() {
        "" => format!("istiod.{namespace}.svc:15012"),
        revision => format!("istiod-{revision}.{namespace}.svc:15012"),
    }
}

fn downward(env: &mut Variables) {
    env.field("POD_NAME", "metadata.name");
    env.field("POD_NAMESPACE", "metadata.namespace");
    env.field("INSTANCE_IP", "status.podIP");
    env.field("SERVICE_ACCOUNT", "spec.serviceAccountName");
    env.field("HOST_IP", "status.hostIP");
    env.resource("ISTIO_CPU_LIMIT", "limits.cpu");
}

fn compliance(inputs: &Inputs<'_>, env: &mut Variables) {
    let policy = &inputs.settings.compliance_policy;
    if policy.is_empty() {
        return;
    }
    env.value("COMPLIANCE_POLICY", policy.as_str());
    if policy == "fips-140-3" {
        env.value("GODEBUG", "fips140=only");
    }
}

fn identity(inputs: &Inputs<'_>, env: &mut Variables) {
    let workload = inputs.workload;
    let cluster = inputs.text(&["global", "multiCluster", "clusterName"]);
    env.value(
        "ISTIO_META_CLUSTER_ID",
        if cluster.is_empty() {
            "Kubernetes".to_owned()
        } else {
            cluster
        },
    );
    env.field("ISTIO_META_NODE_NAME", "spec.nodeName");
    env.value("ISTIO_META_INTERCEPTION_MODE", inputs.mode.as_str());
    let name = view::label(inputs.pod, label::WORKLOAD_NAME)
        .filter(|n| !n.is_empty())
        .unwrap_or(&workload.name);
    if !name.is_empty() {
        env.value("ISTIO_META_WORKLOAD_NAME", name);
    }
    if !workload.name.is_empty() {
        env.value("ISTIO_META_OWNER", workload.owner_uri());
    }
    if inputs.own(annotation::BOOTSTRAP_OVERRIDE).is_some() {
        env.value(
            "ISTIO_BOOTSTRAP_OVERRIDE",
            "/etc/istio/custom-bootstrap/custom_bootstrap.json",
        );
    }
    let fallback = inputs.text(&["global", "trustDomain"]);
    let trust_domain = inputs.settings.mesh.text("trustDomain", &fallback);
    let mesh_id = inputs.text(&["global", "meshID"]);
    let mesh_id = if mesh_id.is_empty() {
        trust_domain
    } else {
        &mesh_id
    };
    if !mesh_id.is_empty() {
        env.value("ISTIO_META_MESH_ID", mesh_id);
    }
    if !trust_domain.is_empty() {
        env.value("TRUST_DOMAIN", trust_domain);
    }
}

fn tracing(inputs: &Inputs<'_>, env: &mut Variables) {
    if inputs.proxy_value("tracer").as_str() == Some("datadog") {
        let given = inputs
            .own(annotation::DATADOG_ENV)
            .and_then(|text| yaml::parse_str(text).ok().flatten().map(|d| d.value));
        for (name, value) in given.as_ref().and_then(Value::as_object).into_iter().flatten() {
            env.value(name, view::scalar(value));
        }
    }
    if inputs.settings.mesh.enriches_service_attributes() {
        env.value("OTEL_RESOURCE_ATTRIBUTES", service_attributes(inputs));
    }
}

pub(crate) fn service_attributes(inputs: &Inputs<'_>) -> String {
    let own = |key: &str| {
        view::annotation(inputs.pod, key)
            .filter(|v| !v.is_empty())
            .map(str::to_owned)
    };
    let namespace = inputs.workload.namespace_or_default();
    let mut parts = vec![format!(
        "service.namespace={}",
        own("resource.opentelemetry.io/service.namespace").unwrap_or_else(|| namespace.to_owned())
    )];
    let version = own("resource.opentelemetry.io/service.version").or_else(|| {
        let label = |key: &str| view::label(inputs.pod, key).filter(|v| !v.is_empty());
        label("app.kubernetes.io/version")
            .or_else(|| label("version"))
            .map(str::to_owned)
    });
    if let Some(version) = version {
        parts.push(format!("service.version={version}"));
    }
    let instance = own("resource.opentelemetry.io/service.instance.id").unwrap_or_else(|| {
        let app = inputs.apps().next().unwrap_or_default();
        format!("{namespace}.$(POD_NAME).{app}")
    });
    parts.push(format!("service.instance.id={instance}"));
    parts.join(",")
}

/// istio: a hand-laid list, one port a line, that the agent parses as JSON.
fn pod_ports(containers: &[Value]) -> String {
    let mut out = String::from("[");
    let ports = containers.iter().flat_map(|c| view::list(c, &["ports"]));
    for (index, port) in ports.enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(out, "\n    {comma}{}", port_json(port));
    }
    out.push_str("\n]");
    out
}

fn port_json(port: &Value) -> String {
    let mut parts = Vec::new();
    for key in ["name", "hostPort", "containerPort", "protocol", "hostIP"] {
        match port.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) if text.is_empty() => {}
            Some(Value::Number(number)) if number.as_i64() == Some(0) => {}
            Some(value) => parts.push(format!("{}:{value}", json!(key))),
        }
    }
    format!("{{{}}}", parts.join(","))
}
