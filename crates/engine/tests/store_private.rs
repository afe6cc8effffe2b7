//! What other users of the machine can reach of the image store, and what never gets into it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::images::{Item, layer, saved};
use remora_engine::image::Reference;
use remora_engine::image::archive::import;
use remora_engine::store::Store;
use serde_json::json;
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tar::EntryType;

/// The user that owns nothing.
const NOBODY: u32 = 65534;

/// A directory that every user can enter, as `/var/lib` is.
fn shared() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn take(store: &Store, dir: &Path, items: &[Item<'_>]) -> (PathBuf, usize) {
    let path = dir.join("image.tar");
    saved(&path, "example.com/test:1", &[layer(items)], &json!({}));
    let imported = import(store, &path, None).unwrap();
    let name = Reference::parse("example.com/test:1").unwrap();
    let image = store.image(&name).unwrap().unwrap();
    (image.layers[0].clone(), imported.devices)
}

/// What a shell of another user says.
fn as_nobody(script: &str, path: &Path) -> (bool, String) {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, "sh"]).arg(path).current_dir("/");
    let output = command.uid(NOBODY).gid(NOBODY).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text)
}

#[test]
fn another_user_reaches_nothing_of_the_store() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT RUN: only root can start a process of another user");
        return;
    }
    let dir = shared();
    let store = Store::open(dir.path().join("store")).unwrap();
    let items = [
        Item::Directory("bin", 0o755),
        Item::File("bin/tool", b"#!/bin/sh\necho ran", 0o4755),
    ];
    let (image, _) = take(&store, dir.path(), &items);
    assert_eq!(
        mode(&image.join("bin/tool")),
        0o4755,
        "the container needs it as it is"
    );
    // The test is worth something only if the directory around the store can be reached.
    assert!(as_nobody("cd \"$1\"", dir.path()).0);
    for part in ["layers", "blobs", "images", "tmp", ""] {
        let path = store.root().join(part);
        assert_eq!(as_nobody("ls -A \"$1\"", &path), (false, String::new()), "{part}");
    }
    assert_eq!(as_nobody("cat \"$1\"", &image.join("bin/tool")).1, "");
    assert_eq!(as_nobody("\"$1\"", &image.join("bin/tool")).1, "");
}

#[test]
fn a_store_of_an_earlier_version_is_closed() {
    let dir = shared();
    let root = dir.path().join("store");
    for part in ["blobs/sha256", "blobs/sha512", "layers/0123", "images", "tmp"] {
        fs::create_dir_all(root.join(part)).unwrap();
    }
    for part in ["blobs", "layers", "layers/0123", "images", "tmp"] {
        fs::set_permissions(root.join(part), Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
    Store::open(&root).unwrap();
    for part in ["blobs", "blobs/sha256", "blobs/sha512", "layers", "images", "tmp"] {
        assert_eq!(mode(&root.join(part)), 0o700, "{part}");
    }
    // A layer is the root directory of containers; a directory that the operator made is the operator's.
    assert_eq!(mode(&root.join("layers/0123")), 0o755);
    assert_eq!(mode(&root), 0o755);
}

#[test]
fn directories_of_others_are_not_taken_for_the_store() {
    let dir = shared();
    let (root, elsewhere) = (dir.path().join("store"), dir.path().join("elsewhere"));
    fs::create_dir(&root).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    fs::set_permissions(&elsewhere, Permissions::from_mode(0o755)).unwrap();
    symlink(&elsewhere, root.join("layers")).unwrap();
    Store::open(&root).unwrap_err();
    assert_eq!(mode(&elsewhere), 0o755, "nothing outside of the store changes");
    if rustix::process::geteuid().is_root() {
        fs::remove_file(root.join("layers")).unwrap();
        fs::create_dir(root.join("layers")).unwrap();
        std::os::unix::fs::chown(root.join("layers"), Some(NOBODY), None).unwrap();
        let error = Store::open(&root).unwrap_err();
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert!(why.contains("uid 65534"), "{why}");
    }
}

#[test]
fn device_files_of_images_are_left_out() {
    let dir = shared();
    let store = Store::open(dir.path().join("store")).unwrap();
    let items = [
        Item::Directory("dev", 0o755),
        Item::Device("dev/sda", EntryType::Block, 8, 0),
        Item::Device("dev/zero-zero", EntryType::Block, 0, 0),
        Item::Device("dev/mem", EntryType::Char, 1, 1),
        Item::Device("dev/gone", EntryType::Char, 0, 0),
        Item::Device("dev/pipe", EntryType::Fifo, 8, 0),
        Item::File("dev/file", b"x", 0o644),
    ];
    let (layer, left_out) = take(&store, dir.path(), &items);
    assert_eq!(left_out, 3, "and it is said");
    let mut found: Vec<String> = fs::read_dir(layer.join("dev"))
        .unwrap()
        .flatten()
        .map(|e| e.file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, ["file", "gone", "pipe"]);
    let kind = |name: &str| fs::symlink_metadata(layer.join("dev").join(name)).unwrap();
    assert!(kind("pipe").file_type().is_fifo());
    // The mark of overlayfs for a deletion: a number that no driver has, without any rights.
    assert!(kind("gone").file_type().is_char_device());
    assert_eq!((kind("gone").rdev(), mode(&layer.join("dev/gone"))), (0, 0));
}
