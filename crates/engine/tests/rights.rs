//! What a process in a container may do, seen from inside.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::{Bench, finish, run};
use remora_engine::container::{
    Capabilities, Mount, MountKind, Process, Rlimit, RlimitKind, Seccomp, Stdio, start,
};
use remora_engine::sandbox::{Processes, Sandbox, SandboxSpec};

/// One line of `/proc/self/status`.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix(name))
        .unwrap_or_default();
    line.trim_start_matches(':').trim()
}

#[tokio::test]
async fn root_has_the_usual_capabilities_and_another_user_none() {
    let bench = Bench::new().await;
    let mut spec = bench.script("caps", "cat /proc/self/status");
    let status = run(&spec).await;
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(field(&status, set), "00000000a80425fb", "{set}");
    }
    assert_eq!(field(&status, "CapInh"), "0000000000000000");
    spec.process.uid = 1337;
    spec.process.gid = 1338;
    spec.process.groups = vec![7, 8];
    spec.process.no_new_privileges = true;
    let status = run(&spec).await;
    assert_eq!(field(&status, "Uid"), "1337\t1337\t1337\t1337");
    assert_eq!(field(&status, "Gid"), "1338\t1338\t1338\t1338");
    assert_eq!(field(&status, "Groups"), "7 8");
    assert_eq!(field(&status, "CapEff"), "0000000000000000");
    assert_eq!(field(&status, "CapBnd"), "00000000a80425fb");
    assert_eq!(field(&status, "NoNewPrivs"), "1");
}

#[tokio::test]
async fn capabilities_as_the_pod_says() {
    let bench = Bench::new().await;
    let mut spec = bench.script("caps2", "cat /proc/self/status");
    let (add, drop) = (["NET_ADMIN".to_owned()], ["ALL".to_owned()]);
    spec.process.capabilities = Capabilities::changed(&add, &drop).unwrap();
    assert_eq!(field(&run(&spec).await, "CapEff"), "0000000000001000");
    spec.process.capabilities = Capabilities::NONE;
    assert_eq!(field(&run(&spec).await, "CapBnd"), "0000000000000000");
}

#[tokio::test]
async fn the_usual_filter_denies_namespaces_and_mounts() {
    let bench = Bench::new().await;
    let script =
        "grep '^Seccomp:' /proc/self/status; unshare -n true 2>&1; mount -t tmpfs x /tmp 2>&1; (echo thread)";
    let mut spec = bench.script("seccomp", script);
    spec.process.capabilities.add("SYS_ADMIN").unwrap();
    // With the capability both are allowed.
    spec.seccomp = Seccomp::RuntimeDefault;
    let out = run(&spec).await;
    assert!(out.contains("Seccomp:\t2"), "{out}");
    assert!(!out.contains("not permitted") && !out.contains("denied"), "{out}");
    for no_new_privileges in [false, true] {
        spec.process.capabilities = Capabilities::default();
        spec.process.no_new_privileges = no_new_privileges;
        let out = run(&spec).await;
        assert!(out.contains("unshare failed: Operation not permitted"), "{out}");
        assert!(out.contains("thread"), "{out}");
    }
}

#[tokio::test]
async fn a_profile_in_json() {
    let bench = Bench::new().await;
    let mut spec = bench.script("profile", "mkdir /tmp/a 2>&1; echo $?");
    spec.seccomp = Seccomp::Profile(
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
            {"names": ["mkdir", "mkdirat", "no_such_call"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}]}"#
            .into(),
    );
    let out = run(&spec).await;
    assert!(out.contains("No space left on device"), "{out}");
    spec.seccomp = Seccomp::Profile("{".into());
    let error = start(&spec).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "container profile: prepare the filter of system calls"
    );
}

#[tokio::test]
async fn an_allow_list_holds_and_so_do_conditions() {
    let bench = Bench::new().await;
    let mut spec = bench.script("allow", "umask 077; umask 022; echo fine");
    // Everything a shell needs would be a long list: everything is allowed except one value of one argument.
    spec.seccomp = Seccomp::Profile(
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
            {"names": ["umask"], "action": "SCMP_ACT_KILL_PROCESS",
             "args": [{"index": 0, "value": 63, "op": "SCMP_CMP_EQ"}]}]}"#
            .into(),
    );
    let (exit, out, _) = finish(start(&spec).await.unwrap()).await;
    assert_eq!((exit.signal, out.as_str()), (Some(libc::SIGSYS), ""));
    // An allow list that knows nothing but the exec: the program dies on its first other call.
    spec.process.no_new_privileges = true;
    spec.seccomp = Seccomp::Profile(
        r#"{"defaultAction": "SCMP_ACT_KILL_PROCESS",
            "syscalls": [{"names": ["execve"], "action": "SCMP_ACT_ALLOW"}]}"#
            .into(),
    );
    let (exit, ..) = finish(start(&spec).await.unwrap()).await;
    assert_eq!(exit.signal, Some(libc::SIGSYS));
}

