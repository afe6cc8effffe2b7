//! Control groups on this machine, many containers at once, and the end of the engine itself.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::{Bench, finish, run};
use remora_engine::cgroup::Hierarchy;
use remora_engine::container::{Process, Resources, Spec, Stdio, start};
use remora_engine::sandbox::Processes;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt as _;

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("still not: {what}");
}

/// Directories of control groups whose name begins so, anywhere below the usual place.
fn groups(name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut stack = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = stack.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(name) {
                    found.push(entry.path());
                }
                stack.push(entry.path());
            }
        }
    }
    found
}

#[tokio::test]
async fn memory_processes_and_processor_time() {
    let bench = Bench::new().await;
    let hierarchy = Arc::new(Hierarchy::probe().unwrap());
    let mut spec = bench.script("limited-group", "sleep 60");
    spec.cgroups = Some(Arc::clone(&hierarchy));
    spec.resources = Resources {
        memory: Some(64 << 20),
        cpu_limit: Some(500),
        cpu_request: Some(250),
        pids: Some(8),
    };
    let container = start(&spec).await.unwrap();
    let dirs = groups("limited-group");
    assert!(!dirs.is_empty());
    let read = |names: [&str; 2]| {
        let files = dirs.iter().flat_map(|d| names.map(|n| d.join(n)));
        let mut texts = files.filter_map(|f| std::fs::read_to_string(f).ok());
        texts.next().unwrap_or_default().trim().to_owned()
    };
    assert_eq!(read(["memory.limit_in_bytes", "memory.max"]), "67108864");
    assert!(read(["cpu.cfs_quota_us", "cpu.max"]).starts_with("50000"));
    assert_eq!(read(["pids.max", "pids.max"]), "8");
    // A further process is in the same group: it counts, and hits the limit.
    let args = [
        "sh",
        "-c",
        "for i in 1 2 3 4 5 6 7 8 9; do sleep 5 >/dev/null 2>&1 & done; wait",
    ];
    let process = Process::new(args.map(String::from).into());
    let second = container.exec(&process, Stdio::Pipe).await.unwrap();
    let (exit, _, err) = finish(second).await;
    assert!(exit.code != 0 && err.contains("fork"), "{exit:?} {err}");
    container.signal(libc::SIGKILL).unwrap();
    container.wait().await.unwrap();
    drop(container);
    until("the groups are gone", || groups("limited-group").is_empty()).await;
    let above = dirs
        .iter()
        .map(|d| d.parent().unwrap().to_owned())
        .collect::<Vec<_>>();
    drop((spec, hierarchy));
    assert!(!above.iter().any(|dir| dir.exists()), "{above:?}");
}

/// One container uses up what the pod has; the other one has nothing left, and this machine does not notice.
#[tokio::test]
async fn containers_of_a_pod_share_its_number_of_processes() {
    let bench = Bench::new().await;
    let node = Arc::new(Hierarchy::probe().unwrap());
    let pod = Arc::new(node.pod("pod-of-few", 12).unwrap());
    // With the shell that is all.
    let greedy = "for i in 1 2 3 4 5 6 7 8 9 10 11; do sleep 60 & done; wait";
    let mut spec = bench.script("greedy-member", greedy);
    spec.cgroups = Some(Arc::clone(&pod));
    let greedy = start(&spec).await.unwrap();
    let counted = || {
        let pids = groups("pod-of-few").into_iter().find_map(|dir| {
            let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
            Some((read("pids.max")?, read("pids.current")?))
        });
        pids.unwrap()
    };
    assert_eq!(counted().0, "12\n");
    until("the pod has all its processes", || counted().1 == "12\n").await;
    let mut spec = Spec {
        id: "other-member".into(),
        ..spec
    };
    // It can be put into the group, but it cannot have another process.
    spec.process.args = ["sh", "-c", "(true); echo started"].map(String::from).into();
    let (_, out, err) = finish(start(&spec).await.unwrap()).await;
    assert!(err.contains("fork"), "{out}{err}");
    drop((spec, greedy, pod));
    until("the group of the pod is gone", || groups("pod-of-few").is_empty()).await;
}

