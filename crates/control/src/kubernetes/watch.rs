//! Watches objects of an API server, for ever: what is listed, what comes, what goes.
//!
//! An API server that is away, or does not know a kind yet, is asked again with growing waits; what was known stays.

use super::world::Key;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Config, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;

/// What is watched.
#[derive(Debug, Clone)]
pub(super) struct Watched<T> {
    /// What the receiver calls it.
    pub(super) what: T,
    pub(super) resource: ApiResource,
    /// `None`: in all namespaces.
    pub(super) namespace: Option<String>,
    /// Labels the objects must have.
    pub(super) labels: Option<String>,
    /// The name they must have.
    pub(super) name: Option<&'static str>,
}

/// Something happened.
#[derive(Debug)]
pub(super) enum Seen {
    /// What follows is all there is, until [`Seen::Complete`].
    Begin,
    /// An object is there.
    Put(Box<Value>),
    /// An object is gone.
    Gone(Key),
    /// Everything was listed.
    Complete,
    /// Nothing can be seen just now.
    Failed(String),
}

/// `GROUP/VERSION`, kind and plural of something.
pub(super) fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let api_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version,
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

impl<T: Copy> Watched<T> {
    pub(super) fn api(&self, client: &kube::Client) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource),
            None => Api::all_with(client.clone(), &self.resource),
        }
    }

    /// Tells what happens until the receiver is gone.
    pub(super) async fn follow(self, client: kube::Client, seen: mpsc::Sender<(T, Seen)>) {
        let mut config = Config::default();
        config.label_selector.clone_from(&self.labels);
        config.field_selector = self.name.map(|name| format!("metadata.name={name}"));
        let events = watch(self.api(&client), config).default_backoff();
        tokio::pin!(events);
        while let Some(event) = events.next().await {
            let told = match event {
                Ok(event) => told(event),
                Err(error) => Seen::Failed(reason(&error)),
            };
            if seen.send((self.what, told)).await.is_err() {
                return;
            }
        }
    }
}

fn told(event: Event<DynamicObject>) -> Seen {
    match event {
        Event::Init => Seen::Begin,
        Event::InitDone => Seen::Complete,
        Event::Apply(object) | Event::InitApply(object) => match serde_json::to_value(object) {
            Ok(value) => Seen::Put(Box::new(value)),
            Err(error) => Seen::Failed(error.to_string()),
        },
        Event::Delete(object) => {
            let metadata = object.metadata;
            Seen::Gone((
                metadata.namespace.unwrap_or_default(),
                metadata.name.unwrap_or_default(),
            ))
        }
    }
}

/// The shortest true sentence about it.
fn reason(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.message.clone(),
        other => other.to_string(),
    }
}
