//! The control plane itself.

use super::Options;
use remora_pod::merge::overlay;
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
    let pilot = options.pilot();
    if pilot["networkPolicy"]["enabled"] == true {
        objects.push(network_policy(options, &name, &selector, &pilot["networkPolicy"]));
    }
    if pilot["priorityClassName"] != "" {
        objects.push(quota(options, &name, &pilot["priorityClassName"]));
    }
    objects
}

/// Which ports can be reached, and from where.
fn network_policy(options: &Options, name: &str, selector: &Value, choices: &Value) -> Value {
    let rule =
        |port: u16, from: &str| json!({"ports": [{"port": port, "protocol": "TCP"}], "from": choices[from]});
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": options.metadata(name),
        "spec": {"podSelector": {"matchLabels": selector}, "policyTypes": ["Ingress"], "ingress": [
            rule(15012, "discoveryFrom"),
            rule(15017, "webhookFrom"),
            rule(15014, "monitoringFrom")]}})
}

/// Some providers admit pods of the system's priority classes only where a quota names the class. It limits nothing else.
fn quota(options: &Options, name: &str, class: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": options.metadata(name),
        "spec": {"hard": {"pods": "1000"}, "scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": [class]}]}}})
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
    let pilot = options.pilot();
    let mut affinity = apart(selector);
    overlay(&mut affinity, &pilot["affinity"]);
    let pod = json!({
        "serviceAccountName": name,
        "securityContext": pilot["podSecurityContext"],
        "affinity": affinity,
        "nodeSelector": pilot["nodeSelector"],
        "tolerations": pilot["tolerations"],
        "priorityClassName": pilot["priorityClassName"],
        "imagePullSecrets": pilot["imagePullSecrets"],
        "containers": [container(options, &pilot)]});
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

fn container(options: &Options, pilot: &Value) -> Value {
    let from = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let mut container = json!({
        "name": "discovery",
        "image": options.image,
        "args": ["control"],
        "env": [
            {"name": "POD_NAMESPACE", "valueFrom": from("metadata.namespace")},
            {"name": "REVISION", "value": options.revision},
            {"name": "CLUSTER_ID", "value": options.cluster},
            {"name": "TRUST_DOMAIN", "value": options.trust_domain},
            {"name": "MAX_WORKLOAD_CERT_TTL", "value": pilot["maxWorkloadCertTTL"]}],
        "ports": [
            {"name": "discovery", "containerPort": 15012},
            {"name": "webhook", "containerPort": 15017},
            {"name": "monitoring", "containerPort": 15014}],
        // Liveness is asked only after this: the first start may be slow.
        "startupProbe": {"httpGet": {"path": "/live", "port": 15014}, "periodSeconds": 1, "timeoutSeconds": 5,
            "failureThreshold": 60},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 15014}, "periodSeconds": 3, "timeoutSeconds": 5},
        "livenessProbe": {"httpGet": {"path": "/live", "port": 15014}, "periodSeconds": 10, "timeoutSeconds": 5},
        "resources": pilot["resources"],
        "securityContext": pilot["securityContext"]});
    if let Some(policy) = &options.pull_policy {
        container["imagePullPolicy"] = json!(policy);
    }
    container
}
