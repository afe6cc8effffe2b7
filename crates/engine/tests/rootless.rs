//! Containers without root, in a user namespace with one id and with many.
//!
//! A program of its own without the test harness: a user namespace can only be entered while there is one thread. It
//! starts itself as an ordinary user in a container of root's, so that nothing of this machine is touched.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::images::{Item, layer, saved};
use common::{Bench, finish, run};
use remora_engine::cgroup::Hierarchy;
use remora_engine::container::{Capabilities, Mount, Process, Spec, Stdio, start};
use remora_engine::image::Reference;
use remora_engine::image::archive::import;
use remora_engine::rootless::{Privileges, acquire};
use remora_engine::sandbox::{Sandbox, SandboxSpec};
use remora_engine::store::Store;
use serde_json::json;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

/// How many ids the copy of this program is to find.
const ROLE: &str = "REMORA_TEST_ROOTLESS";
/// An ordinary user.
const USER: u32 = 12345;

fn main() {
    if let Some(role) = std::env::var_os(ROLE) {
        let privileges = acquire().unwrap();
        let ids = role.to_str().unwrap().parse().unwrap();
        assert_eq!(privileges, Privileges::UserNamespace { ids });
        runtime().block_on(inside(ids));
        return;
    }
    assert_eq!(acquire().unwrap(), Privileges::Root);
    runtime().block_on(async {
        outside(1, None).await;
        say("test one_id ... ok");
        let programs = [
            ("newuidmap", "apt-get install uidmap"),
            ("newgidmap", "apt-get install uidmap"),
        ];
        if remora_testkit::has_programs(&programs) {
            let path = std::env::var_os("PATH").unwrap();
            let dir = std::env::split_paths(&path)
                .find(|dir| dir.join("newuidmap").is_file())
                .unwrap();
            outside(65537, Some(&dir)).await;
            say("test many_ids ... ok");
        }
    });
}

