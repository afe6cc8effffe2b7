//! Objects of a cluster, as documents.

use super::{Cluster, PAGE, explain, page};
use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, LogParams};
use serde_json::Value;
use std::time::Duration;

/// For a list, however many pages it has: large clusters take their time.
const LIST: Duration = Duration::from_mins(1);
const ONE: Duration = Duration::from_secs(10);

/// A kind of objects: group (empty for the core), version, kind and plural.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) &'static str,
);

impl Kind {
    fn resource(self) -> ApiResource {
        let Self(group, version, kind, plural) = self;
        ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: self.api_version(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        }
    }

    fn api_version(self) -> String {
        let Self(group, version, ..) = self;
        if group.is_empty() {
            version.to_owned()
        } else {
            format!("{group}/{version}")
        }
    }
}

impl Cluster {
    /// All objects of a kind in a namespace, or in all; `fields` selects by fields.
    pub(crate) fn list(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        fields: &str,
    ) -> anyhow::Result<Vec<Value>> {
        let mut wanted = ListParams::default().limit(PAGE);
        if !fields.is_empty() {
            wanted = wanted.fields(fields);
        }
        let api = self.api(kind, namespace);
        let listing = async {
            let mut found = Vec::new();
            loop {
                let page = page(&api, &wanted).await?;
                found.extend(page.items);
                match page.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => wanted = wanted.continue_token(&token),
                    None => return Ok(found),
                }
            }
        };
        let found = self.asked(LIST, listing);
        let found = found.with_context(|| format!("list the {} of {}", kind.3, self.name))?;
        Ok(found.into_iter().map(|object| document(kind, object)).collect())
    }

    /// One object, if it is there.
    pub(crate) fn get(&self, kind: Kind, namespace: &str, name: &str) -> anyhow::Result<Option<Value>> {
        let api = self.api(kind, Some(namespace));
        let found = self.asked(ONE, api.get_opt(name));
        let found = found.with_context(|| format!("get {} {namespace}/{name} of {}", kind.2, self.name))?;
        Ok(found.map(|object| document(kind, object)))
    }

    /// The last lines a container said.
    pub(crate) fn logs(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        lines: i64,
    ) -> anyhow::Result<String> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let wanted = LogParams {
            container: Some(container.to_owned()),
            tail_lines: Some(lines),
            ..LogParams::default()
        };
        let said = self.asked(ONE, api.logs(pod, &wanted));
        said.with_context(|| format!("read what {container} of {namespace}/{pod} said"))
    }

    /// What a port of a pod answers on a path, asked by the API server.
    pub(crate) fn ask(&self, namespace: &str, pod: &str, port: u16, path: &str) -> anyhow::Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}");
        let request = http::Request::get(path).body(Vec::new())?;
        self.asked(ONE, self.client.request_text(request))
    }

    /// The namespace of the context.
    pub(crate) fn default_namespace(&self) -> String {
        self.client.default_namespace().to_owned()
    }

    fn api(&self, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind.resource()),
            None => Api::all_with(self.client.clone(), &kind.resource()),
        }
    }

    fn asked<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, kube::Error>>,
    ) -> anyhow::Result<T> {
        match self.runtime.within(limit, work) {
            None => Err(anyhow::anyhow!("no answer within {} s", limit.as_secs())),
            Some(answer) => answer.map_err(|error| explain::failure(&error, self.plugin.as_ref())),
        }
    }
}

/// As `kubectl get -o yaml` shows it, without the API server's bookkeeping. Items of lists do not say what they are.
fn document(kind: Kind, object: DynamicObject) -> Value {
    let mut document = serde_json::to_value(object).unwrap_or_default();
    document["apiVersion"] = kind.api_version().into();
    document["kind"] = kind.2.into();
    if let Some(metadata) = document["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    document
}
