//! Finds the image a container asks for: in the local store, at a registry, or this very program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use remora_pod::{object, view};
use serde_json::Value;

use crate::image::{Image, PullPolicy, Reference, own};
use crate::objects::Objects;
use crate::registry::{Client, Credentials, Event, Progress, PullError, ensure};
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
        let (credentials, note) = self.credentials_of(pod, objects);
        let left_out = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&left_out);
        let progress: Progress = Arc::new(move |event| {
            if let Event::Skipped { devices, .. } = event {
                count.fetch_add(devices, Ordering::Relaxed);
            }
        });
        let found = ensure(&self.store, &self.client, text, policy, &credentials, &progress).await;
        let note = with_devices(note, left_out.load(Ordering::Relaxed));
        match (found, role) {
            (Ok(image), _) => Ok(Provided {
                image,
                note,
                stands_in: false,
            }),
            // A registry that says no has been reached; that is an answer.
            (Err(error @ PullError::Request { .. }), Some(role)) => {
                let why = format!("cannot be had ({})", crate::pod::chain(&error));
                Ok(self.demo(text, role, &why)?)
            }
            (Err(error), _) => Err(explained(error, note)),
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

    /// What registries want to see: ours, and over it what the pod's pull secrets say. The text is about what of them
    /// is ignored.
    fn credentials_of(&self, pod: &Value, objects: &Objects) -> (Credentials, Option<String>) {
        let mut all = self.credentials.clone();
        let mut notes = Vec::new();
        for named in view::list(pod, &["spec", "imagePullSecrets"]) {
            let name = view::name(named);
            let secret = objects.secret(object::namespace(pod), name);
            let text = secret.and_then(|s| s.get(".dockerconfigjson"));
            // k8s: a pull secret that is missing or broken is passed over; the registry has the last word.
            let read = text.map(|t| Credentials::from_secret(&String::from_utf8_lossy(t)));
            let Some(Ok((own, ignored))) = read else { continue };
            all.extend(own);
            if !ignored.is_empty() {
                let helpers = ignored.join(", ");
                notes.push(format!(
                    "pull secret {name} names credential helpers ({helpers}): a Secret cannot choose programs of this \
                     machine, they are ignored"
                ));
            }
        }
        (all, (!notes.is_empty()).then(|| notes.join("; ")))
    }
}

/// Adds that device files of an image were left out.
fn with_devices(note: Option<String>, devices: usize) -> Option<String> {
    if devices == 0 {
        return note;
    }
    let more = format!("{devices} device files of the image are left out; a container gets its own devices");
    Some(note.map_or(more.clone(), |note| format!("{note}; {more}")))
}

/// A registry that refuses may want the very credentials that were ignored.
fn explained(error: PullError, note: Option<String>) -> PullError {
    match (error, note) {
        (PullError::Status { url, status, message }, Some(note)) if matches!(status, 401 | 403) => {
            let said = [message, note].into_iter().filter(|text| !text.is_empty());
            let message = said.collect::<Vec<_>>().join("; ");
            PullError::Status { url, status, message }
        }
        (error, _) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pull_secrets_run_no_programs_of_this_machine() {
        let dir = tempfile::tempdir().unwrap();
        let provision = Provision {
            store: Arc::new(Store::open(dir.path().join("store")).unwrap()),
            client: Client::new(crate::registry::Settings::default()).unwrap(),
            credentials: Credentials::default(),
            pull_first: false,
            said: AtomicBool::new(false),
        };
        let config = json!({"auths": {"a.example": {"username": "u", "password": "p"}},
            "credsStore": "store", "credHelpers": {"b.example": "helper"}});
        let mut objects = Objects::default();
        let secret = json!({"kind": "Secret", "metadata": {"name": "pull", "namespace": "shop"},
            "stringData": {".dockerconfigjson": config.to_string()}});
        objects.add(&secret, "default").unwrap();
        let pod =
            json!({"metadata": {"namespace": "shop"}, "spec": {"imagePullSecrets": [{"name": "pull"}]}});
        let (credentials, note) = provision.credentials_of(&pod, &objects);
        assert!(!credentials.has_helpers());
        let note = note.unwrap();
        assert!(
            note.contains("secret pull") && note.contains("helper, store"),
            "{note}"
        );
        // The operator's own helpers stay.
        let own = Credentials::from_json(r#"{"credsStore": "mine"}"#).unwrap();
        let provision = Provision {
            credentials: own,
            ..provision
        };
        let (credentials, _) = provision.credentials_of(&pod, &objects);
        assert!(credentials.has_helpers());
        assert_eq!(provision.credentials_of(&json!({}), &objects).1, None);
    }
}
