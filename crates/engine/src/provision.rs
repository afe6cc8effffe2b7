//! Finds the image a container asks for: in the local store, at a registry, or this very program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remora_pod::{object, view};
use serde_json::Value;

use crate::image::{Image, PullPolicy, Reference, own};
use crate::objects::Objects;
use crate::registry::{Client, Credentials, Progress, PullError, ensure};
use crate::store::{Store, StoreError};

/// A pod says by this annotation which part of the built-in demo application stands in for a container whose image
/// is not on this machine: `remora.dev/demo.CONTAINER: details`.
pub const DEMO: &str = "remora.dev/demo.";

/// Where images come from.
pub struct Provision {
    /// Images of this machine.
    pub store: Arc<Store>,
    /// Reaches registries.
    pub client: Client,
    /// What registries want to see, besides the Secrets of pods.
    pub credentials: Credentials,
    /// Registries are asked for images that the demo application could stand in for.
    pub pull_first: bool,
    /// That the demo application stands in is said once.
    pub said: AtomicBool,
}

impl std::fmt::Debug for Provision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provision")
            .field("store", &self.store.root())
            .finish_non_exhaustive()
    }
}

/// An image, and a word if it is not quite what was asked for.
#[derive(Debug, Clone)]
pub struct Provided {
    /// The image.
    pub image: Image,
    /// What a person should know.
    pub note: Option<String>,
    /// The demo application stands in: what the container would run is another program's business.
    pub stands_in: bool,
}

impl Provided {
    /// The container as it is to be run with this image.
    pub fn container(&self, container: &Value) -> Value {
        let mut container = container.clone();
        if let Some(map) = container.as_object_mut().filter(|_| self.stands_in) {
            map.remove("command");
            map.remove("args");
        }
        container
    }
}

impl Provision {
    /// The image of a container.
    pub async fn image(
        &self,
        pod: &Value,
        container: &Value,
        objects: &Objects,
    ) -> Result<Provided, PullError> {
        let text = view::text(container, &["image"]).unwrap_or_default();
        let role = object::annotation(pod, &format!("{DEMO}{}", view::name(container)));
        let role = match role {
            Some(role) if self.store.image(&Reference::parse(text)?)?.is_none() => Some(role),
            _ => None,
        };
        if let Some(role) = role.filter(|_| !self.pull_first) {
            return Ok(self.demo(
                text,
                role,
                "is not on this machine (--images pull asks its registry)",
            )?);
        }
        let policy = view::text(container, &["imagePullPolicy"]).and_then(PullPolicy::parse);
        let credentials = self.credentials_of(pod, objects);
        let quiet: Progress = Arc::new(|_| {});
        let found = ensure(&self.store, &self.client, text, policy, &credentials, &quiet).await;
        match (found, role) {
            (Ok(image), _) => Ok(Provided {
                image,
                note: None,
                stands_in: false,
            }),
            // A registry that says no has been reached; that is an answer.
            (Err(error @ PullError::Request { .. }), Some(role)) => {
                let why = format!("cannot be had ({})", crate::pod::chain(&error));
                Ok(self.demo(text, role, &why)?)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// The built-in demo application in place of an image, as the pod allows it.
    fn demo(&self, reference: &str, role: &str, why: &str) -> Result<Provided, StoreError> {
        let mut image = own::image(&self.store, own::Own::Remora)?;
        let words = std::iter::once("demo").chain(role.split_whitespace());
        image.config.cmd = words.map(str::to_owned).collect();
        Ok(Provided {
            image,
            note: (!self.said.swap(true, Ordering::Relaxed)).then(|| {
                format!("{reference} {why}: the built-in demo application plays this part, and others alike")
            }),
            stands_in: true,
        })
    }

    /// What registries want to see: ours, and over it what the pod's pull secrets say.
    fn credentials_of(&self, pod: &Value, objects: &Objects) -> Credentials {
        let mut all = self.credentials.clone();
        for named in view::list(pod, &["spec", "imagePullSecrets"]) {
            let secret = objects.secret(object::namespace(pod), view::name(named));
            let text = secret.and_then(|s| s.get(".dockerconfigjson"));
            // k8s: a pull secret that is missing or broken is passed over; the registry has the last word.
            if let Some(Ok(own)) = text.map(|t| Credentials::from_json(&String::from_utf8_lossy(t))) {
                all.extend(own);
            }
        }
        all
    }
}
