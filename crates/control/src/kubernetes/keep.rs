//! What the control plane keeps in the cluster: its root certificate, and copies of it for everybody.

use super::root;
use super::watch::resource;
use super::world::key_of;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use remora_mtls::{Authority, AuthorityError};
use serde_json::{Value, json};
use std::time::SystemTime;

// istio: names of the secret and of the copies, and their keys.
pub(super) const SECRET: &str = "istio-ca-secret";
pub(super) const COPY: &str = "istio-ca-root-cert";
pub(super) const COPY_KEY: &str = "root-cert.pem";
/// Who changes things, for the API server's records.
pub(super) const OWNER: &str = "remora";

/// The root certificate cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The API server.
    #[error("{doing}")]
    Api {
        /// What was being done.
        doing: String,
        /// Why it failed.
        #[source]
        source: Box<kube::Error>,
    },
    /// The secret is there, but not as it must be.
    #[error("secret {namespace}/{SECRET}: {problem}")]
    Secret {
        /// Where.
        namespace: String,
        /// What is wrong.
        problem: String,
    },
    /// The certificate itself.
    #[error("make a root certificate")]
    Authority(#[from] AuthorityError),
}

impl KeepError {
    /// Whether somebody else was faster.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source, .. } if is_conflict(source))
    }
}

fn failed(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> KeepError {
    let doing = doing.into();
    move |source| KeepError::Api {
        doing,
        source: Box::new(source),
    }
}

/// The authority in the secret, made at the first start. Of several control planes that start at once one makes it.
pub(super) async fn authority(client: &kube::Client, namespace: &str) -> Result<Authority, KeepError> {
    let kind = resource("", "v1", "Secret", "secrets");
    let secrets: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let read = async || {
        let secret = secrets.get_opt(SECRET).await;
        secret.map_err(failed(format!("read secret {namespace}/{SECRET}")))
    };
    if let Some(secret) = read().await? {
        return of_secret(&secret.data, namespace);
    }
    let now = SystemTime::now();
    let authority = Authority::generate("remora", now, root::LIFE)?;
    match create(client, namespace, root::made(&authority, now)).await {
        Ok(()) => Ok(authority),
        // Another control plane was faster: its root is ours.
        Err(KeepError::Api { source, .. }) if is_conflict(&source) => match read().await? {
            Some(secret) => of_secret(&secret.data, namespace),
            None => Err(KeepError::Secret {
                namespace: namespace.to_owned(),
                problem: "it was there and is gone".to_owned(),
            }),
        },
        Err(error) => Err(error),
    }
}

/// Writes the Secret where there is none.
pub(super) async fn create(client: &kube::Client, namespace: &str, fields: Value) -> Result<(), KeepError> {
    let kind = resource("", "v1", "Secret", "secrets");
    let secrets: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let mut secret = DynamicObject::new(SECRET, &kind).within(namespace);
    let annotations = fields["metadata"]["annotations"].clone();
    secret.metadata.annotations = serde_json::from_value(annotations).unwrap_or_default();
    secret.data = json!({"type": fields["type"], "data": fields["data"]});
    let created = secrets.create(&PostParams::default(), &secret).await;
    created
        .map(drop)
        .map_err(failed(format!("create secret {namespace}/{SECRET}")))
}

/// Writes the Secret over the version it was made of; somebody who was faster is not overwritten.
pub(super) async fn replace(client: &kube::Client, namespace: &str, secret: Value) -> Result<(), KeepError> {
    let kind = resource("", "v1", "Secret", "secrets");
    let secrets: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let Ok(secret) = serde_json::from_value::<DynamicObject>(secret) else {
        return Ok(());
    };
    match secrets.replace(SECRET, &PostParams::default(), &secret).await {
        // The change is seen in a moment.
        Err(error) if is_conflict(&error) => Ok(()),
        Err(error) => Err(failed(format!("write secret {namespace}/{SECRET}"))(error)),
        Ok(_) => Ok(()),
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    // k8s: a JSON patch whose test fails is not processable.
    matches!(error, kube::Error::Api(status) if matches!(status.code, 409 | 422))
}

fn of_secret(secret: &Value, namespace: &str) -> Result<Authority, KeepError> {
    root::authority(secret).map_err(|problem| KeepError::Secret {
        namespace: namespace.to_owned(),
        problem,
    })
}

/// What came of a webhook configuration.
pub(super) enum Trusted {
    /// It trusts the roots.
    Already,
    /// It does since now, and looks so.
    Now(Value),
    /// There is no such configuration any more.
    Gone,
}

/// Makes a webhook configuration trust these roots; nothing is written where it does.
pub(super) async fn trust(
    client: &kube::Client,
    kind: &ApiResource,
    configuration: &Value,
    roots: &str,
) -> Result<Trusted, KeepError> {
    let (_, name) = key_of(configuration);
    let change = bundles(configuration, roots).and_then(|change| serde_json::from_value(change).ok());
    let Some(change) = change else {
        return Ok(Trusted::Already);
    };
    let api: Api<DynamicObject> = Api::all_with(client.clone(), kind);
    let parameters = PatchParams {
        field_manager: Some(OWNER.to_owned()),
        ..PatchParams::default()
    };
    match api.patch(&name, &parameters, &Patch::Json::<()>(change)).await {
        Ok(written) => Ok(serde_json::to_value(written).map_or(Trusted::Already, Trusted::Now)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Trusted::Gone),
        Err(error) => Err(failed(format!("write the CA bundle of {name}"))(error)),
    }
}

/// With what copies go when the mesh is uninstalled: the cluster role of the installation, the last thing that gives the
/// control plane the right to put them back. `None`: it is not there, or may not be looked at.
pub(super) async fn owner(client: &kube::Client, role: &str) -> Option<Value> {
    let (group, kind) = ("rbac.authorization.k8s.io", "ClusterRole");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(group, "v1", kind, "clusterroles"));
    let uid = api.get_opt(role).await.ok()??.metadata.uid?;
    Some(json!({"apiVersion": format!("{group}/v1"), "kind": kind, "name": role, "uid": uid}))
}

/// Puts the roots where every pod of a namespace can mount them. `writer` is the revision's name: of two revisions each
/// keeps its own reference to what it goes with.
pub(super) async fn copy_roots(
    client: &kube::Client,
    namespace: &str,
    roots: &str,
    (writer, owner): (&str, Option<&Value>),
) -> Result<(), KeepError> {
    let kind = resource("", "v1", "ConfigMap", "configmaps");
    let maps: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let mut wanted = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": COPY, "labels": {"istio.io/config": "true"}}, "data": {COPY_KEY: roots}});
    if let Some(owner) = owner {
        wanted["metadata"]["ownerReferences"] = json!([owner]);
    }
    let parameters = PatchParams::apply(writer).force();
    match maps.patch(COPY, &parameters, &Patch::Apply(&wanted)).await {
        // A namespace that is going away takes nothing new.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) && is_ending(&status.message) => {
            Ok(())
        }
        Err(error) => Err(failed(format!("write config map {namespace}/{COPY}"))(error)),
        Ok(_) => Ok(()),
    }
}

