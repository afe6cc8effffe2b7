//! Manifests and indexes, OCI's and Docker's.

use super::digest::{Digest, DigestError};
use serde::Deserialize;
use std::fmt;

/// What a registry may answer with; sent along when asking.
pub(crate) const MEDIA_TYPES: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// Bytes a manifest or a configuration may have.
pub(crate) const DOCUMENT_MAX: u64 = 4 << 20;

/// Content by digest, size and kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) media_type: String,
}

/// One image: its configuration and layers, the lowest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// What a document turned out to be.
#[derive(Debug)]
pub(crate) enum Document {
    Manifest(Manifest),
    /// The entry for this machine of an index.
    Index(Descriptor),
}

/// A manifest that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not the JSON expected.
    #[error("read the manifest")]
    Json(#[from] serde_json::Error),
    /// A digest is not one.
    #[error("read the manifest")]
    Digest(#[from] DigestError),
    /// Nothing for this machine in it.
    #[error("the image is for {offered}, not for linux/{}", go_arch())]
    Platform {
        /// What there is.
        offered: String,
    },
    /// Neither manifest nor index.
    #[error("neither a manifest nor an index")]
    Kind,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    config: Option<RawDescriptor>,
    layers: Option<Vec<RawDescriptor>>,
    manifests: Option<Vec<RawDescriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    digest: String,
    size: u64,
    #[serde(default)]
    media_type: String,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)
    }
}

/// This machine in the words of Go.
pub(crate) fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl RawDescriptor {
    fn checked(&self) -> Result<Descriptor, DigestError> {
        Ok(Descriptor {
            digest: Digest::parse(&self.digest)?,
            size: self.size,
            media_type: self.media_type.clone(),
        })
    }

    fn is_ours(&self) -> bool {
        let platform = self.platform.as_ref();
        platform.is_none_or(|p| p.os == "linux" && p.architecture == go_arch())
    }
}

/// Reads a document.
pub(crate) fn parse(json: &[u8]) -> Result<Document, ManifestError> {
    let raw: Raw = serde_json::from_slice(json)?;
    if let (Some(config), Some(layers)) = (&raw.config, &raw.layers) {
        let layers = layers
            .iter()
            .map(RawDescriptor::checked)
            .collect::<Result<_, _>>()?;
        return Ok(Document::Manifest(Manifest {
            config: config.checked()?,
            layers,
        }));
    }
    let entries = raw.manifests.ok_or(ManifestError::Kind)?;
    choose(&entries, None)
}

/// The entry of an index with this name (an archive's tag), for this machine.
pub(crate) fn parse_named(json: &[u8], name: &str) -> Result<Document, ManifestError> {
    let raw: Raw = serde_json::from_slice(json)?;
    choose(&raw.manifests.ok_or(ManifestError::Kind)?, Some(name))
}

/// Names that OCI layouts and containerd's exports give to their entries.
pub(crate) const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];

fn choose(entries: &[RawDescriptor], name: Option<&str>) -> Result<Document, ManifestError> {
    let named = |entry: &&RawDescriptor| {
        name.is_none_or(|wanted| {
            NAMES
                .iter()
                .any(|key| entry.annotations.get(*key).is_some_and(|n| n == wanted))
        })
    };
    let found = entries.iter().filter(named).find(|entry| entry.is_ours());
    let found = found.ok_or_else(|| {
        let offered = entries.iter().filter_map(|e| e.platform.as_ref());
        let offered: Vec<String> = offered.map(ToString::to_string).collect();
        ManifestError::Platform {
            offered: if offered.is_empty() {
                "nothing".into()
            } else {
                offered.join(", ")
            },
        }
    })?;
    Ok(Document::Index(found.checked()?))
}
