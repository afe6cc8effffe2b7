//! Everything a cluster needs to run a mesh, as objects. Pure.
//!
//! Names are Istio's where sidecars, people or tools rely on them (`istiod`, `istio-ca-root-cert`, labels); the webhook
//! configuration is named so that the API server calls it after all others.

mod chart;
mod rights;
mod webhooks;
mod workload;

pub use chart::{File, chart};

use remora_pod::merge::overlay;
use serde_json::{Value, json};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where the control plane lives.
    pub namespace: String,
    /// Empty: the default one.
    pub revision: String,
    /// The image of the control plane and of the sidecars: `HUB/remora:TAG`.
    pub image: String,
    /// As pods have it; `None` leaves it to Kubernetes.
    pub pull_policy: Option<String>,
    /// Control planes that run at once.
    pub replicas: u32,
    /// The trust domain of the mesh.
    pub trust_domain: String,
    /// The name of the cluster.
    pub cluster: String,
    /// Choices for the pods of the control plane, laid over [`pilot`].
    pub pilot: Value,
    /// Laid over the values of the installation.
    pub values: Value,
    /// Laid over the mesh configuration.
    pub mesh: Value,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespace: "istio-system".to_owned(),
            revision: String::new(),
            image: format!("remora:{}", env!("CARGO_PKG_VERSION")),
            pull_policy: None,
            replicas: 2,
            trust_domain: "cluster.local".to_owned(),
            cluster: "Kubernetes".to_owned(),
            pilot: json!({}),
            values: json!({}),
            mesh: json!({}),
        }
    }
}

/// What can be chosen for the pods of the control plane, with what is chosen unless said otherwise. Names are those of
/// Istio's charts where these have one.
pub fn pilot() -> Value {
    json!({
        // The control plane keeps the whole mesh in memory: about 90 MB for 100,000 workloads.
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        "nodeSelector": {},
        "tolerations": [],
        // Laid over: on nodes of their own, where there are enough.
        "affinity": {},
        // Without a control plane no pod of the mesh is created, so it must not be evicted before them.
        "priorityClassName": "system-cluster-critical",
        "imagePullSecrets": [],
        "podSecurityContext": {"runAsNonRoot": true, "runAsUser": 1337, "runAsGroup": 1337,
            "seccompProfile": {"type": "RuntimeDefault"}},
        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]}},
        "failurePolicy": "Fail",
        "maxWorkloadCertTTL": "24h",
        "networkPolicy": {
            "enabled": true,
            // Empty: from everywhere. The API server is often outside the cluster or on a node's network, and so may
            // workloads be.
            "discoveryFrom": [],
            "webhookFrom": [],
            // Probes of the kubelet come from the pod's own node, which is always allowed.
            "monitoringFrom": [{"namespaceSelector": {}}]}})
}

impl Options {
    /// What holds for the pods of the control plane.
    fn pilot(&self) -> Value {
        let mut chosen = pilot();
        overlay(&mut chosen, &self.pilot);
        chosen
    }

    /// `istiod`, or `istiod-REVISION`.
    fn name(&self) -> String {
        self.suffixed("istiod")
    }

    fn suffixed(&self, name: &str) -> String {
        if self.revision.is_empty() {
            name.to_owned()
        } else {
            format!("{name}-{}", self.revision)
        }
    }

    fn revision_label(&self) -> &str {
        if self.revision.is_empty() {
            "default"
        } else {
            &self.revision
        }
    }

    /// Where sidecars find the control plane.
    fn address(&self) -> String {
        format!("{}.{}.svc:15012", self.name(), self.namespace)
    }

    fn metadata(&self, name: &str) -> Value {
        let mut metadata = self.cluster_metadata(name);
        metadata["namespace"] = json!(self.namespace);
        metadata
    }

    fn cluster_metadata(&self, name: &str) -> Value {
        json!({"name": name, "labels": {"app": "istiod", "app.kubernetes.io/part-of": "remora",
            "istio.io/rev": self.revision_label()}})
    }
}

/// The cluster role of an installation; the revision may be empty.
pub(crate) fn role(revision: &str, namespace: &str) -> String {
    let separator = if revision.is_empty() { "" } else { "-" };
    format!("istiod{separator}{revision}-{namespace}")
}

/// The objects, in an order in which they can be applied.
pub fn objects(options: &Options) -> Vec<Value> {
    let mut all =
        vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options.namespace}})];
    all.extend(rights::objects(options));
    all.extend(config_maps(options));
    all.extend(workload::objects(options));
    // Last: the API server asks from the moment it knows them.
    all.extend(hooks(options));
    all
}

/// The webhook configurations. What happens to pods while nobody answers is up to the installer; advice is never waited
/// for.
fn hooks(options: &Options) -> [Value; 2] {
    let mut configurations = webhooks::objects(options);
    let policy = &options.pilot()["failurePolicy"];
    for configuration in &mut configurations {
        let injects = configuration["kind"] == "MutatingWebhookConfiguration";
        let entries = configuration["webhooks"].as_array_mut().filter(|_| injects);
        for entry in entries.into_iter().flatten() {
            entry["failurePolicy"] = policy.clone();
        }
    }
    configurations
}

fn config_maps(options: &Options) -> [Value; 2] {
    let map = |name: &str, data: Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": options.metadata(&options.suffixed(name)),
            "data": data})
    };
    [
        map("istio", json!({"mesh": mesh_config(options).to_string()})),
        map(
            "istio-sidecar-injector",
            json!({"values": values(options).to_string()}),
        ),
    ]
}

fn values(options: &Options) -> Value {
    let (hub, image, tag) = split(&options.image);
    let mut values = json!({
        "global": {"hub": hub, "tag": tag, "istioNamespace": options.namespace,
            "proxy": {"image": image}, "proxy_init": {"image": image},
            "multiCluster": {"clusterName": options.cluster}},
        "revision": options.revision});
    if let Some(policy) = &options.pull_policy {
        values["global"]["imagePullPolicy"] = json!(policy);
    }
    overlay(&mut values, &options.values);
    values
}

fn mesh_config(options: &Options) -> Value {
    let mut mesh = json!({"trustDomain": options.trust_domain, "rootNamespace": options.namespace,
        "defaultConfig": {"discoveryAddress": options.address()}});
    overlay(&mut mesh, &options.mesh);
    mesh
}

/// Hub, name and tag of an image.
fn split(image: &str) -> (String, String, String) {
    let parts = remora_pod::image::Image::split(image);
    let name = parts.name();
    let path = image
        .strip_suffix(&parts.tag.map_or_else(String::new, |tag| format!(":{tag}")))
        .unwrap_or(image);
    let hub = path.strip_suffix(name).unwrap_or_default().trim_end_matches('/');
    (
        hub.to_owned(),
        name.to_owned(),
        parts.tag.unwrap_or("latest").to_owned(),
    )
}

#[cfg(test)]
#[path = "install/tests.rs"]
mod tests;
