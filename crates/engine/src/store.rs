//! The local image store: content by digest, unpacked layers, and names.
//!
//! ```text
//! blobs/sha256/HEX    manifests and configurations, as they came
//! layers/HEX          unpacked layers, named by everything below and including them
//! images/HEX.json     what a name stands for
//! tmp/PID-N           not finished; partial-HEX is a download that can be taken up again
//! ```
//!
//! Only the user of the store gets into its directories: layers have set-user-id files of their images, with the owners
//! of their images, which are no programs of this machine (class of CVE-2021-41091). A container reaches its layers
//! through overlayfs, which looks at the paths as the user that mounts.
//!
//! Everything appears by a rename, whole and verified, so any number of processes may use a store, and one that is
//! killed leaves nothing but files in `tmp`, which the next one removes.

mod partial;
pub mod private;

pub(crate) use partial::Partial;

use crate::image::digest::{Digest, Hasher};
use crate::image::unpack::{self, Limits, Skipped, UnpackError};
use crate::image::{Config, Image, Reference, config::ConfigError};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A directory with images.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    /// One pull of a name at a time.
    busy: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file of the store.
    #[error("{what} {}", path.display())]
    Io {
        /// What was being done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Content is not what its digest says.
    #[error("{expected} has the content of {found}")]
    Digest {
        /// As it was asked for.
        expected: Digest,
        /// As it was.
        found: Digest,
    },
    /// Content has another size than promised.
    #[error("{digest} has not the size of {expected} bytes that was promised")]
    Size {
        /// Of what.
        digest: Digest,
        /// What was promised.
        expected: u64,
    },
    /// A layer.
    #[error("unpack layer {number}")]
    Layer {
        /// From the bottom, beginning with 1.
        number: usize,
        /// Why not.
        #[source]
        source: UnpackError,
    },
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration and the manifest do not fit.
    #[error("the manifest has {layers} layers, the configuration {diff_ids}")]
    Layers {
        /// In the manifest.
        layers: usize,
        /// In the configuration.
        diff_ids: usize,
    },
    /// For another machine.
    #[error("the image is for {0}, not for this machine")]
    Architecture(String),
}

impl StoreError {
    /// What a person can do about it, if anything.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Layer { source, .. } => source.hint(),
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Some("the disk is full; make room or put the image store elsewhere")
            }
            Self::Digest { .. } | Self::Size { .. } => Some("the content is damaged or was tampered with"),
            _ => None,
        }
    }
}

/// What a name stands for.
#[derive(Serialize, Deserialize)]
struct Record {
    reference: String,
    config: String,
    /// Of the manifest or index that was asked for; empty for images from elsewhere.
    source: String,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { what, path, source }
}

