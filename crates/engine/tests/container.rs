//! Real containers: what a process inside sees and may do, and how it ends.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::{Bench, finish, run};
use remora_engine::container::{Mount, Process, Stdio, start};

#[tokio::test]
async fn exit_code_and_output() {
    let bench = Bench::new().await;
    let spec = bench.script("code", "echo hello; echo oh >&2; exit 7");
    let (exit, out, err) = finish(start(&spec).await.unwrap()).await;
    assert_eq!((exit.code, exit.signal), (7, None));
    assert_eq!((out.as_str(), err.as_str()), ("hello\n", "oh\n"));
}

#[tokio::test]
async fn a_signal_reaches_the_process_and_its_answer_is_the_exit_code() {
    let bench = Bench::new().await;
    let spec = bench.script(
        "trap",
        "trap 'exit 42' TERM; echo ready; while :; do sleep 0.01; done",
    );
    let mut container = start(&spec).await.unwrap();
    let mut pipe = container.stdout.take().unwrap();
    let mut line = [0; 6];
    tokio::io::AsyncReadExt::read_exact(&mut pipe, &mut line)
        .await
        .unwrap();
    container.signal(libc::SIGTERM).unwrap();
    assert_eq!(container.wait().await.unwrap().code, 42);
    // Afterwards nobody is there to get one, and asking again gives the same answer.
    container.signal(libc::SIGTERM).unwrap();
    assert_eq!(container.wait().await.unwrap().code, 42);
}

#[tokio::test]
async fn killed_is_128_plus_the_signal() {
    let bench = Bench::new().await;
    let container = start(&bench.script("killed", "sleep 60")).await.unwrap();
    container.signal(libc::SIGKILL).unwrap();
    let exit = container.wait().await.unwrap();
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
}

#[tokio::test]
async fn it_sees_its_own_processes_its_name_and_its_root() {
    let bench = Bench::new().await;
    let script = "echo $$; hostname; ls /; ls /dev; ls /proc | grep -c '^[0-9]'; ls /home 2>&1; exit 0";
    let out = run(&bench.script("own", script)).await;
    assert!(out.starts_with("1\nbench\nbin\ndev\nlib\n"), "{out}");
    for name in ["full", "null", "ptmx", "pts", "shm", "stderr", "urandom"] {
        assert!(out.contains(&format!("{name}\n")), "{name}: {out}");
    }
    assert!(out.contains("cannot access '/home'"), "{out}");
}

#[tokio::test]
async fn the_error_names_the_step() {
    let bench = Bench::new().await;
    let mut spec = bench.script("absent", "true");
    spec.mounts.push(Mount::bind("/no/such/thing", "/data"));
    let error = start(&spec).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "container absent: mount /data: take /no/such/thing"
    );
    let mut spec = bench.script("absent", "true");
    spec.process.args = vec!["no-such-program".into()];
    let error = start(&spec).await.unwrap_err();
    assert_eq!(error.to_string(), "container absent: execute no-such-program");
    assert!(error.hint().unwrap().contains("not in the image"), "{error:?}");
}

#[tokio::test]
async fn a_further_process_is_in_the_same_container() {
    let bench = Bench::new().await;
    let mut spec = bench.overlay("first", "echo here > /mark; echo ready; sleep 60");
    spec.process.uid = 0;
    let mut first = start(&spec).await.unwrap();
    let mut pipe = first.stdout.take().unwrap();
    tokio::io::AsyncReadExt::read_exact(&mut pipe, &mut [0; 6])
        .await
        .unwrap();
    let args = [
        "sh",
        "-c",
        "cat /mark; cat /proc/1/cmdline | tr '\\0' ' '; echo $WHO; exit 9",
    ];
    let mut process = Process::new(args.map(String::from).into());
    process.env = vec![("WHO".into(), "me".into())];
    let second = first.exec(&process, Stdio::Pipe).await.unwrap();
    let (exit, out, err) = finish(second).await;
    assert_eq!((exit.code, err.as_str()), (9, ""));
    assert!(out.starts_with("here\nsh -c echo here"), "{out}");
    assert!(out.ends_with("me\n"), "{out}");
    assert_eq!(
        first
            .exec(&Process::new(vec!["/nowhere".into()]), Stdio::Null)
            .await
            .unwrap_err()
            .to_string(),
        "container first: execute /nowhere"
    );
}

#[tokio::test]
async fn home_is_where_the_containers_own_files_say() {
    let bench = Bench::new().await;
    std::fs::create_dir(bench.path("root/etc")).unwrap();
    std::fs::write(bench.path("root/etc/passwd"), "me:x:1234:0::/home/me:/bin/sh\n").unwrap();
    let mut spec = bench.overlay("home", "echo $HOME; sleep 60");
    spec.process.uid = 1234;
    let mut first = start(&spec).await.unwrap();
    let mut line = [0; 9];
    let mut pipe = first.stdout.take().unwrap();
    tokio::io::AsyncReadExt::read_exact(&mut pipe, &mut line)
        .await
        .unwrap();
    assert_eq!(&line, b"/home/me\n");
    for (uid, home) in [(1234, "/home/me\n"), (77, "/\n")] {
        let mut process = Process::new(["sh", "-c", "echo $HOME"].map(String::from).into());
        process.uid = uid;
        let (_, out, _) = finish(first.exec(&process, Stdio::Pipe).await.unwrap()).await;
        assert_eq!(out, home);
    }
    spec.process.env = vec![("HOME".into(), "/given".into())];
    spec.process.args[2] = "echo $HOME".into();
    assert_eq!(run(&spec).await, "/given\n");
}

#[tokio::test]
async fn dropping_ends_it() {
    let bench = Bench::new().await;
    let container = start(&bench.script("dropped", "sleep 60")).await.unwrap();
    let proc = format!("/proc/{}", container.pid());
    assert!(std::path::Path::new(&proc).exists());
    drop(container);
    for _ in 0..500 {
        if !std::path::Path::new(&proc).exists() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{proc} is still there");
}