#[tokio::test]
async fn a_read_only_root_and_mounts_that_are_not() {
    let bench = Bench::new().await;
    let data = bench.path("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(bench.path("file"), "content\n").unwrap();
    let script = "touch /x 2>&1; touch /data/x && echo written; touch /ro/y 2>&1; cat /etc/file; \
                  echo z > /proc/sys/kernel/domainname; df --output=size /mem | tail -1 | tr -d ' '";
    let mut spec = bench.overlay("ro", script);
    spec.readonly_root = true;
    spec.mounts.push(Mount::bind(&data, "/data"));
    spec.mounts.push(Mount::bind(&data, "/ro").readonly());
    spec.mounts
        .push(Mount::bind(bench.path("file"), "/etc/file").readonly());
    spec.mounts.push(Mount::tmpfs("/mem", Some(1 << 20)));
    let (exit, out, err) = finish(start(&spec).await.unwrap()).await;
    assert_eq!(exit.code, 0, "{err}");
    assert!(out.contains("cannot touch '/x': Read-only file system"), "{out}");
    assert!(out.contains("written") && data.join("x").exists(), "{out}");
    assert!(
        out.contains("cannot touch '/ro/y': Read-only file system"),
        "{out}"
    );
    assert!(out.contains("content\n1024\n"), "{out}");
    assert!(err.contains("/proc/sys/kernel/domainname: Read-only"), "{err}");
}

#[tokio::test]
async fn links_do_not_lead_out() {
    let bench = Bench::new().await;
    let (root, volume) = (bench.path("root"), bench.path("volume"));
    let secret = bench.path("secret");
    for dir in [&volume, &secret] {
        std::fs::create_dir(dir).unwrap();
    }
    std::fs::write(secret.join("key"), "secret\n").unwrap();
    // An image whose mount point is a link to a directory of this machine.
    std::os::unix::fs::symlink(&secret, root.join("data")).unwrap();
    let mut spec = bench.script("link", "true");
    spec.mounts.push(Mount::bind(&volume, "/data"));
    let error = start(&spec).await.unwrap_err();
    assert!(
        error.to_string().starts_with("container link: mount /data"),
        "{error}"
    );
    // A volume with a link out of it, mounted by sub-path.
    std::os::unix::fs::symlink(&secret, volume.join("sub")).unwrap();
    let mut spec = bench.script("sub", "ls /here");
    spec.mounts.push(Mount {
        target: "/here".into(),
        kind: MountKind::Bind {
            source: volume.clone(),
            within: Some("sub".into()),
        },
        readonly: false,
    });
    let error = start(&spec).await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("container sub: mount /here: find subPath"),
        "{error}"
    );
    std::fs::create_dir(volume.join("fine")).unwrap();
    std::fs::write(volume.join("fine/one"), "").unwrap();
    let MountKind::Bind { within, .. } = &mut spec.mounts.last_mut().unwrap().kind else {
        panic!("a bind");
    };
    *within = Some("fine".into());
    assert_eq!(run(&spec).await, "one\n");
}

#[tokio::test]
async fn limits_of_a_process_and_of_a_further_one() {
    let bench = Bench::new().await;
    let mut spec = bench.script("limits", "ulimit -n; ulimit -c; sleep 60");
    spec.process.rlimits = vec![
        Rlimit {
            kind: RlimitKind::OpenFiles,
            soft: 100,
            hard: 200,
        },
        Rlimit {
            kind: RlimitKind::Core,
            soft: 0,
            hard: 0,
        },
    ];
    spec.process.oom_score_adj = Some(321);
    let container = start(&spec).await.unwrap();
    let args = [
        "sh",
        "-c",
        "cat /proc/1/limits | grep 'open files'; cat /proc/1/oom_score_adj",
    ];
    let second = container
        .exec(&Process::new(args.map(String::from).into()), Stdio::Pipe)
        .await
        .unwrap();
    let (_, out, _) = finish(second).await;
    let words: Vec<&str> = out.split_whitespace().collect();
    assert_eq!(words, ["Max", "open", "files", "100", "200", "files", "321"]);
}

