//! Images from archives to running containers: what is kept, what is refused, and what a broken one leaves.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::images::{Item, config, gzip, layer, layout, pack, saved};
use common::{Bench, run};
use remora_engine::container::{Mount, Spec, Stdio, start};
use remora_engine::image::archive::import;
use remora_engine::image::own::{Own, image as own_image};
use remora_engine::image::{Image, Reference};
use remora_engine::store::Store;
use serde_json::json;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use tar::EntryType;

fn name() -> Reference {
    Reference::parse("example.com/test:1").unwrap()
}

/// Imports layers and gives the image, or the whole chain of reasons.
fn take(store: &Store, dir: &Path, layers: &[Vec<u8>]) -> Result<Image, String> {
    let path = dir.join("image.tar");
    saved(&path, "example.com/test:1", layers, &json!({"Cmd": ["sh"]}));
    match import(store, &path, None) {
        Ok(_) => Ok(store.image(&name()).unwrap().unwrap()),
        Err(e) => {
            let mut text = e.to_string();
            let mut source = std::error::Error::source(&e);
            while let Some(inner) = source {
                text = format!("{text}: {inner}");
                source = inner.source();
            }
            Err(text)
        }
    }
}

/// Paths below a directory, sorted.
fn listing(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut stack = vec![dir.to_owned()];
    while let Some(next) = stack.pop() {
        for entry in std::fs::read_dir(&next).unwrap().flatten() {
            found.push(entry.path().strip_prefix(dir).unwrap().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                stack.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn owners_modes_times_and_links() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let items = [
        Item::Directory("./", 0o755),
        Item::Directory("sealed", 0o500),
        Item::File("sealed/tool", b"#!/bin/sh\n", 0o4755),
        Item::Symlink("link", "sealed/tool"),
        Item::Hardlink("twin", "sealed/tool"),
        Item::Device("null", EntryType::Char, 1, 3),
        Item::Device("fifo", EntryType::Fifo, 0, 0),
        Item::File("implied/by/file", b"x", 0o644),
        Item::File("twice", b"first", 0o644),
        Item::File("twice", b"second", 0o600),
    ];
    let image = take(&store, dir.path(), &[layer(&items)]).unwrap();
    let root = &image.layers[0];
    let tool = std::fs::metadata(root.join("sealed/tool")).unwrap();
    assert_eq!(
        (tool.permissions().mode() & 0o7777, tool.uid(), tool.mtime()),
        (0o4755, 0, 1_000_000_000)
    );
    let sealed = std::fs::metadata(root.join("sealed")).unwrap();
    assert_eq!(
        (sealed.permissions().mode() & 0o7777, sealed.mtime()),
        (0o500, 1_000_000_000)
    );
    assert_eq!(std::fs::metadata(root.join("twin")).unwrap().ino(), tool.ino());
    assert_eq!(
        std::fs::read_link(root.join("link")).unwrap(),
        Path::new("sealed/tool")
    );
    assert!(!root.join("null").exists(), "devices are left out");
    assert!(
        std::fs::metadata(root.join("fifo"))
            .unwrap()
            .file_type()
            .is_fifo()
    );
    assert_eq!(std::fs::read(root.join("twice")).unwrap(), b"second");
    assert_eq!(image.config.args(&[], &[]), ["sh"]);
}

#[tokio::test]
async fn layers_hide_replace_and_delete() {
    let bench = Bench::new().await;
    let store = Store::open(bench.path("store")).unwrap();
    let base = layer(&[
        Item::Directory("usr", 0o755),
        Item::Symlink("bin", "usr/bin"),
        Item::Symlink("lib", "usr/lib"),
        Item::Symlink("lib64", "usr/lib64"),
        Item::Directory("data", 0o700),
        Item::File("data/old", b"old", 0o644),
        Item::File("data/kept", b"kept", 0o644),
        Item::Directory("opt", 0o755),
        Item::File("opt/below", b"", 0o644),
        Item::File("gone", b"", 0o644),
        Item::Symlink("alias", "data"),
    ]);
    let top = layer(&[
        Item::File(".wh.gone", b"", 0o644),
        Item::File("data/.wh.old", b"", 0o644),
        Item::File("opt/.wh..wh..opq", b"", 0o644),
        Item::File("opt/above", b"", 0o644),
        // Through a link that only the layer below has.
        Item::File("alias/new", b"new", 0o644),
    ]);
    let image = take(&store, bench.dir.path(), &[base.clone(), top]).unwrap();
    assert_eq!(image.layers.len(), 2);
    let mut spec = Spec::new(
        "layers",
        image.root(&bench.path("layers")).unwrap(),
        &[
            "sh",
            "-c",
            "ls /data /opt; ls -d /gone 2>&1; stat -c %a /data; readlink /alias",
        ],
        Arc::clone(&bench.sandbox),
    );
    spec.mounts.push(Mount::bind("/usr", "/usr").readonly());
    spec.stdio = Stdio::Pipe;
    spec.process.args[2].push_str("; exit 0");
    let out = run(&spec).await;
    let expected = "/data:\nkept\nnew\n\n/opt:\nabove\nls: cannot access '/gone': No such file or directory\n700\ndata\n";
    assert_eq!(out, expected);
    // A second image on the same base shares its layer.
    let other = take(&store, bench.dir.path(), &[base]).unwrap();
    assert_eq!(other.layers[0], image.layers[1]);
}

/// What is tried, the entries, and what the refusal says if there is one.
type Attempt<'a> = (&'a str, Vec<Item<'a>>, Option<&'a str>);

fn hostile<'a>(out: &'a str, victim: &'a str) -> Vec<Attempt<'a>> {
    vec![
        (
            "dots",
            vec![Item::File("../evil", b"", 0o644)],
            Some("points out of it"),
        ),
        (
            "dots within",
            vec![Item::File("a/../../evil", b"", 0o644)],
            Some("points out of it"),
        ),
        ("absolute", vec![Item::File("/evil", b"", 0o644)], None),
        (
            "link out",
            vec![Item::Symlink("d", out), Item::File("d/victim", b"evil", 0o644)],
            None,
        ),
        (
            "link up",
            vec![
                Item::Symlink("d", "../../../.."),
                Item::File("d/evil", b"evil", 0o644),
            ],
            None,
        ),
        (
            "hard link out",
            vec![Item::Hardlink("h", victim)],
            Some("which the layer does not have"),
        ),
        (
            "hard link dots",
            vec![Item::Hardlink("h", "../../x")],
            Some("points out of it"),
        ),
        (
            "hard link through link",
            vec![
                Item::Symlink("d", out),
                Item::Hardlink("h", "d/victim"),
                Item::File("h", b"evil", 0o644),
            ],
            Some("which the layer does not have"),
        ),
        (
            "loop",
            vec![Item::Symlink("l", "l"), Item::File("l/x", b"", 0o644)],
            Some("symbolic links"),
        ),
        (
            "file as directory",
            vec![Item::File("f", b"", 0o644), Item::File("f/x", b"", 0o644)],
            Some("directory"),
        ),
        (
            "root replaced",
            vec![Item::Symlink("./", "/")],
            Some("replaces the root"),
        ),
        (
            "empty deletion",
            vec![Item::File(".wh.", b"", 0o644)],
            Some("deletes nothing"),
        ),
        (
            "deletion of up",
            vec![Item::File(".wh...", b"", 0o644)],
            Some("deletes nothing"),
        ),
        (
            "empty link",
            vec![Item::Symlink("e", "")],
            Some("link to nothing"),
        ),
        (
            "directory over link",
            vec![
                Item::Symlink("d", out),
                Item::Directory("d", 0o777),
                Item::File("d/victim", b"evil", 0o644),
            ],
            None,
        ),
        (
            "file over link",
            vec![Item::Symlink("f", victim), Item::File("f", b"evil", 0o644)],
            None,
        ),
        (
            "directory removed",
            vec![Item::File("d/a", b"", 0o644), Item::File("d", b"", 0o644)],
            None,
        ),
    ]
}

#[test]
fn hostile_entries_stay_inside_or_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("victim"), "intact").unwrap();
    let out = outside.to_str().unwrap();
    let victim = format!("{out}/victim");
    for (what, items, refused) in hostile(out, &victim) {
        let store = Store::open(dir.path().join("store")).unwrap();
        let result = take(&store, dir.path(), &[layer(&items)]);
        match (&result, refused) {
            (Ok(_), None) => {}
            (Err(e), Some(part)) => assert!(e.contains(part), "{what}: {e}"),
            other => panic!("{what}: {other:?}"),
        }
        assert_eq!(
            std::fs::read_to_string(outside.join("victim")).unwrap(),
            "intact",
            "{what}"
        );
        assert_eq!(listing(&outside), ["victim"], "{what}");
        assert!(listing(&dir.path().join("store/tmp")).is_empty(), "{what}");
        std::fs::remove_dir_all(dir.path().join("store")).unwrap();
    }
}

