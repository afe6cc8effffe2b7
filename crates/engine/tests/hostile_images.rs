//! Images that try to lead the mounts, masks and working directory of their container elsewhere.
//!
//! Nothing here changes a setting of this machine: a file of `/proc/sys` is only opened for writing, never written.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::images::{Item, layer, saved};
use common::{Bench, finish, run};
use remora_engine::container::{Capabilities, Mount, Process, Seccomp, Spec, Stdio, start};
use remora_engine::image::Reference;
use remora_engine::image::archive::import;
use remora_engine::store::Store;
use serde_json::json;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

/// Opens a file for writing and says what the kernel answers; nothing is written.
const OPEN_FOR_WRITE: &str = "try() { (: >> \"$1\") 2>&1 && echo \"OPENED $1\"; }";

/// The error of a container that must not start.
async fn refusal(spec: &Spec) -> String {
    match start(spec).await {
        Err(error) => error.to_string(),
        Ok(container) => {
            let (_, out, err) = finish(container).await;
            panic!("{} was started: {out}{err}", spec.id);
        }
    }
}

/// `/proc` leads to one directory before `/dev` is mounted, and to another one after it.
fn lead_proc_elsewhere(root: &Path) {
    for dir in ["dev", "x/y/z", "x/A", "A/self"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    symlink("/x/y/z", root.join("dev/pts")).unwrap();
    symlink("/dev/pts/../../A", root.join("proc")).unwrap();
}

#[tokio::test]
async fn an_image_whose_proc_changes_its_meaning_is_refused() {
    let bench = Bench::new().await;
    lead_proc_elsewhere(&bench.path("root"));
    let script = format!("{OPEN_FOR_WRITE}; try /x/A/sys/kernel/core_pattern; cat /x/A/self/mountinfo");
    for spec in [bench.script("evil", &script), bench.overlay("evil2", &script)] {
        let error = refusal(&spec).await;
        assert!(error.contains("/proc of the image"), "{error}");
    }
    assert_eq!(std::fs::read_dir(bench.path("root/x/A")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_special_directory_of_an_image_must_be_a_directory() {
    for place in ["proc", "sys", "dev"] {
        for to in ["/elsewhere", "elsewhere", "/", "/usr/../elsewhere", "/nowhere"] {
            let bench = Bench::new().await;
            std::fs::create_dir(bench.path("root/elsewhere")).unwrap();
            symlink(to, bench.path("root").join(place)).unwrap();
            let error = refusal(&bench.overlay("link", "true")).await;
            assert!(
                error.contains(&format!("/{place} of the image")),
                "{place} -> {to}: {error}"
            );
        }
        let bench = Bench::new().await;
        std::fs::write(bench.path("root").join(place), "").unwrap();
        let error = refusal(&bench.overlay("file", "true")).await;
        assert!(
            error.contains(&format!("/{place} of the image")),
            "{place}: {error}"
        );
    }
}

#[tokio::test]
async fn links_below_dev_of_an_image_are_covered() {
    let bench = Bench::new().await;
    let root = bench.path("root");
    std::fs::create_dir_all(root.join("dev")).unwrap();
    std::fs::create_dir_all(root.join("elsewhere")).unwrap();
    for name in ["pts", "shm", "mqueue", "null", "fd", "ptmx"] {
        symlink("/elsewhere", root.join("dev").join(name)).unwrap();
    }
    let out = run(&bench.overlay("covered", "cat /proc/self/mountinfo; ls /elsewhere")).await;
    for (place, kind) in [
        ("/dev/pts", "devpts"),
        ("/dev/shm", "tmpfs"),
        ("/dev/mqueue", "mqueue"),
    ] {
        let found = mount_at(&out, place);
        assert!(found.contains(&format!(" - {kind} ")), "{place}: {found}");
    }
    assert!(!out.contains("elsewhere"), "{out}");
}

/// The line of `mountinfo` for a place; the last one covers the others.
fn mount_at<'a>(mountinfo: &'a str, place: &str) -> &'a str {
    let at = |line: &&str| line.split(' ').nth(4) == Some(place);
    let found = mountinfo.lines().rev().find(at);
    found.unwrap_or_else(|| panic!("nothing is mounted at {place}:\n{mountinfo}"))
}

fn is_read_only(line: &str) -> bool {
    let options = line.split(' ').nth(5).unwrap_or_default();
    options.split(',').any(|option| option == "ro")
}

#[tokio::test]
async fn proc_and_sys_are_masked_and_protected_whatever_the_capabilities() {
    let bench = Bench::new().await;
    let script = format!(
        "{OPEN_FOR_WRITE}; try /proc/sys/kernel/core_pattern; try /proc/sysrq-trigger; cat /proc/self/mountinfo"
    );
    let mut spec = bench.script("masks", &script);
    spec.process.capabilities = Capabilities::ALL;
    let out = run(&spec).await;
    assert!(!out.contains("OPENED"), "{out}");
    assert!(out.contains("core_pattern: Read-only file system"), "{out}");
    for place in ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/sys"] {
        // Not every machine has all of them.
        if Path::new(place).exists() {
            let found = mount_at(&out, place);
            assert!(is_read_only(found), "{found}");
        }
    }
    for place in [
        "/proc/acpi",
        "/proc/asound",
        "/proc/interrupts",
        "/proc/kcore",
        "/proc/keys",
        "/proc/latency_stats",
        "/proc/sched_debug",
        "/proc/scsi",
        "/proc/timer_list",
        "/sys/devices/virtual/powercap",
        "/sys/firmware",
    ] {
        if Path::new(place).exists() {
            let found = mount_at(&out, place);
            assert!(is_read_only(found), "{found}");
            assert!(
                !found.contains(" - proc ") && !found.contains(" - sysfs "),
                "{found}"
            );
        }
    }
}

#[tokio::test]
async fn thermal_counters_of_processors_are_masked() {
    let bench = Bench::new().await;
    let counters = |cpu: usize| format!("/sys/devices/system/cpu/cpu{cpu}/thermal_throttle");
    let out = run(&bench.script("thermal", "cat /proc/self/mountinfo")).await;
    for place in (0..).map(counters).take_while(|place| Path::new(place).exists()) {
        assert!(is_read_only(mount_at(&out, &place)), "{out}");
    }
}

/// A directory of this machine that this process has open, as the engine has directories open.
struct Outside {
    dir: tempfile::TempDir,
    open: File,
}

impl Outside {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), "").unwrap();
        let open = File::open(dir.path()).unwrap();
        Self { dir, open }
    }

    /// As the container's first process would find it.
    fn magic_link(&self) -> String {
        format!("/proc/self/fd/{}", self.open.as_raw_fd())
    }

    fn assert_untouched(&self) {
        let names: Vec<_> = std::fs::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["secret"]);
    }
}

