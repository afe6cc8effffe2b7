//! Images: what they are called, what they say about themselves, and how they become a root file system.
//!
//! An [`Image`] is ready to run: its layers lie unpacked in the [`Store`](crate::store::Store), verified, and its
//! [`Config`] is read. Where it came from (a registry, an archive, this very binary) makes no difference any more.

pub mod archive;
pub mod config;
pub mod digest;
pub(crate) mod manifest;
pub mod own;
pub mod reference;
pub(crate) mod unpack;
pub mod user;

pub use config::Config;
pub use digest::Digest;
pub use reference::Reference;

use crate::container::Root;
use std::io;
use std::path::{Path, PathBuf};

/// An image that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Digest of its configuration (k8s: `imageID`).
    pub id: Digest,
    /// What it says about itself.
    pub config: Config,
    /// Unpacked layers, the topmost first.
    pub layers: Vec<PathBuf>,
}

impl Image {
    /// A root file system whose changes go below `dir`, which is made.
    pub fn root(&self, dir: &Path) -> io::Result<Root> {
        let (upper, work) = (dir.join("upper"), dir.join("work"));
        for path in [&upper, &work] {
            std::fs::create_dir_all(path)?;
        }
        Ok(Root::Overlay {
            lower: self.layers.clone(),
            upper,
            work,
        })
    }

    /// The user a container of this image runs as, when the pod does not say.
    pub fn user(&self) -> Result<user::Identity, user::UserError> {
        user::resolve(&self.config.user, &self.layers)
    }
}

/// When to ask a registry (k8s: `imagePullPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// Each time: the tag may have moved.
    Always,
    /// Only when the image is not in the store.
    IfNotPresent,
    /// Not at all.
    Never,
}

impl PullPolicy {
    /// What a pod that does not say means. k8s: `latest`, written or not, is asked for each time.
    pub fn usual(reference: &Reference) -> Self {
        match (&reference.digest, reference.tag.as_str()) {
            (None, "latest") => Self::Always,
            _ => Self::IfNotPresent,
        }
    }

    /// From the field of a container.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Always" => Some(Self::Always),
            "IfNotPresent" => Some(Self::IfNotPresent),
            "Never" => Some(Self::Never),
            _ => None,
        }
    }
}