fn say(text: &str) {
    std::io::stdout()
        .write_all(format!("{text}\n").as_bytes())
        .unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// Starts this program as an ordinary user in a container.
async fn outside(ids: u32, mappers: Option<&Path>) {
    let bench = Bench::new().await;
    let mut spec = bench.overlay("outer", "");
    // A container that hides nothing, as a machine would not.
    spec.privileged = true;
    spec.process.capabilities = Capabilities::ALL;
    spec.process.uid = USER;
    spec.process.gid = USER;
    spec.process.args = vec!["/test".into()];
    spec.process.env = vec![
        (ROLE.into(), ids.to_string()),
        ("PATH".into(), "/usr/bin:/bin".into()),
        ("RUST_BACKTRACE".into(), "1".into()),
    ];
    spec.mounts
        .push(Mount::bind(std::env::current_exe().unwrap(), "/test").readonly());
    spec.mounts.push(Mount::tmpfs("/tmp", None));
    spec.mounts.push(Mount::tmpfs("/usr/local/bin", None));
    if let Some(dir) = mappers {
        std::fs::write(bench.path("subid"), format!("{USER}:100000:65536\n")).unwrap();
        std::fs::write(bench.path("passwd"), format!("user:x:{USER}:{USER}::/:/bin/sh\n")).unwrap();
        for name in ["newuidmap", "newgidmap"] {
            spec.mounts.push(Mount::bind(
                dir.join(name),
                Path::new("/usr/local/bin").join(name),
            ));
        }
        for (from, to) in [
            ("subid", "/etc/subuid"),
            ("subid", "/etc/subgid"),
            ("passwd", "/etc/passwd"),
        ] {
            spec.mounts.push(Mount::bind(bench.path(from), to).readonly());
        }
    }
    let (exit, out, err) = finish(start(&spec).await.unwrap()).await;
    assert!(
        exit.code == 0 && out.ends_with("FINE\n"),
        "{ids} ids: {exit:?}\n{out}\n{err}"
    );
}

/// What an ordinary user can do.
async fn inside(ids: u32) {
    let bench = Bench::new().await;
    let out = run(&bench.overlay("root", "id -u; id -g; cat /proc/self/uid_map; touch /new")).await;
    let words: Vec<&str> = out.split_whitespace().collect();
    assert_eq!(words[..4], ["0", "0", "0", &USER.to_string()], "{out}");
    assert!(bench.path("root/upper/new").exists());
    // Its own network, a further process, a read-only root.
    let network = remora_net::Namespace::create().unwrap();
    let sandbox = SandboxSpec {
        hostname: Some("rootless".into()),
        network: Some(network),
        ..SandboxSpec::default()
    };
    let sandbox = Sandbox::create(&sandbox).await.unwrap();
    let mut spec = bench.overlay("net", "ls /sys/class/net; hostname; touch /x 2>&1; sleep 60");
    spec.sandbox = Arc::clone(&sandbox);
    spec.readonly_root = true;
    let container = start(&spec).await.unwrap();
    let process = Process::new(
        ["sh", "-c", "ls /sys/class/net; hostname; exit 7"]
            .map(String::from)
            .into(),
    );
    let (exit, out, _) = finish(container.exec(&process, Stdio::Pipe).await.unwrap()).await;
    assert_eq!((exit.code, out.as_str()), (7, "lo\nrootless\n"));
    container.signal(libc::SIGKILL).unwrap();
    assert_eq!(container.wait().await.unwrap().code, 137);
    other_users(&bench, ids).await;
    image(&bench).await;
    special_directories(&bench).await;
    // No control groups were handed to this user: said, and not needed.
    let error = Hierarchy::probe().unwrap_err();
    assert!(error.hint().contains("Delegate"), "{error}");
    say("FINE");
}

/// The same guarantees as for root: procfs is protected, and goes where it belongs or nowhere.
async fn special_directories(bench: &Bench) {
    let out = run(&bench.overlay("masks", "cat /proc/self/mountinfo")).await;
    let at = |place: &str| {
        let found = out.lines().rev().find(|l| l.split(' ').nth(4) == Some(place));
        found.unwrap_or_else(|| panic!("nothing is mounted at {place}:\n{out}"))
    };
    assert!(at("/proc/sys").contains(" ro,"), "{out}");
    assert!(at("/proc/keys").contains(" ro,"), "{out}");
    std::fs::remove_dir(bench.path("root/proc")).ok();
    std::os::unix::fs::symlink("/usr", bench.path("root/proc")).unwrap();
    let error = start(&bench.overlay("link", "true")).await.unwrap_err();
    assert!(error.to_string().contains("/proc of the image"), "{error}");
    std::fs::remove_file(bench.path("root/proc")).unwrap();
}

async fn other_users(bench: &Bench, ids: u32) {
    let mut spec = bench.overlay("user", "id -u; id -g; id -G");
    spec.process.uid = 1337;
    spec.process.gid = 1337;
    spec.process.groups = vec![2000];
    if ids > 1 {
        assert_eq!(run(&spec).await, "1337\n1337\n1337 2000\n");
        return;
    }
    let error = start(&spec).await.unwrap_err();
    assert_eq!(error.to_string(), "container user: become group 1337");
    assert!(error.hint().unwrap().contains("/etc/subuid"));
}

/// Layers with deletions, devices and other people's files, unpacked without root.
async fn image(bench: &Bench) {
    let store = Store::open(bench.path("store")).unwrap();
    let tar = bench.path("image.tar");
    let base = layer(&[
        Item::Directory("usr", 0o755),
        Item::Symlink("bin", "usr/bin"),
        Item::Symlink("lib", "usr/lib"),
        Item::Symlink("lib64", "usr/lib64"),
        Item::File("gone", b"", 0o644),
        Item::Directory("opaque", 0o755),
        Item::File("opaque/old", b"", 0o644),
        Item::Device("null", tar::EntryType::Char, 1, 3),
    ]);
    let top = layer(&[
        Item::File(".wh.gone", b"", 0o644),
        Item::File("opaque/.wh..wh..opq", b"", 0o644),
        Item::File("opaque/new", b"", 0o644),
    ]);
    saved(&tar, "example.com/test:1", &[base, top], &json!({}));
    import(&store, &tar, None).unwrap();
    let reference = Reference::parse("example.com/test:1").unwrap();
    let image = store.image(&reference).unwrap().unwrap();
    let args = ["sh", "-c", "ls /; ls /opaque"];
    let root = image.root(&bench.path("run")).unwrap();
    let mut spec = Spec::new("image", root, &args, Arc::clone(&bench.sandbox));
    spec.mounts.push(Mount::bind("/usr", "/usr").readonly());
    spec.stdio = Stdio::Pipe;
    let out = run(&spec).await;
    assert!(!out.contains("gone") && out.ends_with("usr\nnew\n"), "{out}");
}
