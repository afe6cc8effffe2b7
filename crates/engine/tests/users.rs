//! Containers whose users are not the machine's.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::{Bench, finish, run};
use remora_engine::container::{Mount, Process, Rlimit, RlimitKind, Root, Stdio, start};
use remora_engine::sandbox::Processes;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};

fn process(words: &[&str]) -> Process {
    Process::new(words.iter().map(ToString::to_string).collect())
}

fn first(bench: &Bench) -> u32 {
    bench.sandbox.users().unwrap().ids().first()
}

/// Owners on disk are seen as they are, what is made belongs to who made it, and the kernel's files are the pod's.
#[tokio::test]
async fn files_have_the_ids_of_the_pod() {
    let bench = Bench::own(Processes::Container).await;
    let file = bench.path("root/of-seven");
    std::fs::write(&file, "x").unwrap();
    chown(&file, Some(7), Some(8)).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let high = bench.path("root/of-nobody");
    std::fs::write(&high, "x").unwrap();
    chown(&high, Some(70_000), Some(70_000)).unwrap();
    std::fs::create_dir(bench.path("volume")).unwrap();
    let script = "stat -c %n:%u:%g / /of-seven /of-nobody /tmp-of-ours /dev /dev/pts /dev/mqueue /proc/1; \
                  echo more >> /of-seven; chown 9:9 /of-seven; echo made > /volume/made; chown 5:6 /volume/made; \
                  stat -c %n:%u:%g /of-seven /volume/made; rm /of-nobody 2>/dev/null || true; touch /tmp-of-ours/a";
    let mut spec = bench.overlay("files", script);
    spec.mounts.push(Mount::tmpfs("/tmp-of-ours", None));
    spec.mounts.push(Mount::bind(bench.path("volume"), "/volume"));
    let nobody = "65534:65534";
    let expected = [
        "/:0:0",
        "/of-seven:7:8",
        &format!("/of-nobody:{nobody}"),
        "/tmp-of-ours:0:0",
        "/dev:0:0",
        "/dev/pts:0:0",
        "/dev/mqueue:0:0",
        "/proc/1:0:0",
        "/of-seven:9:9",
        "/volume/made:5:6",
    ];
    assert_eq!(run(&spec).await.lines().collect::<Vec<_>>(), expected);
    let made = std::fs::metadata(bench.path("volume/made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (5, 6));
    // A layer is never changed.
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "x");
    // The same without layers.
    let spec = bench.script("bound", "stat -c %u:%g /of-seven; echo x > /new");
    assert_eq!(run(&spec).await, "7:8\n");
    assert_eq!(std::fs::metadata(bench.path("root/new")).unwrap().uid(), 0);
}

/// The program starts as any user of the pod; what only root of the machine may do was done before.
#[tokio::test]
async fn users_groups_and_limits_are_as_asked_for() {
    let bench = Bench::own(Processes::Container).await;
    let mut spec = bench.overlay(
        "who",
        "id -u; id -g; id -G; cat /proc/self/oom_score_adj; ulimit -Hn; ulimit -Sn; grep NoNewPrivs /proc/self/status",
    );
    spec.process.uid = 1337;
    spec.process.gid = 65_535;
    spec.process.groups = vec![12];
    spec.process.oom_score_adj = Some(300);
    spec.process.no_new_privileges = true;
    // Not above what this process has: raising that takes a capability that root may lack.
    let limit = Rlimit {
        kind: RlimitKind::OpenFiles,
        soft: 64,
        hard: 128,
    };
    spec.process.rlimits = vec![limit];
    let expected = "1337\n65535\n65535 12\n300\n128\n64\nNoNewPrivs:\t1\n";
    assert_eq!(run(&spec).await, expected);
    for (uid, gid, groups) in [(65_536, 0, vec![]), (0, 65_536, vec![]), (0, 0, vec![70_000])] {
        spec.process.uid = uid;
        spec.process.gid = gid;
        spec.process.groups = groups;
        let error = start(&spec).await.unwrap_err().to_string();
        assert!(error.contains("is not below 65536"), "{error}");
    }
    spec.process = process(&["true"]);
    spec.privileged = true;
    let error = start(&spec).await.unwrap_err().to_string();
    assert!(error.contains("privileged"), "{error}");
}

/// A further process is in the same namespaces, owns its streams, and has no group of the machine.
#[tokio::test]
async fn further_processes_join_everything() {
    for processes in [Processes::Container, Processes::Pod] {
        let bench = Bench::own(processes).await;
        let mut spec = bench.overlay("first", "echo up; exec sleep 300");
        spec.readonly_root = true;
        let container = start(&spec).await.unwrap();
        let mut further = process(&[
            "sh",
            "-c",
            "echo there > /dev/stdout; id -u; id -G; hostname; readlink /proc/self/ns/user /proc/self/ns/mnt; \
             touch /x 2>/dev/null || echo no",
        ]);
        further.uid = 33;
        further.gid = 34;
        let (exit, out, err) = finish(container.exec(&further, Stdio::Pipe).await.unwrap()).await;
        assert_eq!((exit.code, err.as_str()), (0, ""), "{out}");
        let of = |kind: &str| {
            let path = format!("/proc/{}/ns/{kind}", container.pid());
            std::fs::read_link(path).unwrap().display().to_string()
        };
        let expected = format!("there\n33\n34\nbench\n{}\n{}\nno\n", of("user"), of("mnt"));
        assert_eq!(out, expected, "{processes:?}");
        assert_ne!(
            of("user"),
            std::fs::read_link("/proc/self/ns/user")
                .unwrap()
                .display()
                .to_string()
        );
        let status = std::fs::read_to_string(format!("/proc/{}/status", container.pid())).unwrap();
        assert!(status.contains(&format!("Uid:\t{}\t", first(&bench))), "{status}");
    }
}

/// A first process that shares the pod's processes cannot reach into the one that keeps them.
#[tokio::test]
async fn the_keeper_of_shared_processes_is_closed() {
    let bench = Bench::own(Processes::Pod).await;
    let script = "ls /proc/1/root/ 2>/dev/null || echo closed; ls /proc/1/fd 2>/dev/null || echo closed; \
                  cat /proc/1/maps 2>/dev/null || echo closed";
    let mut spec = bench.overlay("curious", script);
    spec.process.capabilities = remora_engine::container::Capabilities::ALL;
    assert_eq!(run(&spec).await, "closed\nclosed\nclosed\n");
}

/// Capabilities of the pod's root are nothing on this machine.
#[tokio::test]
async fn no_capability_reaches_the_machine() {
    let bench = Bench::own(Processes::Container).await;
    let script = "mknod /dev/shm/m b 7 0 2>/dev/null || echo no device; \
                  mount -o remount,bind,rw /proc/sys; \
                  for f in kernel/core_pattern kernel/hostname vm/overcommit_memory; do \
                  ( : < /proc/sys/$f; exec 3> /proc/sys/$f ) 2>/dev/null && echo $f; done; \
                  mkdir /p && mount -t proc proc /p && echo proc of its own; \
                  mount -t ext4 /dev/loop0 /p 2>/dev/null || echo no disk; nice -n -5 true 2>/dev/null; echo end";
    let mut spec = bench.overlay("mighty", script);
    spec.process.capabilities = remora_engine::container::Capabilities::ALL;
    let out = run(&spec).await;
    assert_eq!(out, "no device\nproc of its own\nno disk\nend\n");
}

/// Layers and volumes that the kernel cannot mount with other ids are an error of the start, with the place.
#[tokio::test]
async fn what_cannot_be_mapped_is_named() {
    let bench = Bench::own(Processes::Container).await;
    let mut spec = bench.overlay("sys", "true");
    spec.mounts.push(Mount::bind("/sys/kernel", "/kernel"));
    let error = start(&spec).await.unwrap_err().to_string();
    assert!(error.contains("mount /kernel: take /sys/kernel"), "{error}");
    spec.mounts.pop();
    spec.root = Root::Bind("/proc".into());
    let error = start(&spec).await.unwrap_err().to_string();
    assert!(error.contains("take the root /proc"), "{error}");
}