fn is_ending(message: &str) -> bool {
    message.contains("being terminated") || message.contains("not found")
}

/// The change that makes every webhook of a configuration trust these roots; `None`: all of them do.
pub(super) fn bundles(configuration: &Value, roots: &str) -> Option<Value> {
    let wanted = STANDARD.encode(roots);
    let webhooks = configuration["webhooks"].as_array()?;
    let stale = webhooks
        .iter()
        .enumerate()
        .filter(|(_, webhook)| webhook["clientConfig"]["caBundle"].as_str() != Some(wanted.as_str()));
    let mut changes: Vec<Value> = stale
        .map(|(index, _)| {
            json!({"op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": wanted})
        })
        .collect();
    if changes.is_empty() {
        return None;
    }
    // Whoever changed it in the meantime wins: it is looked at again when the change is seen.
    let version = &configuration["metadata"]["resourceVersion"];
    changes.insert(
        0,
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": version}),
    );
    Some(Value::Array(changes))
}

#[cfg(test)]
mod tests {
    use super::bundles;
    use base64::Engine as _;
    use serde_json::json;

    #[test]
    fn only_stale_bundles_are_changed_and_only_in_the_version_that_was_seen() {
        let fresh = super::STANDARD.encode("roots");
        let seen = json!({"metadata": {"resourceVersion": "7"}, "webhooks": [
            {"clientConfig": {"caBundle": fresh}}, {"clientConfig": {}}]});
        let change = bundles(&seen, "roots").unwrap();
        assert_eq!(change[0]["value"], "7");
        assert_eq!(change[1]["path"], "/webhooks/1/clientConfig/caBundle");
        assert_eq!(change.as_array().unwrap().len(), 2);
        let mut after = seen.clone();
        let patch: json_patch::Patch = serde_json::from_value(change).unwrap();
        json_patch::patch(&mut after, &patch).unwrap();
        assert_eq!(bundles(&after, "roots"), None);
    }
}