#[tokio::test]
async fn a_mount_point_through_a_magic_link_makes_nothing_outside() {
    let bench = Bench::new().await;
    let outside = Outside::new();
    symlink(outside.magic_link(), bench.path("root/data")).unwrap();
    std::fs::create_dir(bench.path("volume")).unwrap();
    let mut spec = bench.script("magic", "true");
    spec.mounts
        .push(Mount::bind(bench.path("volume"), "/data/made/below"));
    let error = refusal(&spec).await;
    assert!(error.contains("/data/made/below"), "{error}");
    outside.assert_untouched();
}

#[tokio::test]
async fn a_working_directory_of_this_machine_is_refused() {
    let bench = Bench::new().await;
    let outside = Outside::new();
    symlink(outside.magic_link(), bench.path("root/work")).unwrap();
    for cwd in [
        outside.magic_link(),
        format!("{}/made", outside.magic_link()),
        "/work".into(),
        "/work/made".into(),
    ] {
        let mut spec = bench.script("cwd", "ls");
        spec.process.cwd = cwd.clone().into();
        let error = refusal(&spec).await;
        assert!(error.contains(&format!("change to {cwd}")), "{error}");
        outside.assert_untouched();
    }
}

#[tokio::test]
async fn a_further_process_has_no_working_directory_of_this_machine() {
    let bench = Bench::new().await;
    let outside = Outside::new();
    let container = start(&bench.overlay("first", "sleep 60")).await.unwrap();
    for cwd in [outside.magic_link(), format!("{}/made", outside.magic_link())] {
        let mut process = Process::new(vec!["ls".into()]);
        process.cwd = cwd.into();
        let error = container
            .exec(&process, Stdio::Pipe)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("change to"), "{error}");
        outside.assert_untouched();
    }
}

#[tokio::test]
async fn nothing_is_mounted_over_parts_of_proc() {
    let bench = Bench::new().await;
    std::fs::create_dir(bench.path("volume")).unwrap();
    symlink("/proc/self", bench.path("root/data")).unwrap();
    for target in ["/proc", "/proc/sys", "/proc/self/attr", "/data/attr"] {
        let mut spec = bench.script("over", "true");
        spec.mounts.push(Mount::bind(bench.path("volume"), target));
        let error = refusal(&spec).await;
        assert!(error.contains(target), "{error}");
    }
}

/// Everything an archive can hold, a hundred thousand times.
#[tokio::test]
async fn an_archive_of_hostile_entries_stays_in_its_container() {
    let bench = Bench::new().await;
    let store = Store::open(bench.path("store")).unwrap();
    let secret = bench.path("secret");
    std::fs::write(&secret, "secret").unwrap();
    let to_secret = secret.to_str().unwrap();
    let names: Vec<String> = (0..100_000).map(|n| format!("many/{n}")).collect();
    let mut items = vec![
        Item::Directory("usr", 0o755),
        Item::Symlink("bin", "usr/bin"),
        Item::Symlink("lib", "usr/lib"),
        Item::Symlink("lib64", "usr/lib64"),
        Item::Symlink("out", to_secret),
        Item::Symlink("up", "../../../../../../../../../../../../etc/hostname"),
        Item::File("own", b"own", 0o4755),
        Item::Hardlink("same", "own"),
        Item::Device("disk", tar::EntryType::Block, 254, 0),
        Item::Device("null", tar::EntryType::Char, 1, 3),
        Item::Directory("many", 0o755),
    ];
    items.extend(names.iter().map(|name| Item::File(name, b"", 0o644)));
    let archive = bench.path("image.tar");
    saved(&archive, "example.com/hostile:1", &[layer(&items)], &json!({}));
    import(&store, &archive, None).unwrap();
    let reference = Reference::parse("example.com/hostile:1").unwrap();
    let image = store.image(&reference).unwrap().unwrap();
    let root = image.root(&bench.path("run")).unwrap();
    let script = "cat /out /up /disk /null; ls /many | wc -l; cat /same";
    let mut spec = Spec::new("hostile", root, &["sh", "-c", script], Arc::clone(&bench.sandbox));
    spec.mounts.push(Mount::bind("/usr", "/usr").readonly());
    spec.stdio = Stdio::Pipe;
    spec.seccomp = Seccomp::RuntimeDefault;
    let (_, out, err) = finish(start(&spec).await.unwrap()).await;
    assert_eq!(out, "100000\nown", "{err}");
    assert_eq!(err.lines().count(), 4, "{err}");
}