#[test]
fn no_damage_to_an_archive_leads_out_or_panics() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.tar");
    let whole = layer(&[
        Item::Directory("a", 0o755),
        Item::File("a/one", &[1; 700], 0o644),
        Item::Symlink("a/link", "../b"),
        Item::Hardlink("two", "a/one"),
        Item::File("a/.wh.three", b"", 0o644),
        Item::Device("fifo", EntryType::Fifo, 0, 0),
    ]);
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    for round in 0..300 {
        let mut damaged = whole.clone();
        for _ in 0..=random(6) {
            let at = random(damaged.len());
            damaged[at] = u8::try_from(random(256)).unwrap();
        }
        damaged.truncate(damaged.len() - if round % 3 == 0 { random(whole.len()) } else { 0 });
        let store = Store::open(dir.path().join("store")).unwrap();
        saved(&path, "example.com/test:1", &[damaged], &json!({}));
        // Either is fine; what matters is where it ends.
        let _ = import(&store, &path, None);
        assert!(listing(&dir.path().join("store/tmp")).is_empty(), "round {round}");
        std::fs::remove_dir_all(dir.path().join("store")).unwrap();
        let mut left: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .flatten()
            .map(|e| e.file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["image.tar"], "round {round}");
    }
}

#[test]
fn layouts_as_directory_and_archive_compressed_and_not() {
    let dir = tempfile::tempdir().unwrap();
    let plain = vec![
        layer(&[Item::File("one", b"1", 0o644)]),
        layer(&[Item::File("two", b"2", 0o644)]),
    ];
    let compressed = vec![gzip(&plain[0]), plain[1].clone()];
    let files = layout("example.com/test:1", &plain, &compressed, &json!({"User": "7:8"}));
    let unpacked = dir.path().join("layout");
    for (path, data) in &files {
        let path = unpacked.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, data).unwrap();
    }
    let tar = dir.path().join("layout.tar");
    pack(&tar, &files);
    let zipped = dir.path().join("layout.tar.gz");
    std::fs::write(&zipped, gzip(&std::fs::read(&tar).unwrap())).unwrap();
    for (number, path) in [&unpacked, &tar, &zipped].into_iter().enumerate() {
        let store = Store::open(dir.path().join(format!("store{number}"))).unwrap();
        assert_eq!(import(&store, path, None).unwrap().references, [name()]);
        let image = store.image(&name()).unwrap().unwrap();
        assert_eq!(std::fs::read(image.layers[0].join("two")).unwrap(), b"2");
        let user = image.user().unwrap();
        assert_eq!((user.uid, user.gid), (7, 8));
        assert_eq!(store.names().unwrap(), ["example.com/test:1"]);
        store.remove(&name()).unwrap();
        assert_eq!(store.image(&name()).unwrap(), None);
        assert_eq!(store.prune().unwrap(), 2);
    }
}

