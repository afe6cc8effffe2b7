//! Talking to a run that goes on: `remora ps`, `logs`, `exec` and `delete`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a log line may take to appear.
const LOGS_TIMEOUT: Duration = Duration::from_mins(1);

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

const SHOP: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: web
        image: remora
        args: [demo, hello, --port, '8080']
        volumeMounts:
        - {name: bin, mountPath: /bin}
        - {name: lib, mountPath: /lib}
        - {name: lib64, mountPath: /lib64}
      volumes:
      - {name: bin, hostPath: {path: /bin}}
      - {name: lib, hostPath: {path: /lib}}
      - {name: lib64, hostPath: {path: /lib64}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers:
      - {name: db, image: remora, args: [demo, hello, --port, '8080']}
---
apiVersion: v1
kind: Pod
metadata: {name: fails, namespace: shop}
spec:
  containers:
  - {name: fails, image: remora, args: [demo, call, 'http://127.0.0.1:1/', --tries, '2']}
";

/// A run in the background.
struct Run {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
}

struct Scene {
    state: tempfile::TempDir,
    images: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Self {
            state: tempfile::tempdir().unwrap(),
            images: tempfile::tempdir().unwrap(),
        }
    }

    fn start(&self, manifest: &str) -> Run {
        let mut child = Command::new(env!("CARGO_BIN_EXE_remora"))
            .args(["run", "-f", "-", "--inject", "never", "--fast-backoff", "50"])
            .arg("--state-dir")
            .arg(self.state.path())
            .arg("--image-store")
            .arg(self.images.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(manifest.as_bytes()).unwrap();
        let output = child.stdout.take().map(BufReader::new);
        Run { child, output }
    }

    fn command(&self, args: &[&str]) -> Command {
        let (verb, rest) = args.split_first().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
        command
            .arg(verb)
            .arg("--state-dir")
            .arg(self.state.path())
            .args(rest)
            .stdin(Stdio::null());
        command
    }

    fn remora(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Standard output of a command that has to work.
    fn well(&self, args: &[&str]) -> String {
        let output = self.remora(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", shown(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn pods(&self) -> Vec<Value> {
        serde_json::from_str(&self.well(&["ps", "-o", "json"])).unwrap()
    }

    /// Pods as soon as they are as wanted.
    fn when(&self, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let began = Instant::now();
        loop {
            let pods = self.pods();
            if wanted(&pods) {
                return pods;
            }
            assert!(began.elapsed() < PATIENCE, "{pods:#?}");
        }
    }
}

fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

impl Run {
    /// Reads what it says until a line with this text.
    fn says(&mut self, wanted: &str) {
        let output = self.output.as_mut().unwrap();
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(
                output.read_line(&mut line).unwrap(),
                0,
                "{wanted:?} is missing: {all}"
            );
            all.push_str(&line);
            if line.contains(wanted) {
                return;
            }
        }
    }

    fn stop(&mut self) -> Option<i32> {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        // It must not wait for somebody to read.
        if let Some(mut output) = self.output.take() {
            std::io::copy(&mut output, &mut std::io::sink()).unwrap();
        }
        self.child.wait().unwrap().code()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn named<'a>(pods: &'a [Value], start: &str) -> Vec<&'a Value> {
    pods.iter()
        .filter(|p| p["name"].as_str().unwrap().starts_with(start))
        .collect()
}

fn name(pod: &Value) -> String {
    pod["name"].as_str().unwrap().to_owned()
}

fn are_ready(pods: &[Value], start: &str, count: usize) -> bool {
    let found = named(pods, start);
    found.len() == count && found.iter().all(|p| p["ready"] == true)
}

#[test]
fn nothing_runs() {
    let scene = Scene::new();
    let output = scene.remora(&["ps"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(shown(&output).contains("no run goes on"), "{}", shown(&output));
    assert_eq!(scene.well(&["ps", "-o", "json"]), "[]\n");
    for args in [&["logs", "a"][..], &["exec", "a", "--", "b"], &["delete", "a"]] {
        let output = scene.remora(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(shown(&output).contains("start one with"), "{}", shown(&output));
    }
}

#[test]
fn pods_are_listed_read_entered_and_deleted() {
    let scene = Scene::new();
    let mut run = scene.start(SHOP);
    run.says("shop/web");
    let pods = scene.when(|pods| {
        let crashed = named(pods, "fails")
            .iter()
            .any(|p| p["restarts"].as_u64() > Some(1));
        are_ready(pods, "web", 1) && are_ready(pods, "db", 2) && crashed
    });
    let web = name(named(&pods, "web")[0]);
    let table = scene.well(&["ps"]);
    assert!(table.starts_with("NAMESPACE   NAME"), "{table}");
    assert!(
        table
            .lines()
            .any(|l| l.contains(&web) && l.contains("1/1") && l.contains("direct")),
        "{table}"
    );

    read(&scene, &web);
    enter(&scene, &web);
    delete(&scene, &web);

    assert!(run.stop().is_some(), "it ended by itself");
    let left: Vec<_> = std::fs::read_dir(scene.state.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(scene.well(&["ps", "-o", "json"]), "[]\n");
}

fn read(scene: &Scene, web: &str) {
    assert!(shown(&scene.remora(&["logs", web])).contains("listening on port 8080"));
    assert!(shown(&scene.remora(&["logs", "deployment/web"])).contains("listening on port 8080"));
    // Two lines a start, one of which is asked for.
    let tail = scene.remora(&["logs", "fails", "--previous", "--tail", "1", "--timestamps"]);
    let text = shown(&tail);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(
        text.starts_with("20") && text.contains("Connection refused"),
        "{text}"
    );
    // Ends with the container.
    let followed = shown(&scene.remora(&["logs", "-f", "fails"]));
    assert_eq!(followed.matches("Connection refused").count(), 2, "{followed}");
    let wrong = scene.remora(&["logs", web, "-c", "nobody"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(shown(&wrong).contains("it has web"), "{}", shown(&wrong));
}

fn enter(scene: &Scene, web: &str) {
    let output = scene.remora(&[
        "exec",
        web,
        "--",
        "/bin/sh",
        "-c",
        "echo out; echo err >&2; exit 7",
    ]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        (&output.stdout[..], &output.stderr[..]),
        (&b"out\n"[..], &b"err\n"[..])
    );
    let mut command = scene.command(&["exec", "-i", web, "--", "/bin/cat"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let much = "x".repeat(300_000);
    let writer = {
        let (mut stdin, much) = (child.stdin.take().unwrap(), much.clone());
        std::thread::spawn(move || stdin.write_all(much.as_bytes()).unwrap())
    };
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout.len(), much.len());
    let missing = scene.remora(&["exec", web, "--", "nosuch"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        shown(&missing).contains("not in the image"),
        "{}",
        shown(&missing)
    );
    on_a_terminal(scene, web);
}

/// `script` gives us a terminal, and hands on the exit code.
fn on_a_terminal(scene: &Scene, web: &str) {
    let inner = format!(
        "{} exec --state-dir {} -it {web} -- /bin/sh",
        env!("CARGO_BIN_EXE_remora"),
        scene.state.path().display()
    );
    let transcript = scene.images.path().join("transcript");
    let mut child = Command::new("script")
        .args(["-qec", &format!("stty rows 33 cols 99; {inner}")])
        .arg(&transcript)
        .env("TERM", "vt100")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all(b"tty; stty size; echo TERM=$TERM; exit 5\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    let text = shown(&output);
    assert_eq!(output.status.code(), Some(5), "{text}");
    for wanted in ["/dev/pts/0", "33 99", "TERM=vt100"] {
        assert!(text.contains(wanted), "{wanted} is missing: {text}");
    }
}

fn delete(scene: &Scene, web: &str) {
    // A Deployment makes another at once, with another name.
    assert_eq!(scene.well(&["delete", web]), format!("pod/{web} deleted\n"));
    let pods = scene.when(|pods| are_ready(pods, "web", 1));
    assert_ne!(name(named(&pods, "web")[0]), web);
    // A StatefulSet makes the same one when the old one is gone.
    let address = |pods: &[Value]| named(pods, "db-0")[0]["address"].clone();
    let before = address(&pods);
    scene.well(&["delete", "pod/db-0"]);
    let pods = scene.when(|pods| are_ready(pods, "db-0", 1));
    assert_ne!(address(&pods), before);
    assert!(are_ready(&pods, "db-1", 1), "{pods:#?}");
    // Without what made them they stay away.
    assert_eq!(
        scene.well(&["delete", "deploy/web", "sts/db"]),
        "deployment/web deleted\nstatefulset/db deleted\n"
    );
    let pods = scene.pods();
    assert_eq!(pods.iter().map(name).collect::<Vec<_>>(), ["fails"]);
    let wrong = scene.remora(&["delete", "service/web"]);
    assert!(
        shown(&wrong).contains("nothing that makes pods"),
        "{}",
        shown(&wrong)
    );
}

#[test]
fn several_runs_are_told_apart() {
    const ONE: &str = "{apiVersion: v1, kind: Pod, metadata: {name: NAME}, spec: {containers: \
        [{name: c, image: remora, args: [demo, hello]}]}}";
    let scene = Scene::new();
    let mut first = scene.start(&ONE.replace("NAME", "same"));
    first.says("1/1 Running");
    let mut second = scene.start(&format!(
        "{}\n---\n{}",
        ONE.replace("NAME", "same"),
        ONE.replace("NAME", "only")
    ));
    second.says("1/1 Running");
    second.says("1/1 Running");
    assert_eq!(scene.pods().len(), 3);
    assert!(scene.well(&["ps"]).starts_with("RUN"));
    let both = scene.remora(&["logs", "same"]);
    assert!(shown(&both).contains("choose one with --run"), "{}", shown(&both));
    // A container runs before its program has written anything.
    let listens = |arguments: &[&str]| {
        let began = Instant::now();
        while !shown(&scene.remora(arguments)).contains("listening") {
            assert!(
                began.elapsed() < LOGS_TIMEOUT,
                "{arguments:?} never shows that it listens"
            );
        }
    };
    listens(&["logs", "only"]);
    let id = first.child.id().to_string();
    listens(&["logs", "--run", &id, "same"]);
    // What is not its user's business is closed to others.
    let directory = scene.state.path().join(&id);
    assert!(is_private(&directory) && is_private(&directory.join("socket")));
    assert_eq!((first.stop(), second.stop()), (Some(0), Some(0)));
}

fn is_private(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path)
        .unwrap()
        .permissions()
        .mode()
        .is_multiple_of(0o100)
}