#[tokio::test]
async fn memory_that_runs_out_is_noticed() {
    let bench = Bench::new().await;
    let script = "a=xxxxxxxxxxxxxxxx; while :; do a=$a$a; done";
    let mut spec = bench.script("greedy-group", script);
    spec.cgroups = Some(Arc::new(Hierarchy::probe().unwrap()));
    spec.resources.memory = Some(16 << 20);
    let (exit, ..) = finish(start(&spec).await.unwrap()).await;
    assert_eq!((exit.code, exit.oom_killed), (137, true));
    spec.process.args = ["sh", "-c", "kill -9 $$; exit 3"].map(String::from).into();
    let (exit, ..) = finish(start(&spec).await.unwrap()).await;
    assert!(!exit.oom_killed, "{exit:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_at_once() {
    let bench = Arc::new(Bench::new().await);
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for number in 0..200 {
        let bench = Arc::clone(&bench);
        tasks.push(tokio::spawn(async move {
            let id = format!("many{number}");
            let spec = bench.overlay(
                &id,
                &format!("echo {number} > /mine; cat /mine; exit {}", number % 100),
            );
            // Neighbours that allocate while others are cloned.
            let noise: Vec<String> = (0..200).map(|i| i.to_string().repeat(50)).collect();
            let (exit, out, err) = finish(start(&spec).await.unwrap()).await;
            drop(noise);
            assert_eq!(
                (exit.code, out, err),
                (number % 100, format!("{number}\n"), String::new())
            );
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    println!("200 containers in {:?}", begun.elapsed());
}

#[tokio::test]
async fn start_times() {
    let (bench, own) = (Bench::new().await, Bench::own(Processes::Container).await);
    for (name, spec) in [
        ("bind", bench.script("time", "true")),
        ("overlay", bench.overlay("time", "true")),
        ("bind, own users", own.script("time", "true")),
        ("overlay, own users", own.overlay("time", "true")),
    ] {
        let mut spec = spec;
        spec.process.args = vec!["/usr/bin/true".into()];
        spec.stdio = Stdio::Null;
        let (mut started, mut ended) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            let begun = Instant::now();
            let container = start(&spec).await.unwrap();
            started.push(begun.elapsed());
            container.wait().await.unwrap();
            ended.push(begun.elapsed());
        }
        started.sort();
        ended.sort();
        println!(
            "{name}: executed {:?}, collected {:?} (medians of 100)",
            started[50], ended[50]
        );
        if !name.contains("own") {
            assert!(started[50] < Duration::from_millis(100), "{:?}", started[50]);
        }
    }
}

/// Set for a run of this program that plays the engine to be killed.
const ROLE: &str = "REMORA_TEST_ENGINE";

/// The engine of the next test: not a test of its own.
#[tokio::test]
async fn played_by_a_copy() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let bench = Bench::new().await;
    // Both lose the kernel's binding to the parent: by changing the user, and by being a grandchild.
    let drop = "setpriv --reuid 1000 --regid 1000 --clear-groups sh -c 'sleep 300 & sleep 301' & exec setpriv \
                --reuid 1000 --regid 1000 --clear-groups sleep 302";
    let mut spec = bench.overlay("doomed-group", drop);
    spec.cgroups = Some(Arc::new(Hierarchy::probe().unwrap()));
    spec.resources.pids = Some(50);
    let container = start(&spec).await.unwrap();
    let mut second = container
        .exec(
            &Process::new(["sh", "-c", "echo up; exec sleep 303"].map(String::from).into()),
            Stdio::Pipe,
        )
        .await
        .unwrap();
    let mut pipe = second.stdout.take().unwrap();
    pipe.read_exact(&mut [0; 3]).await.unwrap();
    let tasks = [container.pid(), second.pid()].map(|p| p.to_string()).join(" ");
    println!("READY {tasks}");
    container.wait().await.unwrap();
}

#[tokio::test]
async fn nothing_outlives_a_killed_engine() {
    let mounts_before = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut engine = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "played_by_a_copy", "--nocapture"])
        .env(ROLE, "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(engine.stdout.take().unwrap()));
    let ready = lines.find_map(|l| l.unwrap().split_once("READY ").map(|(_, pids)| pids.to_owned()));
    let pids: Vec<String> = ready.unwrap().split(' ').map(String::from).collect();
    let inside = std::fs::read_link(format!("/proc/{}/ns/pid", pids[0])).unwrap();
    engine.kill().unwrap();
    engine.wait().unwrap();
    let of_container = || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter(|p| std::fs::read_link(p.path().join("ns/pid")).is_ok_and(|ns| ns == inside))
            .count()
    };
    until("its processes are gone", || of_container() == 0).await;
    until("all are collected", || {
        !pids.iter().any(|p| Path::new("/proc").join(p).exists())
    })
    .await;
    // Mounts were in the container's namespace only; its control group waits for the next start.
    assert_eq!(
        std::fs::read_to_string("/proc/self/mountinfo").unwrap(),
        mounts_before
    );
    let left = groups("doomed-group");
    assert!(!left.is_empty());
    assert_eq!(Hierarchy::probe().unwrap().sweep(), 0);
    assert!(groups("doomed-group").is_empty());
}

#[tokio::test]
async fn nothing_is_left_after_failed_starts() {
    let bench = Bench::new().await;
    let mut spec = bench.overlay("failing-group", "true");
    spec.cgroups = Some(Arc::new(Hierarchy::probe().unwrap()));
    spec.resources.pids = Some(9);
    spec.process.cwd = "/proc/self/nothing".into();
    let error = start(&spec).await.unwrap_err();
    assert!(
        error.to_string().contains("change to /proc/self/nothing"),
        "{error}"
    );
    until("its group is gone", || groups("failing-group").is_empty()).await;
    spec.process.cwd = "/made/for/it".into();
    spec.process.args = ["pwd"].map(String::from).into();
    assert_eq!(run(&spec).await, "/made/for/it\n");
}