#[test]
fn damaged_content_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let plain = vec![layer(&[Item::File("one", &[7; 50_000], 0o644)])];
    let zipped = gzip(&plain[0]);
    let other = gzip(&layer(&[Item::File("one", b"other", 0o644)]));
    let mut flipped = zipped.clone();
    flipped[40] ^= 1;
    let cut = zipped[..zipped.len() - 20].to_vec();
    // The blob is exchanged after the digests were written down; or the digests fit, but not the configuration.
    let exchanged = |with: &[u8]| {
        let mut files = layout(
            "example.com/test:1",
            &plain,
            std::slice::from_ref(&zipped),
            &json!({}),
        );
        files[0].1 = with.to_vec();
        files
    };
    let short = layout("example.com/test:1", &plain, &[], &json!({}));
    let cases = [
        ("flipped bit", exchanged(&flipped)),
        ("cut", exchanged(&cut)),
        ("empty", exchanged(b"")),
        ("another layer", exchanged(&other)),
        (
            "digest fits, content does not",
            layout(
                "example.com/test:1",
                &plain,
                std::slice::from_ref(&other),
                &json!({}),
            ),
        ),
        ("fewer layers", short),
    ];
    for (what, files) in cases {
        let store = Store::open(dir.path().join("store")).unwrap();
        let path = dir.path().join("image.tar");
        pack(&path, &files);
        let error = import(&store, &path, None).unwrap_err();
        assert!(store.image(&name()).unwrap().is_none(), "{what}");
        for part in ["tmp", "layers", "images"] {
            assert!(
                listing(&dir.path().join("store").join(part)).is_empty(),
                "{what}: {error}"
            );
        }
        std::fs::remove_dir_all(dir.path().join("store")).unwrap();
    }
    for (what, bytes) in [
        ("nothing", vec![]),
        ("noise", vec![0x55; 4096]),
        ("no list", layer(&[])),
    ] {
        let store = Store::open(dir.path().join("store")).unwrap();
        let path = dir.path().join("image.tar");
        std::fs::write(&path, bytes).unwrap();
        import(&store, &path, None).expect_err(what);
    }
}

