//! What the control plane may do: the least that its work needs.

use super::Options;
use serde_json::{Value, json};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn objects(options: &Options) -> Vec<Value> {
    let name = options.name();
    let everywhere = super::role(&options.revision, &options.namespace);
    let account = json!([{"kind": "ServiceAccount", "name": name, "namespace": options.namespace}]);
    let role = |kind: &str, metadata: Value, rules: Value| json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": metadata, "rules": rules});
    let binding = |kind: &str, of: &str, role: &str, metadata: Value| {
        json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": metadata,
            "roleRef": {"apiGroup": GROUP, "kind": of, "name": role}, "subjects": account})
    };
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": options.metadata(&name)}),
        role(
            "ClusterRole",
            options.cluster_metadata(&everywhere),
            cluster_rules(options),
        ),
        binding(
            "ClusterRoleBinding",
            "ClusterRole",
            &everywhere,
            options.cluster_metadata(&everywhere),
        ),
        role("Role", options.metadata(&name), own_rules()),
        binding("RoleBinding", "Role", &name, options.metadata(&name)),
    ]
}

fn cluster_rules(options: &Options) -> Value {
    let watch = ["get", "list", "watch"];
    let hooks = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
    json!([
        {"apiGroups": [""], "resources": ["pods", "services", "nodes", "namespaces"], "verbs": watch},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": watch},
        {"apiGroups": ["security.istio.io"], "resources": ["authorizationpolicies", "peerauthentications"],
            "verbs": watch},
        // What is not enforced as written. The status only: the control plane cannot change what a policy allows.
        {"apiGroups": ["security.istio.io"],
            "resources": ["authorizationpolicies/status", "peerauthentications/status"], "verbs": ["patch"]},
        {"apiGroups": ["opentelemetry.io"], "resources": ["instrumentations"], "verbs": watch},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        // Only the copies of the roots. Rights to create cannot be limited to a name.
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["istio-ca-root-cert"],
            "verbs": ["get", "list", "watch", "patch", "update"]},
        {"apiGroups": ["admissionregistration.k8s.io"], "resources": hooks, "verbs": ["list", "watch"]},
        {"apiGroups": ["admissionregistration.k8s.io"], "resources": hooks,
            "resourceNames": super::webhooks::names(options), "verbs": ["get", "patch"]},
        // Itself: copies go with it.
        {"apiGroups": [GROUP], "resources": ["clusterroles"],
            "resourceNames": [super::role(&options.revision, &options.namespace)], "verbs": ["get"]},
    ])
}

/// In its own namespace.
fn own_rules() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["istio-ca-secret"],
            "verbs": ["get", "list", "watch", "update"]},
    ])
}