#[tokio::test]
async fn only_the_standard_streams_are_open() {
    let bench = Bench::new().await;
    // The fourth is the directory that is being listed.
    let out = run(&bench.script("fds", "exec ls /proc/self/fd")).await;
    assert_eq!(out, "0\n1\n2\n3\n");
}

#[tokio::test]
async fn parts_of_proc_are_hidden() {
    let bench = Bench::new().await;
    let script = "wc -c < /proc/keys; wc -c < /proc/timer_list; ls /proc/scsi /sys/firmware 2>/dev/null | grep -v :; echo done";
    let out = run(&bench.script("proc", script)).await;
    assert_eq!(out.split_whitespace().collect::<Vec<_>>(), ["0", "0", "done"]);
}

#[tokio::test]
async fn containers_of_a_pod_may_share_their_processes() {
    let bench = Bench::with(&SandboxSpec {
        hostname: Some("together".into()),
        processes: Processes::Pod,
        ..SandboxSpec::default()
    })
    .await;
    let first = start(&bench.script("one", "exec sleep 61.5")).await.unwrap();
    let out = run(&bench.script(
        "two",
        "hostname; cat /proc/*/cmdline | tr '\\0' ' '; test $$ != 1",
    ))
    .await;
    assert!(
        out.starts_with("together\n") && out.contains("sleep 61.5"),
        "{out}"
    );
    drop(first);
}

#[tokio::test]
async fn devices_a_container_makes_are_of_no_use() {
    let bench = Bench::new().await;
    let volume = bench.path("volume");
    std::fs::create_dir(&volume).unwrap();
    let script = "for dir in / /volume /dev; do mknod $dir/n c 1 3 && { echo x > $dir/n; } 2>&1; done; echo fine > /dev/null";
    let mut spec = bench.overlay("devices", script);
    spec.mounts.push(Mount::bind(&volume, "/volume"));
    let out = run(&spec).await;
    assert_eq!(out.matches("Permission denied").count(), 3, "{out}");
    // A device that is mounted on purpose works, and a privileged container has all of them.
    spec.process.args[2] =
        "echo x > /gift && ls /dev/pts > /dev/null && test -e /dev/kmsg && echo fine".into();
    spec.mounts.push(Mount::bind("/dev/null", "/gift"));
    spec.privileged = true;
    assert_eq!(run(&spec).await, "fine\n");
}

#[tokio::test]
async fn settings_of_the_pods_namespaces_and_no_others() {
    let mut sandbox = SandboxSpec {
        hostname: Some("settings".into()),
        network: Some(remora_net::Namespace::create().unwrap()),
        sysctls: vec![
            ("net.ipv4.ip_unprivileged_port_start".into(), "80".into()),
            ("kernel.shm_rmid_forced".into(), "1".into()),
        ],
        ..SandboxSpec::default()
    };
    let bench = Bench::with(&sandbox).await;
    let script = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced";
    assert_eq!(run(&bench.script("settings", script)).await, "80\n1\n");
    for name in [
        "kernel.panic",
        "vm.swappiness",
        "net../../kernel/panic",
        "fs.file-max",
    ] {
        sandbox.sysctls = vec![(name.into(), "1".into())];
        let error = Sandbox::create(&sandbox).await.unwrap_err();
        assert!(
            error.to_string().contains("not a setting of the pod's own"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn processes_of_the_machine_when_asked_for() {
    let bench = Bench::with(&SandboxSpec {
        processes: Processes::Host,
        host_ipc: true,
        ..SandboxSpec::default()
    })
    .await;
    let pid = std::process::id();
    let out = run(&bench.script("host", &format!("test -d /proc/{pid} && hostname; echo $$"))).await;
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert!(out.starts_with(&name), "{out}");
    assert_ne!(out.lines().nth(1), Some("1"));
}

/// Kubernetes asks for low scores; where lowering is not allowed, that is no reason not to start.
#[tokio::test]
async fn a_low_oom_score_is_taken_as_far_as_allowed() {
    let bench = Bench::new().await;
    let mut spec = bench.script("score", "cat /proc/self/oom_score_adj");
    spec.process.oom_score_adj = Some(-900);
    let score: i32 = run(&spec).await.trim().parse().unwrap();
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let own: i32 = own.trim().parse().unwrap();
    assert!(score == -900 || score == own, "{score}, ours is {own}");
}
