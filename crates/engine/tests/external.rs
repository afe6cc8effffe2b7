//! The same container by `runc` and by the own runner: what the process sees is to be the same.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::{Bench, finish};
use remora_engine::container::{Mount, Process, Rlimit, RlimitKind, Seccomp, Spec, Stdio, external, start};
use remora_engine::sandbox::{Processes, SandboxSpec};
use remora_testkit::has_programs;
use std::path::{Path, PathBuf};

fn runc() -> Option<PathBuf> {
    if !has_programs(&[("runc", "apt-get install runc")]) {
        return None;
    }
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path)
        .map(|dir| dir.join("runc"))
        .find(|p| p.is_file())
}

/// What it sees of itself.
const LOOK: &str = "grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status; pwd; env | sort; hostname; \
    ulimit -n; cat /proc/self/oom_score_adj; ls /dev | grep -v core; unshare -n true 2>&1; touch /x 2>&1; cat /data/f; \
    touch /data/g 2>&1; wc -c < /proc/keys; echo 1 2>&1 > /proc/sys/kernel/panic; echo $$; \
    readlink /proc/self/ns/net; readlink /proc/self/ns/uts; exit 7";

async fn look(spec: &Spec, runc: &Path, dir: &Path) -> (String, String) {
    let (ours, theirs) = (
        start(spec).await.unwrap(),
        external::start(spec, runc, dir).await.unwrap(),
    );
    let mut seen = Vec::new();
    for container in [ours, theirs] {
        let (exit, out, err) = finish(container).await;
        assert_eq!(exit.code, 7, "{out}{err}");
        seen.push(out + &err);
    }
    let theirs = seen.pop().unwrap();
    (seen.pop().unwrap(), theirs)
}

#[tokio::test]
async fn both_show_the_same() {
    let Some(runc) = runc() else {
        return;
    };
    let bench = Bench::with(&SandboxSpec {
        hostname: Some("same".into()),
        network: Some(remora_net::Namespace::create().unwrap()),
        ..SandboxSpec::default()
    })
    .await;
    std::fs::create_dir(bench.path("data")).unwrap();
    std::fs::write(bench.path("data/f"), "content\n").unwrap();
    for (number, uid) in [0, 1337].into_iter().enumerate() {
        let mut spec = bench.overlay(&format!("same{number}"), LOOK);
        spec.readonly_root = true;
        spec.seccomp = Seccomp::RuntimeDefault;
        spec.mounts
            .push(Mount::bind(bench.path("data"), "/data").readonly());
        spec.process.uid = uid;
        spec.process.gid = uid;
        spec.process.groups = vec![7];
        spec.process.no_new_privileges = uid != 0;
        spec.process.cwd = "/data".into();
        spec.process.oom_score_adj = Some(111);
        spec.process.env = vec![
            ("PATH".into(), "/usr/bin:/bin".into()),
            ("A".into(), "b c".into()),
        ];
        spec.process.rlimits = vec![Rlimit {
            kind: RlimitKind::OpenFiles,
            soft: 77,
            hard: 99,
        }];
        let (ours, theirs) = look(&spec, &runc, &bench.path(&format!("bundle{number}"))).await;
        assert_eq!(ours, theirs);
    }
}

#[tokio::test]
async fn signals_further_processes_and_the_end() {
    let Some(runc) = runc() else {
        return;
    };
    let bench = Bench::with(&SandboxSpec {
        processes: Processes::Container,
        ..SandboxSpec::default()
    })
    .await;
    let spec = bench.overlay("live", "trap 'exit 42' TERM; while :; do sleep 0.01; done");
    let container = external::start(&spec, &runc, &bench.path("live-bundle"))
        .await
        .unwrap();
    let process = Process::new(
        ["sh", "-c", "ps -o args= -p 1 || cat /proc/1/cmdline; exit 9"]
            .map(String::from)
            .into(),
    );
    let (exit, out, err) = finish(container.exec(&process, Stdio::Pipe).await.unwrap()).await;
    assert!(exit.code == 9 && out.contains("trap"), "{exit:?} {out} {err}");
    container.signal(libc::SIGTERM).unwrap();
    assert_eq!(container.wait().await.unwrap().code, 42);
    drop(container);
    // Dropped while it runs: its process ends, and the runtime forgets it.
    let spec = bench.overlay("dropped", "sleep 60");
    let container = external::start(&spec, &runc, &bench.path("dropped-bundle"))
        .await
        .unwrap();
    let process = format!("/proc/{}", container.pid());
    assert!(Path::new(&process).exists());
    drop(container);
    let state = bench.path("dropped-bundle/state/dropped");
    for _ in 0..1000 {
        if !Path::new(&process).exists() && !state.exists() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{process} or {} is still there", state.display());
}

#[tokio::test]
async fn a_refusal_is_told_in_the_runtimes_words() {
    let Some(runc) = runc() else {
        return;
    };
    let bench = Bench::new().await;
    let mut spec = bench.overlay("refused", "");
    spec.process.args = vec!["/no/such/program".into()];
    let error = external::start(&spec, &runc, &bench.path("bundle"))
        .await
        .unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        error.to_string().contains("start with") && source.contains("no such file"),
        "{error}: {source}"
    );
    let error = external::start(&spec, Path::new("/no/runtime"), &bench.path("bundle2"))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("execute /no/runtime"), "{error}");
}
