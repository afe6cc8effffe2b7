//! Entry points for fuzzing: whatever an image or a registry sends, nothing panics, nothing outside of a layer changes,
//! limits hold, and no credential goes to a host that may not have it.

mod policies;

pub use crate::registry::fuzz::challenge;
pub use policies::*;

use crate::image::archive::import;
use crate::image::unpack::{Limits, unpack};
use crate::image::{Config, Digest, Reference, manifest};
use crate::registry::Credentials;
use crate::store::Store;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Far less than in earnest, so that a fuzzer reaches them.
const LIMITS: Limits = Limits {
    bytes: 1 << 20,
    free: 64 << 10,
    ratio: 50,
    entries: 200,
    names: 8 << 10,
    header: 16 << 10,
    path: 512,
    depth: 12,
};
/// What a file outside of the layer holds.
const INTACT: &str = "intact";

/// A directory with a layer to fill, a layer below it, and files that must stay as they are. Removed with the value.
struct Scene(PathBuf);

impl Scene {
    fn new() -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let base = std::env::temp_dir().join(format!("remora-fuzz-{}-{number}", std::process::id()));
        let scene = Self(base);
        for dir in ["layer", "lower/dir", "outside"] {
            fs::create_dir_all(scene.0.join(dir))?;
        }
        fs::write(scene.0.join("outside/victim"), INTACT)?;
        fs::write(scene.0.join("lower/file"), "")?;
        symlink("../outside", scene.0.join("lower/up"))?;
        symlink(scene.0.join("outside"), scene.0.join("lower/out"))?;
        Ok(scene)
    }

    /// What is there besides the layer, with what it holds.
    fn rest(&self) -> Vec<(PathBuf, u32, String)> {
        let mut all = Vec::new();
        for path in below(&self.0) {
            let Ok(inner) = path.strip_prefix(&self.0) else {
                continue;
            };
            if inner.starts_with("layer") || inner.starts_with("store") {
                continue;
            }
            let mode = fs::symlink_metadata(&path).map(|m| m.mode()).unwrap_or_default();
            all.push((
                inner.to_owned(),
                mode,
                fs::read_to_string(&path).unwrap_or_default(),
            ));
        }
        all.sort();
        all
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // A directory without rights stays if this is not root.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Everything below a directory; links are not followed.
fn below(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}

/// A layer of a stranger, unpacked on top of another.
///
/// # Panics
///
/// If anything but the layer changes, a limit does not hold, or a device is made.
pub fn layer(bytes: &[u8]) {
    let Ok(scene) = Scene::new() else { return };
    let before = scene.rest();
    let into = scene.0.join("layer");
    let done = unpack(bytes, &into, &[scene.0.join("lower")], &Digest::of(bytes), LIMITS);
    if let Err(error) = &done {
        assert!(!error.to_string().is_empty());
    }
    assert_eq!(scene.rest(), before, "something outside of the layer changed");
    let (mut content, mut entries) = (0, 0);
    for path in below(&into) {
        let Ok(found) = fs::symlink_metadata(&path) else {
            continue;
        };
        entries += 1;
        let kind = found.file_type();
        assert!(!kind.is_block_device(), "{} is a device", path.display());
        assert!(
            !kind.is_char_device() || found.rdev() == 0,
            "{} is a device",
            path.display()
        );
        if kind.is_file() && found.nlink() == 1 {
            content += found.len();
        }
    }
    assert!(content <= LIMITS.bytes, "{content} bytes");
    // Each entry can imply the directories above it.
    let most = LIMITS.entries * u64::try_from(LIMITS.depth + 2).unwrap_or(u64::MAX);
    assert!(entries <= most, "{entries} entries");
}

/// A file that may be an archive of images.
///
/// # Panics
///
/// If anything but the store changes, or the store keeps something unfinished.
pub fn archive(bytes: &[u8]) {
    let Ok(scene) = Scene::new() else { return };
    let path = scene.0.join("image.tar");
    if fs::write(&path, bytes).is_err() {
        return;
    }
    let before = scene.rest();
    let Ok(store) = Store::open(scene.0.join("store")) else {
        return;
    };
    let done = import(&store, &path, None);
    assert_eq!(scene.rest(), before, "something outside of the store changed");
    assert_eq!(below(&scene.0.join("store/tmp")), Vec::<PathBuf>::new());
    for reference in done.map(|imported| imported.references).unwrap_or_default() {
        let image = store.image(&reference);
        assert!(matches!(image, Ok(Some(_))), "{reference} is not there");
    }
}

/// Documents about images: names, digests, manifests, configurations, credentials.
///
/// # Panics
///
/// If a name does not mean what it prints, or a Secret chooses a program.
pub fn document(bytes: &[u8]) {
    let _ = manifest::parse(bytes);
    let _ = Config::parse(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let _ = manifest::parse_named(bytes, "example.com/a:1");
    if let Ok(reference) = Reference::parse(text) {
        let printed = reference.to_string();
        let again = Reference::parse(&printed);
        assert!(again.is_ok_and(|a| a.to_string() == printed), "{printed}");
        let path = format!("{}/{}", reference.repository, reference.wanted());
        // A tag may have dots in it, but no part of the path may be one that leads elsewhere.
        let climbs = path.split('/').any(|part| matches!(part, "" | "." | ".."));
        assert!(!climbs && !path.contains(['?', '#', '%', ' ', '\\']), "{path}");
    }
    if let Ok(digest) = Digest::parse(text) {
        assert_eq!(digest.as_str(), text);
        assert!(digest.hex().bytes().all(|b| b.is_ascii_hexdigit()), "{text}");
    }
    if let Ok((credentials, _)) = Credentials::from_secret(text) {
        assert!(!credentials.has_helpers());
    }
}