#[test]
fn a_damaged_store_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let layers = [layer(&[Item::File("one", b"1", 0o644)])];
    let image = take(&store, dir.path(), &layers).unwrap();
    let blob = dir.path().join("store/blobs/sha256").join(image.id.hex());
    assert_eq!(
        std::fs::read(&blob).unwrap(),
        config(&layers, &json!({"Cmd": ["sh"]}))
    );
    std::fs::write(&blob, "{}").unwrap();
    assert!(
        store
            .image(&name())
            .unwrap_err()
            .to_string()
            .contains("has the content of")
    );
    std::fs::remove_file(&blob).unwrap();
    assert_eq!(store.image(&name()).unwrap(), None);
    let image = take(&store, dir.path(), &layers).unwrap();
    std::fs::remove_dir_all(&image.layers[0]).unwrap();
    assert_eq!(store.image(&name()).unwrap(), None);
    // What a killed process left is removed by the next.
    std::fs::create_dir(dir.path().join("store/tmp/999999999-0")).unwrap();
    drop(Store::open(dir.path().join("store")).unwrap());
    assert!(listing(&dir.path().join("store/tmp")).is_empty());
}

#[test]
fn many_at_once_make_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let path = dir.path().join("image.tar");
    let big: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
    saved(
        &path,
        "example.com/test:1",
        &[layer(&[Item::File("big", &big, 0o644)])],
        &json!({}),
    );
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| import(&store, &path, None).unwrap());
        }
    });
    let image = store.image(&name()).unwrap().unwrap();
    assert_eq!(std::fs::read(image.layers[0].join("big")).unwrap(), big);
    assert_eq!(
        std::fs::read_dir(dir.path().join("store/layers"))
            .unwrap()
            .count(),
        1
    );
    assert!(listing(&dir.path().join("store/tmp")).is_empty());
}

/// Says that this program plays the part inside a container.
const ROLE: &str = "REMORA_TEST_FULL_DISK";

#[test]
fn played_in_a_container() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let store = Store::open("/small/store").unwrap();
    let error = import(&store, Path::new("/image.tar"), None).unwrap_err();
    assert!(error.hint().unwrap().contains("disk is full"), "{error:?}");
    assert!(listing(Path::new("/small/store/tmp")).is_empty());
    assert!(listing(Path::new("/small/store/layers")).is_empty());
    println!("NOTICED");
}

#[tokio::test]
async fn a_full_disk_is_told_and_nothing_stays() {
    let bench = Bench::new().await;
    let tar = bench.path("image.tar");
    saved(
        &tar,
        "example.com/test:1",
        &[layer(&[Item::File("big", &vec![1; 4 << 20], 0o644)])],
        &json!({}),
    );
    let mut spec = bench.overlay("full", "");
    let exe = std::env::current_exe().unwrap();
    spec.mounts.push(Mount::bind(exe, "/test").readonly());
    spec.mounts.push(Mount::bind(&tar, "/image.tar").readonly());
    spec.mounts.push(Mount::tmpfs("/small", Some(1 << 20)));
    spec.mounts.push(Mount::tmpfs("/tmp", None));
    spec.process.args = ["/test", "--exact", "played_in_a_container", "--nocapture"]
        .map(String::from)
        .into();
    spec.process.env = vec![(ROLE.into(), "1".into())];
    let (exit, out, err) = common::finish(start(&spec).await.unwrap()).await;
    assert!(exit.code == 0 && out.contains("NOTICED"), "{out} {err}");
}

#[tokio::test]
async fn this_program_is_an_image() {
    let bench = Bench::new().await;
    let store = Store::open(bench.path("store")).unwrap();
    let image = own_image(&store, Own::Proxy).unwrap();
    assert_eq!(image.user().unwrap().uid, 1337);
    let mut spec = Spec::new(
        "own",
        image.root(&bench.path("own")).unwrap(),
        &["/usr/local/bin/pilot-agent", "--list"],
        Arc::clone(&bench.sandbox),
    );
    spec.process.uid = 1337;
    spec.process.gid = 1337;
    spec.stdio = Stdio::Pipe;
    assert!(run(&spec).await.contains("this_program_is_an_image: test"));
    // The second time nothing is made.
    assert_eq!(own_image(&store, Own::Remora).unwrap().layers, image.layers);
}
