//! Finds the image a container asks for: in the local store, at a registry, or this very program.

use std::sync::Arc;

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
        if let Some(role) = role
            && self.store.image(&Reference::parse(text)?)?.is_none()
        {
            return Ok(self.demo(text, role)?);
        }
        let policy = view::text(container, &["imagePullPolicy"]).and_then(PullPolicy::parse);
        let credentials = self.credentials_of(pod, objects);
        let quiet: Progress = Arc::new(|_| {});
        let image = ensure(&self.store, &self.client, text, policy, &credentials, &quiet).await?;
        Ok(Provided { image, note: None })
    }

    /// The built-in demo application in place of an image, as the pod allows it.
    fn demo(&self, reference: &str, role: &str) -> Result<Provided, StoreError> {
        let mut image = own::image(&self.store, own::Own::Remora)?;
        let words = std::iter::once("demo").chain(role.split_whitespace());
        image.config.cmd = words.map(str::to_owned).collect();
        Ok(Provided {
            image,
            note: Some(format!(
                "{reference} is not on this machine: the built-in demo application plays {role}"
            )),
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
