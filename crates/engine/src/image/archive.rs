//! Images from files: an OCI layout (a directory, or an archive of one), or what `docker save` writes.

mod source;

use super::config::Config;
use super::digest::Digest;
use super::manifest::{self, DOCUMENT_MAX, Descriptor, Document, Manifest, ManifestError};
use super::reference::{Reference, ReferenceError};
use crate::store::{Store, StoreError};
use serde::Deserialize;
use source::{Source, Verified};
use std::io::{self, Read};
use std::path::Path;

/// Why an archive could not be taken in.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Reading it.
    #[error("read {what} of the archive")]
    Read {
        /// Which part.
        what: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Not an archive of images.
    #[error("neither an OCI layout nor an archive written by docker save")]
    Unknown,
    /// Nothing says what the image is called.
    #[error("the archive does not say what its image is called")]
    Nameless,
    /// A name in it is not one.
    #[error(transparent)]
    Name(#[from] ReferenceError),
    /// A manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A list in it is not the JSON expected.
    #[error("read the list of the archive")]
    Json(#[from] serde_json::Error),
    /// Something does not fit, or the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ImportError {
    /// What a person can do about it, if anything.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Nameless => Some("give the name it is to have"),
            Self::Store(error) => error.hint(),
            _ => None,
        }
    }
}

/// One image as `docker save` lists it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

/// What was taken from an archive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// The images that are in the store now.
    pub references: Vec<Reference>,
    /// Device files of the layers, which were left out.
    pub devices: usize,
}

/// Takes all images of an archive, or of a directory, into the store; `name` is for archives that do not name theirs.
pub fn import(store: &Store, path: &Path, name: Option<&Reference>) -> Result<Imported, ImportError> {
    let source = Source::open(path, store).map_err(|source| ImportError::Read {
        what: path.display().to_string(),
        source,
    })?;
    if source.has("manifest.json") {
        return import_saved(store, &source, name);
    }
    if source.has("index.json") {
        return import_layout(store, &source, name);
    }
    Err(ImportError::Unknown)
}

fn document(source: &Source, name: &str) -> Result<Vec<u8>, ImportError> {
    let failed = |error: io::Error| ImportError::Read {
        what: name.to_owned(),
        source: error,
    };
    let mut bytes = Vec::new();
    let reader = source.open_file(name).map_err(failed)?;
    let got = reader
        .take(DOCUMENT_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if u64::try_from(got).unwrap_or(u64::MAX) > DOCUMENT_MAX {
        return Err(failed(io::Error::other("too large for a document")));
    }
    Ok(bytes)
}

fn import_saved(store: &Store, source: &Source, name: Option<&Reference>) -> Result<Imported, ImportError> {
    let saved: Vec<Saved> = serde_json::from_slice(&document(source, "manifest.json")?)?;
    let mut imported = Imported::default();
    for image in &saved {
        let tags = image.repo_tags.as_deref().unwrap_or_default();
        let names = match name {
            Some(name) => Ok(vec![name.clone()]),
            None => tags
                .iter()
                .map(|t| Reference::parse(t))
                .collect::<Result<Vec<_>, _>>(),
        }?;
        if names.is_empty() {
            return Err(ImportError::Nameless);
        }
        let json = document(source, &image.config)?;
        let id = Digest::of(&json);
        let open = |index: usize| -> io::Result<Box<dyn Read>> {
            let file = image.layers.get(index).ok_or(io::ErrorKind::NotFound)?;
            source.open_file(file)
        };
        imported.devices += take(store, &json, &id, image.layers.len(), &open)?;
        for reference in names {
            store.name(&reference, &id, "")?;
            imported.references.push(reference);
        }
    }
    Ok(imported)
}

/// Keeps the configuration and unpacks what is missing. The number is of the devices that were left out.
fn take(
    store: &Store,
    json: &[u8],
    id: &Digest,
    layers: usize,
    open: &dyn Fn(usize) -> io::Result<Box<dyn Read>>,
) -> Result<usize, ImportError> {
    let config = fitting(json, layers)?;
    let mut devices = 0;
    for index in store.layers_present(&config.diff_ids)..config.diff_ids.len() {
        let reader = open(index).map_err(|source| ImportError::Read {
            what: format!("layer {}", index + 1),
            source,
        })?;
        devices += store.add_layer(reader, &config.diff_ids, index)?.devices;
    }
    store.put_blob(json, id)?;
    Ok(devices)
}

/// A configuration that fits its manifest and this machine.
pub(crate) fn fitting(json: &[u8], layers: usize) -> Result<Config, StoreError> {
    let config = Config::parse(json)?;
    if config.diff_ids.len() != layers {
        return Err(StoreError::Layers {
            layers,
            diff_ids: config.diff_ids.len(),
        });
    }
    if !config.architecture.is_empty() && config.architecture != manifest::go_arch() {
        return Err(StoreError::Architecture(config.architecture));
    }
    Ok(config)
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

fn import_layout(store: &Store, source: &Source, name: Option<&Reference>) -> Result<Imported, ImportError> {
    let index = document(source, "index.json")?;
    let mut imported = Imported::default();
    if let Some(name) = name {
        let manifest = walk(source, manifest::parse(&index)?)?;
        imported.devices += take_manifest(store, source, &manifest, name)?;
        imported.references.push(name.clone());
        return Ok(imported);
    }
    let list: Index = serde_json::from_slice(&index)?;
    for entry in &list.manifests {
        // A bare tag is no name.
        let names = manifest::NAMES
            .iter()
            .rev()
            .filter_map(|key| entry.annotations.get(*key));
        let Some(text) = names.into_iter().find(|n| n.contains(['/', ':'])) else {
            continue;
        };
        let reference = Reference::parse(text)?;
        let manifest = walk(source, manifest::parse_named(&index, text)?)?;
        imported.devices += take_manifest(store, source, &manifest, &reference)?;
        imported.references.push(reference);
    }
    if imported.references.is_empty() {
        return Err(ImportError::Nameless);
    }
    imported.references.dedup();
    Ok(imported)
}

/// Indexes may hold indexes.
const DEPTH_MAX: usize = 4;

fn walk(source: &Source, mut document: Document) -> Result<Manifest, ImportError> {
    for _ in 0..DEPTH_MAX {
        match document {
            Document::Manifest(manifest) => return Ok(manifest),
            Document::Index(entry) => document = manifest::parse(&blob(source, &entry)?)?,
        }
    }
    Err(ManifestError::Kind.into())
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/{}", digest.as_str().replacen(':', "/", 1))
}

fn blob(source: &Source, descriptor: &Descriptor) -> Result<Vec<u8>, ImportError> {
    let name = blob_name(&descriptor.digest);
    let bytes = document(source, &name)?;
    let mut verified = Verified::new(&bytes[..], descriptor);
    io::copy(&mut verified, &mut io::sink()).map_err(|source| ImportError::Read { what: name, source })?;
    Ok(bytes)
}

fn take_manifest(
    store: &Store,
    source: &Source,
    manifest: &Manifest,
    reference: &Reference,
) -> Result<usize, ImportError> {
    let json = blob(source, &manifest.config)?;
    let id = &manifest.config.digest;
    let open = |index: usize| -> io::Result<Box<dyn Read>> {
        let layer = manifest.layers.get(index).ok_or(io::ErrorKind::NotFound)?;
        let reader = source.open_file(&blob_name(&layer.digest))?;
        Ok(Box::new(Verified::new(reader, layer)))
    };
    let devices = take(store, &json, id, manifest.layers.len(), &open)?;
    store.name(reference, id, "")?;
    Ok(devices)
}
