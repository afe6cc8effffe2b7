//! From a reference to an image in the store.

use super::credentials::Credentials;
use super::session::{Session, next, protocol};
use super::{Client, PullError};
use crate::image::archive::fitting;
use crate::image::manifest::{self, DOCUMENT_MAX, Descriptor, Document, Manifest, ManifestError};
use crate::image::{Digest, Image, PullPolicy, Reference, own};
use crate::store::{Partial, Store, StoreError};
use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_RANGE;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// What a pull is doing, for progress bars.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The registry is being asked.
    Asking,
    /// The layers that have to be fetched, as (number from the bottom, bytes).
    Missing(Vec<(usize, u64)>),
    /// Bytes of a layer that are here.
    Fetched {
        /// Number from the bottom.
        layer: usize,
        /// So many of it.
        bytes: u64,
    },
    /// Device files of a layer were left out.
    Skipped {
        /// Number from the bottom.
        layer: usize,
        /// So many.
        devices: usize,
    },
    /// A layer is being unpacked.
    Unpacking {
        /// Number from the bottom.
        layer: usize,
    },
}

/// Is told what a pull is doing.
pub type Progress = Arc<dyn Fn(Event) + Send + Sync>;

/// Layers fetched at a time.
const PARALLEL: usize = 3;
/// How often a broken download is taken up again without having got anywhere.
const ATTEMPTS: u32 = 4;
/// The pause before the second attempt; it doubles.
const PAUSE: Duration = Duration::from_millis(200);
/// How often to look whether another process is done with the same download.
const CLAIMS: usize = 3000;
/// Indexes may hold indexes.
const DEPTH_MAX: usize = 4;

/// Has an image ready, as its policy says. `remora` and the names of Istio's proxy are this very program.
pub async fn ensure(
    store: &Arc<Store>,
    client: &Client,
    image: &str,
    policy: Option<PullPolicy>,
    credentials: &Credentials,
    progress: &Progress,
) -> Result<Image, PullError> {
    let reference = Reference::parse(image)?;
    if let Some(own) = own::named(&reference) {
        let store = Arc::clone(store);
        return blocking(move || own::image(&store, own)).await;
    }
    let policy = policy.unwrap_or_else(|| PullPolicy::usual(&reference));
    // Several containers often want the same image: the first fetches it, the others find it.
    let _alone = store.alone(&reference.to_string()).await;
    if policy != PullPolicy::Always
        && let Some(image) = store.image(&reference)?
    {
        return Ok(image);
    }
    if policy == PullPolicy::Never {
        return Err(PullError::Absent(reference));
    }
    let mut last = None;
    for endpoint in client.endpoints(&reference.registry) {
        let pulled = match Session::new(client, &endpoint, &reference, credentials) {
            Some(session) => pull(store, &Arc::new(session), &reference, progress).await,
            None => Err(protocol(&endpoint, "is not the address of a registry")),
        };
        match pulled {
            Ok(image) => return Ok(image),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or(PullError::Absent(reference)))
}

/// Work on files, off the runtime's threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, PullError> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.map_err(|e| broken(e.into()))??)
}

/// A task of ours died.
fn broken(source: std::io::Error) -> PullError {
    StoreError::Io {
        what: "work on",
        path: "the store".into(),
        source,
    }
    .into()
}

async fn pull(
    store: &Arc<Store>,
    session: &Arc<Session>,
    reference: &Reference,
    progress: &Progress,
) -> Result<Image, PullError> {
    progress(Event::Asking);
    let (bytes, digest) = retried(|| session.manifest(reference.wanted())).await?;
    if store.source(reference).as_ref() == Some(&digest)
        && let Some(image) = store.image(reference)?
    {
        return Ok(image);
    }
    let manifest = single(session, reference, bytes).await?;
    let id = manifest.config.digest.clone();
    let json = document(store, session, &manifest.config).await?;
    let config = fitting(&json, manifest.layers.len())?;
    let present = store.layers_present(&config.diff_ids);
    layers(store, session, &manifest, &config.diff_ids, present, progress).await?;
    store.put_blob(&json, &id)?;
    store.name(reference, &id, digest.as_str())?;
    let image = store.image(reference)?;
    image.ok_or_else(|| PullError::Absent(reference.clone()))
}

