//! `remora run` as an ordinary user with subordinate ids, and what is said when there are none.
//!
//! The user, its ids and the programs that hand them out exist in a mount namespace of the test's own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const USER: u32 = 12345;
/// How long the application may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// A meshed Deployment behind a Service.
const SHOP: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: remora
        args: [demo, hello, --port, '8080']
        securityContext: {runAsUser: 1000}
---
apiVersion: batch/v1
kind: Job
metadata: {name: caller, namespace: shop}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: caller, image: remora, args: [demo, call, 'http://web/', --tries, '100']}
";

/// A directory that everybody may enter, with a binary that everybody may run.
struct Scene {
    directory: tempfile::TempDir,
    mappers: PathBuf,
}

impl Scene {
    fn new(mappers: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::copy(env!("CARGO_BIN_EXE_remora"), path("remora")).unwrap();
        std::fs::write(path("shop.yaml"), SHOP).unwrap();
        let etc = |with: &str, name: &str, text: String| {
            std::fs::create_dir_all(path(with)).unwrap();
            std::fs::write(path(with).join(name), text).unwrap();
        };
        for with in ["ids", "none"] {
            etc(with, "passwd", format!("user:x:{USER}:{USER}::/:/bin/sh\n"));
            etc(with, "resolv.conf", String::new());
        }
        for name in ["subuid", "subgid"] {
            etc("ids", name, format!("{USER}:100000:65536\n"));
        }
        std::fs::create_dir(path("home")).unwrap();
        std::os::unix::fs::chown(path("home"), Some(USER), Some(USER)).unwrap();
        Self {
            directory,
            mappers: mappers.to_owned(),
        }
    }

    /// The command as an ordinary user, with ids to give or without.
    fn remora(&self, with_ids: bool, args: &[&str]) -> Command {
        let (etc, copy) = if with_ids {
            (
                "ids",
                "cp -p \"$MAPPERS/newuidmap\" \"$MAPPERS/newgidmap\" /usr/local/bin/",
            )
        } else {
            ("none", "")
        };
        let script = format!(
            "set -e
             mount -t tmpfs none /usr/local/bin
             {copy}
             if [ -e /etc/ld.so.cache ]; then cp /etc/ld.so.cache \"$DIR/{etc}/\"; fi
             mount --bind \"$DIR/{etc}\" /etc
             exec env HOME=\"$DIR/home\" setpriv --reuid {USER} --regid {USER} --clear-groups \"$DIR/remora\" \"$@\""
        );
        let mut command = Command::new("unshare");
        command
            .args(["-m", "--propagation", "private", "sh", "-c", &script, "sh"])
            .args(args)
            .env("DIR", self.directory.path())
            .env("MAPPERS", &self.mappers)
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        command
    }

    fn done(&self, args: &[&str]) -> Output {
        self.remora(true, args).output().unwrap()
    }
}

fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Ends what was started, whatever becomes of the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn mappers() -> Option<PathBuf> {
    let programs = [
        ("newuidmap", "apt-get install uidmap"),
        ("newgidmap", "apt-get install uidmap"),
    ];
    if !remora_testkit::has_programs(&programs) {
        return None;
    }
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).find(|dir| dir.join("newuidmap").is_file())
}

/// The answer of the published port. A pod without a readiness probe is ready before its application listens, so
/// connections may be reset at first.
fn get(address: &str) -> String {
    let began = Instant::now();
    loop {
        match try_get(address) {
            Ok(answer) if !answer.is_empty() => return answer,
            other => assert!(began.elapsed() < ANSWER_TIMEOUT, "no answer: {other:?}"),
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

fn try_get(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn an_ordinary_user_runs_meshed_pods() {
    let Some(mappers) = mappers() else { return };
    let scene = Scene::new(&mappers);
    let mut command = scene.remora(true, &["run", "-f", "shop.yaml", "-p", "0:web:80"]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut run = Ended(child);
    let mut notes = BufReader::new(run.0.stderr.take().unwrap());
    let mut all = String::new();
    let mut until = |wanted: &str| loop {
        let mut line = String::new();
        assert_ne!(
            notes.read_line(&mut line).unwrap(),
            0,
            "{wanted} is missing: {all}"
        );
        all.push_str(&line);
        if line.contains(wanted) {
            return line;
        }
    };
    let published = until("is published on http://");
    let address = published.trim().rsplit('/').next().unwrap().to_owned();
    until("everything is ready");
    assert!(
        get(&address).contains("hello from web"),
        "through the published port"
    );
    // What talks to a run finds it, as the same user.
    let table = shown(&scene.done(&["ps"]));
    assert!(table.contains("proxied") && table.contains("2/2"), "{table}");
    let output = scene.done(&["exec", "deploy/web", "--", "remora", "--version"]);
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    let followed = shown(&scene.done(&["logs", "-f", "job/caller"]));
    assert!(followed.contains("http://web/ answered 200"), "{followed}");
    let pid = rustix::process::Pid::from_child(&run.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut rest = String::new();
    notes.read_to_string(&mut rest).unwrap();
    assert_eq!(run.0.wait().unwrap().code(), Some(0), "{rest}");
    let runs = scene.directory.path().join("home/.local/share/remora/runs");
    assert_eq!(std::fs::read_dir(runs).unwrap().count(), 0);
}

#[test]
fn without_further_ids_the_remedy_is_said_once() {
    let Some(mappers) = mappers() else { return };
    let scene = Scene::new(&mappers);
    let output = scene.remora(false, &["run", "-f", "shop.yaml"]).output().unwrap();
    let text = shown(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    for wanted in ["needs user 1337", "package uidmap", "usermod --add-subuids"] {
        assert!(text.contains(wanted), "{wanted} is missing: {text}");
    }
    // A pod that needs nobody but root runs all the same.
    let alone = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {restartPolicy: Never, containers: \
        [{name: c, image: remora, args: [--version]}]}}";
    std::fs::write(scene.directory.path().join("alone.yaml"), alone).unwrap();
    let args = [
        "run",
        "-f",
        "alone.yaml",
        "--inject",
        "never",
        "--until",
        "complete",
        "--logs",
    ];
    let output = scene.remora(false, &args).output().unwrap();
    let text = shown(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("| remora 0."), "{text}");
}
