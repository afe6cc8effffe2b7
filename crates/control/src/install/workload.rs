//! The control plane itself.

use super::Options;
use serde_json::{Value, json};

pub(super) fn objects(options: &Options) -> Vec<Value> {
    let name = options.name();
    let selector = json!({"app": "istiod", "istio.io/rev": options.revision_label()});
    let mut objects = vec![
        service(options, &name, &selector),
        deployment(options, &name, &selector),
    ];
    if options.replicas > 1 {
        objects.push(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": options.metadata(&name),
            "spec": {"minAvailable": 1, "selector": {"matchLabels": selector}}}));
    }
    objects
}

fn service(options: &Options, name: &str, selector: &Value) -> Value {
    let port = |name: &str, port: u16, target: u16| json!({"name": name, "port": port, "targetPort": target, "protocol": "TCP"});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": options.metadata(name),
        "spec": {"selector": selector, "ports": [
            port("https-dns", 15012, 15012),
            port("https-webhook", 443, 15017),
            port("http-monitoring", 15014, 15014)]}})
}

fn deployment(options: &Options, name: &str, selector: &Value) -> Value {
    let mut labels = selector.clone();
    // Its own sidecar would wait for itself.
    labels["sidecar.istio.io/inject"] = json!("false");
    let pod = json!({
        "serviceAccountName": name,
        "securityContext": {"runAsNonRoot": true, "runAsUser": 1337, "runAsGroup": 1337,
            "seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": apart(selector),
        "containers": [container(options)]});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": options.metadata(name),
        "spec": {"replicas": options.replicas, "selector": {"matchLabels": selector},
            "strategy": {"rollingUpdate": {"maxSurge": "100%", "maxUnavailable": "25%"}},
            "template": {"metadata": {"labels": labels}, "spec": pod}}})
}

/// On nodes of their own, where there are enough.
fn apart(selector: &Value) -> Value {
    json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100,
        "podAffinityTerm": {"labelSelector": {"matchLabels": selector},
            "topologyKey": "kubernetes.io/hostname"}}]}})
}

fn container(options: &Options) -> Value {
    let from = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let mut container = json!({
        "name": "discovery",
        "image": options.image,
        "args": ["control"],
        "env": [
            {"name": "POD_NAMESPACE", "valueFrom": from("metadata.namespace")},
            {"name": "REVISION", "value": options.revision},
            {"name": "CLUSTER_ID", "value": options.cluster},
            {"name": "TRUST_DOMAIN", "value": options.trust_domain}],
        "ports": [
            {"name": "discovery", "containerPort": 15012},
            {"name": "webhook", "containerPort": 15017},
            {"name": "monitoring", "containerPort": 15014}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 15014}, "periodSeconds": 3, "timeoutSeconds": 5},
        "livenessProbe": {"httpGet": {"path": "/live", "port": 15014}, "periodSeconds": 10, "timeoutSeconds": 5},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]}}});
    if let Some(policy) = &options.pull_policy {
        container["imagePullPolicy"] = json!(policy);
    }
    container
}