/// The manifest for this machine.
async fn single(
    session: &Arc<Session>,
    reference: &Reference,
    mut bytes: Bytes,
) -> Result<Manifest, PullError> {
    let wrong = |source| PullError::Manifest {
        reference: reference.clone(),
        source,
    };
    for _ in 0..DEPTH_MAX {
        match manifest::parse(&bytes).map_err(wrong)? {
            Document::Manifest(manifest) => return Ok(manifest),
            Document::Index(entry) => {
                let wanted = entry.digest.to_string();
                bytes = retried(|| session.manifest(&wanted)).await?.0;
            }
        }
    }
    Err(wrong(ManifestError::Kind))
}

/// A small blob, verified.
async fn document(
    store: &Arc<Store>,
    session: &Arc<Session>,
    wanted: &Descriptor,
) -> Result<Vec<u8>, PullError> {
    if let Some(bytes) = store.blob(&wanted.digest)? {
        return Ok(bytes);
    }
    if wanted.size > DOCUMENT_MAX {
        return Err(StoreError::Size {
            digest: wanted.digest.clone(),
            expected: wanted.size,
        }
        .into());
    }
    let file = fetch(store, session, wanted, &|_| ()).await?;
    blocking(move || {
        let mut bytes = Vec::new();
        let mut file = file;
        std::io::Read::read_to_end(&mut file, &mut bytes).map_err(|source| StoreError::Io {
            what: "read",
            path: "a download".into(),
            source,
        })?;
        Ok(bytes)
    })
    .await
}

/// Fetches the layers that are missing, some at a time, and unpacks them in order.
async fn layers(
    store: &Arc<Store>,
    session: &Arc<Session>,
    manifest: &Manifest,
    diff_ids: &[Digest],
    present: usize,
    progress: &Progress,
) -> Result<(), PullError> {
    let missing: Vec<(usize, Descriptor)> = manifest
        .layers
        .iter()
        .cloned()
        .enumerate()
        .skip(present)
        .collect();
    progress(Event::Missing(
        missing.iter().map(|(i, d)| (i + 1, d.size)).collect(),
    ));
    let mut running = JoinSet::new();
    let places = Arc::new(Semaphore::new(PARALLEL));
    for (index, layer) in missing {
        let (store, session) = (Arc::clone(store), Arc::clone(session));
        let (places, progress) = (Arc::clone(&places), Arc::clone(progress));
        running.spawn(async move {
            // The semaphore is never closed.
            let _place = places.acquire_owned().await;
            let report = |bytes| {
                progress(Event::Fetched {
                    layer: index + 1,
                    bytes,
                });
            };
            (index, fetch(&store, &session, &layer, &report).await)
        });
    }
    let mut ready = BTreeMap::new();
    let mut unpacked = present;
    while let Some(done) = running.join_next().await {
        let (index, file) = done.map_err(|e| broken(e.into()))?;
        ready.insert(index, file?);
        while let Some(file) = ready.remove(&unpacked) {
            progress(Event::Unpacking { layer: unpacked + 1 });
            let (store, diff_ids, index) = (Arc::clone(store), diff_ids.to_vec(), unpacked);
            let skipped = blocking(move || store.add_layer(file, &diff_ids, index)).await?;
            unpacked += 1;
            if skipped.devices > 0 {
                progress(Event::Skipped {
                    layer: unpacked,
                    devices: skipped.devices,
                });
            }
        }
    }
    Ok(())
}