impl Store {
    /// Opens a store, and makes it if need be. What killed processes left unfinished is removed.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let store = Self {
            root: root.into(),
            busy: Mutex::default(),
        };
        private::make(&store.root).map_err(failed("make", &store.root))?;
        for dir in ["blobs", "blobs/sha256", "blobs/sha512", "layers", "images", "tmp"] {
            let path = store.root.join(dir);
            private::take(&path).map_err(failed("take", &path))?;
        }
        store.sweep();
        Ok(store)
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn sweep(&self) {
        for entry in std::fs::read_dir(self.root.join("tmp"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let owner = name
                .to_str()
                .and_then(|n| n.split('-').next())
                .and_then(|p| p.parse::<u32>().ok());
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                // Somebody else may be doing the same.
                let path = entry.path();
                let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
            }
        }
    }

    /// A path in `tmp` that nobody else uses.
    fn temporary(&self) -> PathBuf {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        self.root
            .join("tmp")
            .join(format!("{}-{number}", std::process::id()))
    }

    /// Waits until nobody else in this process works on the same name.
    pub(crate) async fn alone(&self, name: &str) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = {
            let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(busy.entry(name.to_owned()).or_default())
        };
        lock.lock_owned().await
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        let (kind, hex) = digest.as_str().split_once(':').unwrap_or(("sha256", ""));
        self.root.join("blobs").join(kind).join(hex)
    }

    /// A document by its digest, verified again.
    pub(crate) fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.blob_path(digest);
        match std::fs::read(&path) {
            Ok(bytes) => {
                verify(&bytes, digest)?;
                Ok(Some(bytes))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failed("read", &path)(e)),
        }
    }

    /// Keeps a document.
    pub(crate) fn put_blob(&self, bytes: &[u8], digest: &Digest) -> Result<(), StoreError> {
        verify(bytes, digest)?;
        self.put(&self.blob_path(digest), bytes)
    }

    fn put(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let temporary = self.temporary();
        let write = || {
            std::fs::File::create_new(&temporary)?.write_all(bytes)?;
            std::fs::rename(&temporary, path)
        };
        write().map_err(|e| {
            let _ = std::fs::remove_file(&temporary);
            failed("write", path)(e)
        })
    }

    fn layer_path(&self, chain: &Digest) -> PathBuf {
        // Half of the digest: overlayfs takes one page of paths, and images have many layers.
        self.root
            .join("layers")
            .join(chain.hex().get(..32).unwrap_or(chain.hex()))
    }

    /// How many of the lowest layers of an image are there already.
    pub(crate) fn layers_present(&self, diff_ids: &[Digest]) -> usize {
        let chains = chains(diff_ids);
        chains
            .iter()
            .take_while(|chain| self.layer_path(chain).is_dir())
            .count()
    }

    /// Unpacks the layer number `index` (from 0) of an image; those below must be there. Nothing happens if it is.
    /// Tells what was left out.
    pub(crate) fn add_layer(
        &self,
        archive: impl Read,
        diff_ids: &[Digest],
        index: usize,
    ) -> Result<Skipped, StoreError> {
        let chains = chains(diff_ids.get(..=index).unwrap_or(diff_ids));
        let (Some(chain), Some(diff_id)) = (chains.last(), diff_ids.get(index)) else {
            return Ok(Skipped::default());
        };
        let path = self.layer_path(chain);
        if path.is_dir() {
            return Ok(Skipped::default());
        }
        let mut below: Vec<PathBuf> = chains.iter().take(index).map(|c| self.layer_path(c)).collect();
        below.reverse();
        let temporary = self.temporary();
        std::fs::create_dir(&temporary).map_err(failed("make", &temporary))?;
        let done = unpack::unpack(archive, &temporary, &below, diff_id, Limits::default());
        let done = done.map_err(|source| StoreError::Layer {
            number: index + 1,
            source,
        });
        let done = done.and_then(|skipped| match std::fs::rename(&temporary, &path) {
            // Another process was faster with the same content.
            Err(_) if path.is_dir() => Ok(skipped),
            other => other.map_err(failed("move a layer to", &path)).map(|()| skipped),
        });
        if temporary.exists() {
            let _ = std::fs::remove_dir_all(&temporary);
        }
        done
    }

    /// A layer that is made here rather than unpacked, under a name of its own.
    pub(crate) fn made_layer(
        &self,
        key: &Digest,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<PathBuf, StoreError> {
        let path = self.layer_path(key);
        if path.is_dir() {
            return Ok(path);
        }
        let temporary = self.temporary();
        let made = std::fs::create_dir(&temporary).and_then(|()| fill(&temporary));
        let made = made.and_then(|()| match std::fs::rename(&temporary, &path) {
            Err(_) if path.is_dir() => Ok(()),
            other => other,
        });
        if temporary.exists() {
            let _ = std::fs::remove_dir_all(&temporary);
        }
        made.map_err(failed("make", &path)).map(|()| path)
    }

    /// A file without a name on the store's disk.
    pub(crate) fn scratch(&self) -> io::Result<std::fs::File> {
        let path = self.temporary();
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    }

    /// Says what a name stands for; all its content must be there.
    pub(crate) fn name(
        &self,
        reference: &Reference,
        config: &Digest,
        source: &str,
    ) -> Result<(), StoreError> {
        let record = Record {
            reference: reference.to_string(),
            config: config.to_string(),
            source: source.to_owned(),
        };
        let json = serde_json::to_vec(&record).unwrap_or_default();
        self.put(&self.record_path(reference), &json)
    }

    fn record_path(&self, reference: &Reference) -> PathBuf {
        let name = Digest::of(reference.to_string().as_bytes());
        self.root.join("images").join(format!("{}.json", name.hex()))
    }

    fn record(path: &Path) -> Option<Record> {
        let record: Record = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        Some(record)
    }

    /// The image of that name, if it is here whole.
    pub fn image(&self, reference: &Reference) -> Result<Option<Image>, StoreError> {
        let Some(record) = Self::record(&self.record_path(reference)) else {
            return Ok(None);
        };
        match Digest::parse(&record.config) {
            Ok(config) => self.image_of(&config),
            Err(_) => Ok(None),
        }
    }

    /// The digest under which a registry had this name last time.
    pub(crate) fn source(&self, reference: &Reference) -> Option<Digest> {
        let record = Self::record(&self.record_path(reference))?;
        Digest::parse(&record.source).ok()
    }

    /// The image with this configuration, if it is here whole.
    pub(crate) fn image_of(&self, id: &Digest) -> Result<Option<Image>, StoreError> {
        let Some(json) = self.blob(id)? else {
            return Ok(None);
        };
        let config = Config::parse(&json)?;
        if self.layers_present(&config.diff_ids) < config.diff_ids.len() {
            return Ok(None);
        }
        let mut layers: Vec<PathBuf> = chains(&config.diff_ids)
            .iter()
            .map(|c| self.layer_path(c))
            .collect();
        layers.reverse();
        Ok(Some(Image {
            id: id.clone(),
            config,
            layers,
        }))
    }

    /// Names of all images, in order.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let dir = self.root.join("images");
        let entries = std::fs::read_dir(&dir).map_err(failed("read", &dir))?;
        let records = entries.flatten().filter_map(|entry| Self::record(&entry.path()));
        let mut names: Vec<String> = records.map(|r| r.reference).collect();
        names.sort();
        Ok(names)
    }

    /// Forgets a name. Content stays; see [`Store::prune`].
    pub fn remove(&self, reference: &Reference) -> Result<(), StoreError> {
        let path = self.record_path(reference);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(e)),
            _ => Ok(()),
        }
    }

    /// Removes layers that no name needs. Not while containers run from this store or images are pulled into it.
    pub fn prune(&self) -> Result<usize, StoreError> {
        let mut needed = std::collections::HashSet::new();
        for name in self.names()? {
            if let Ok(reference) = Reference::parse(&name)
                && let Some(image) = self.image(&reference)?
            {
                needed.extend(image.layers);
            }
        }
        let dir = self.root.join("layers");
        let mut removed = 0;
        for entry in std::fs::read_dir(&dir).map_err(failed("read", &dir))?.flatten() {
            let path = entry.path();
            if !needed.contains(&path) {
                std::fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

fn verify(bytes: &[u8], expected: &Digest) -> Result<(), StoreError> {
    let mut hasher = expected.hasher();
    hasher.update(bytes);
    let found = hasher.finish();
    if found == *expected {
        return Ok(());
    }
    Err(StoreError::Digest {
        expected: expected.clone(),
        found,
    })
}

/// The name of each layer together with all below it.
fn chains(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chains: Vec<Digest> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        let chain = match chains.last() {
            None => diff_id.clone(),
            Some(below) => {
                let mut hasher = Hasher::sha256();
                hasher.update(format!("{below} {diff_id}").as_bytes());
                hasher.finish()
            }
        };
        chains.push(chain);
    }
    chains
}
