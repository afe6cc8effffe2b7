//! Which pods and policies the API server asks about.
//!
//! istio: the entries and their selectors. differs from istio: the name sorts last, because the API server calls
//! configurations in the order of their names and whoever orders containers must see them all; and a call is repeated
//! when others changed the pod afterwards.

use super::Options;
use serde_json::{Value, json};

/// Never asked about: the cluster's own, which must start when nothing else does.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];
const INJECT: &str = "sidecar.istio.io/inject";
const REVISION: &str = "istio.io/rev";
const ENABLED: &str = "istio-injection";

/// Names of the mutating and the validating configuration.
pub(super) fn names(options: &Options) -> [String; 2] {
    [
        options.suffixed("zz-remora-sidecar-injector"),
        options.suffixed("zz-remora-checker"),
    ]
}

pub(super) fn objects(options: &Options) -> [Value; 2] {
    let [mutating, validating] = names(options);
    let configuration = |kind: &str, name: &str, webhooks: Vec<Value>| {
        let mut metadata = options.cluster_metadata(name);
        metadata["labels"]["app"] = json!("sidecar-injector");
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata,
            "webhooks": webhooks})
    };
    let mut injecting = entries(options, "/inject");
    for entry in &mut injecting {
        entry["reinvocationPolicy"] = json!("IfNeeded");
    }
    let mut judging = entries(options, "/check");
    for entry in &mut judging {
        let name = entry["name"]
            .as_str()
            .unwrap_or_default()
            .replace("sidecar-injector.istio.io", "checker.remora.dev");
        entry["name"] = json!(name);
        // Advice: a cluster goes on without it.
        entry["failurePolicy"] = json!("Ignore");
    }
    // First: the chart takes what the default revision has beyond the others for the rest of the list.
    judging.insert(0, policies(options));
    [
        configuration("MutatingWebhookConfiguration", &mutating, injecting),
        configuration("ValidatingWebhookConfiguration", &validating, judging),
    ]
}

/// Policies of every namespace. Advice as well: one that comes while nothing answers is enforced fail-closed.
fn policies(options: &Options) -> Value {
    json!({
        "name": "policies.checker.remora.dev",
        "clientConfig": {"service": {"name": options.name(), "namespace": options.namespace, "path": "/policy",
            "port": 443}},
        "rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": ["security.istio.io"],
            "apiVersions": ["v1", "v1beta1"], "resources": ["authorizationpolicies", "peerauthentications"]}],
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1"]})
}

fn entries(options: &Options, path: &str) -> Vec<Value> {
    let absent = |key: &str| json!({"key": key, "operator": "DoesNotExist"});
    let is = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let is_not = |key: &str, value: &str| json!({"key": key, "operator": "NotIn", "values": [value]});
    let revision = options.revision_label();
    let wanted = is_not(INJECT, "false");
    let mut entries = vec![
        entry(
            options,
            path,
            "rev.namespace",
            [is(REVISION, revision), absent(ENABLED)],
            std::slice::from_ref(&wanted),
        ),
        entry(
            options,
            path,
            "rev.object",
            [absent(REVISION), absent(ENABLED)],
            &[wanted.clone(), is(REVISION, revision)],
        ),
    ];
    if options.revision.is_empty() {
        // The label of the namespace is enough, whatever else it says.
        let namespace = [
            is(ENABLED, "enabled"),
            is_not("kubernetes.io/metadata.name", &options.namespace),
        ];
        entries.push(entry(options, path, "namespace", namespace, &[wanted]));
        entries.push(entry(
            options,
            path,
            "object",
            [absent(ENABLED), absent(REVISION)],
            &[is(INJECT, "true"), absent(REVISION)],
        ));
    }
    entries
}

fn entry(options: &Options, path: &str, prefix: &str, namespace: [Value; 2], object: &[Value]) -> Value {
    let mut system: Vec<&str> = SYSTEM.to_vec();
    system.push(&options.namespace);
    let outside = json!({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": system});
    let [first, second] = namespace;
    json!({
        "name": format!("{prefix}.sidecar-injector.istio.io"),
        "clientConfig": {"service": {"name": options.name(), "namespace": options.namespace, "path": path, "port": 443}},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        "namespaceSelector": {"matchExpressions": [first, second, outside]},
        "objectSelector": {"matchExpressions": object},
        // Pods of the node's network are left alone; asking costs them a round trip and, without us, their start.
        "matchConditions": [{"name": "has-a-network-of-its-own",
            "expression": "!(has(object.spec.hostNetwork) && object.spec.hostNetwork)"}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1"]})
}