/// A blob, verified, in a file without a name.
async fn fetch(
    store: &Arc<Store>,
    session: &Session,
    wanted: &Descriptor,
    report: &(dyn Fn(u64) + Send + Sync),
) -> Result<File, PullError> {
    let mut again = true;
    loop {
        let mut partial = claim(store, wanted).await?;
        let taken_up = partial.have() > 0;
        fill(session, wanted, &mut partial, report).await?;
        match blocking(move || partial.finish()).await {
            // What an earlier process left was damaged: once more from the beginning.
            Err(PullError::Store(StoreError::Digest { .. })) if taken_up && again => again = false,
            other => return other,
        }
    }
}

/// The file for a download; if another process is at the same one, waits for it.
async fn claim(store: &Arc<Store>, wanted: &Descriptor) -> Result<Partial, PullError> {
    for _ in 0..CLAIMS {
        let (store, wanted) = (Arc::clone(store), wanted.clone());
        if let Some(partial) = blocking(move || store.partial(&wanted.digest, wanted.size)).await? {
            return Ok(partial);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(StoreError::Io {
        what: "wait for another process that fetches",
        path: wanted.digest.as_str().into(),
        source: std::io::ErrorKind::TimedOut.into(),
    }
    .into())
}

/// Fetches until all is there, taking up where a connection broke.
async fn fill(
    session: &Session,
    wanted: &Descriptor,
    partial: &mut Partial,
    report: &(dyn Fn(u64) + Send + Sync),
) -> Result<(), PullError> {
    let mut idle = 0;
    while partial.have() < wanted.size {
        let before = partial.have();
        let error = match stream(session, wanted, partial, report).await {
            Ok(()) if partial.have() == wanted.size => break,
            Ok(()) => PullError::Request {
                url: session.blob_url(&wanted.digest),
                source: "the data ended early".into(),
            },
            Err(error) => error,
        };
        idle = if partial.have() > before { 0 } else { idle + 1 };
        if !error.is_passing() || idle >= ATTEMPTS {
            return Err(error);
        }
        tokio::time::sleep(PAUSE * 2u32.pow(idle)).await;
    }
    Ok(())
}

async fn stream(
    session: &Session,
    wanted: &Descriptor,
    partial: &mut Partial,
    report: &(dyn Fn(u64) + Send + Sync),
) -> Result<(), PullError> {
    let from = partial.have();
    let response = match session.blob(&wanted.digest, from).await {
        // It has nothing from there on: begin again.
        Err(PullError::Status { status: 416, .. }) if from > 0 => {
            partial.restart()?;
            session.blob(&wanted.digest, 0).await?
        }
        other => other?,
    };
    if from > 0 && !continues(&response, from) {
        partial.restart()?;
    }
    let url = session.blob_url(&wanted.digest);
    let mut body = response.into_body();
    while let Some(data) = next(&url, &mut body).await? {
        partial.add(&data)?;
        report(partial.have());
    }
    Ok(())
}

/// Whether an answer begins where we asked for; some send everything again.
fn continues<B>(response: &http::Response<B>, from: u64) -> bool {
    let range = response
        .headers()
        .get(CONTENT_RANGE)
        .and_then(|r| r.to_str().ok());
    let start = range
        .and_then(|r| r.strip_prefix("bytes "))
        .and_then(|r| r.split('-').next());
    response.status() == StatusCode::PARTIAL_CONTENT && start.and_then(|s| s.parse().ok()) == Some(from)
}

/// Asks again while the trouble looks passing.
async fn retried<T, F: Future<Output = Result<T, PullError>>>(
    mut ask: impl FnMut() -> F,
) -> Result<T, PullError> {
    let mut attempt = 0;
    loop {
        match ask().await {
            Err(error) if error.is_passing() && attempt + 1 < ATTEMPTS => {
                attempt += 1;
                tokio::time::sleep(PAUSE * 2u32.pow(attempt)).await;
            }
            other => return other,
        }
    }
}
