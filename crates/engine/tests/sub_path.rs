//! `subPath` of a volume that a container can write to: it never leads out of the volume.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::{Bench, finish, run};
use remora_engine::container::{Spec, start};
use remora_engine::volumes::{self, Source, Volume, VolumeError};
use serde_json::json;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Seconds of the race; a longer run is asked for with this variable.
const RACE_SECONDS: &str = "REMORA_RACE_SECONDS";

/// A volume, and a directory of this machine outside of it.
struct Place {
    bench: Bench,
    volume: PathBuf,
    outside: PathBuf,
}

impl Place {
    async fn new() -> Self {
        let bench = Bench::new().await;
        let (volume, outside) = (bench.path("volume"), bench.path("outside"));
        for dir in [&volume, &outside] {
            std::fs::create_dir(dir).unwrap();
        }
        std::fs::write(outside.join("secret"), "").unwrap();
        Self {
            bench,
            volume,
            outside,
        }
    }

    /// A container that runs a script and has this part of the volume at `/here`.
    fn spec(&self, id: &str, sub: &str, script: &str) -> Result<Spec, VolumeError> {
        let volumes = [Volume {
            name: "v".into(),
            source: Source::Host(self.volume.clone(), String::new()),
            group: None,
        }];
        let pod = json!({"spec": {"automountServiceAccountToken": false}});
        let mount = json!({"name": "v", "mountPath": "/here", "subPath": sub});
        let container = json!({"volumeMounts": [mount]});
        let mut spec = self.bench.script(id, script);
        spec.mounts
            .extend(volumes::mounts(&pod, &container, &volumes, Path::new("/"), &[])?);
        Ok(spec)
    }

    fn assert_outside_untouched(&self) {
        let names: Vec<_> = std::fs::read_dir(&self.outside)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["secret"]);
    }
}

async fn refusal(spec: &Spec) -> remora_engine::container::StartError {
    match start(spec).await {
        Err(error) => error,
        Ok(container) => panic!("{} was started: {:?}", spec.id, finish(container).await),
    }
}

#[tokio::test]
async fn a_link_out_of_the_volume_is_refused_and_makes_no_directory() {
    let place = Place::new().await;
    symlink(&place.outside, place.volume.join("absolute")).unwrap();
    symlink("../outside", place.volume.join("relative")).unwrap();
    symlink("/proc/self/cwd", place.volume.join("magic")).unwrap();
    for sub in [
        "absolute",
        "absolute/made",
        "relative",
        "relative/made/deep",
        "magic/made",
    ] {
        let spec = place.spec("out", sub, "ls /here").unwrap();
        let error = refusal(&spec).await;
        assert!(error.to_string().contains(&format!("subPath {sub:?}")), "{error}");
        assert!(
            error.hint().unwrap().contains("leads out of the volume"),
            "{error:?}"
        );
        place.assert_outside_untouched();
    }
}

#[tokio::test]
async fn a_path_that_is_written_to_leave_the_volume_is_refused() {
    let place = Place::new().await;
    for sub in ["..", "a/../../outside", "/outside"] {
        assert!(
            matches!(place.spec("text", sub, "true"), Err(VolumeError::Escape { .. })),
            "{sub}"
        );
    }
}

#[tokio::test]
async fn missing_directories_have_the_mode_of_the_volume() {
    let place = Place::new().await;
    std::fs::set_permissions(&place.volume, std::fs::Permissions::from_mode(0o1770)).unwrap();
    let spec = place.spec("made", "a/b", "touch /here/file").unwrap();
    // Nothing is made before the container starts.
    assert!(!place.volume.join("a").exists());
    run(&spec).await;
    assert!(place.volume.join("a/b/file").exists());
    for path in ["a", "a/b"] {
        let mode = std::fs::metadata(place.volume.join(path)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o1770, "{path}");
    }
}

#[tokio::test]
async fn files_and_links_inside_of_the_volume_can_be_mounted() {
    let place = Place::new().await;
    std::fs::create_dir(place.volume.join("dir")).unwrap();
    std::fs::write(place.volume.join("dir/file"), "content").unwrap();
    symlink("dir/file", place.volume.join("link")).unwrap();
    for sub in ["dir/file", "link"] {
        let spec = place.spec("file", sub, "cat /here").unwrap();
        assert_eq!(run(&spec).await, "content", "{sub}");
    }
}

/// Exchanges two names at once, as a container can with `renameat2`.
fn exchange(dir: &Path, one: &str, other: &str) {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, dir.join(one), CWD, dir.join(other), RenameFlags::EXCHANGE).unwrap();
}

/// Whoever wins: the container has the directory of the volume, or does not start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_exchanges_directories_and_links_never_gets_out() {
    let place = Place::new().await;
    for dir in ["x/y", "other"] {
        std::fs::create_dir_all(place.volume.join(dir)).unwrap();
        std::fs::write(place.volume.join(dir).join("ordinary"), "").unwrap();
    }
    symlink(&place.outside, place.volume.join("link")).unwrap();
    let seconds = std::env::var_os(RACE_SECONDS).map_or(3, |text| text.to_str().unwrap().parse().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    let over = AtomicBool::new(false);
    let mut starts = 0u32;
    let volume = place.volume.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                exchange(&volume, "x", "link");
            }
        });
        let runtime = tokio::runtime::Handle::current();
        let work = async {
            while starts < 10 || Instant::now() < end {
                starts += 1;
                let sub = ["x", "x/y", "x/made/deep"][usize::try_from(starts).unwrap() % 3];
                let Ok(spec) = place.spec("victim", sub, "touch /here/mark; ls /here; ls -d /here/..") else {
                    continue;
                };
                if let Ok(container) = start(&spec).await {
                    let (_, out, err) = finish(container).await;
                    assert!(!out.contains("secret"), "start {starts}: {out}{err}");
                }
            }
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            tokio::task::block_in_place(|| runtime.block_on(work));
        }));
        over.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    place.assert_outside_untouched();
}
