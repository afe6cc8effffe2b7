//! What is left of a run that was interrupted or killed: nothing, or nothing for long.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

fn pod(mark: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: p, namespace: shop}}, spec: {{terminationGracePeriodSeconds: 3, \
         containers: [{{name: app, image: remora, args: [demo, hello, --port, '9080', --slow, '0.{mark}']}}]}}}}"
    )
}

struct Scene {
    directory: tempfile::TempDir,
    /// In the command line of every application of this scene, and of nobody else's.
    mark: String,
}

impl Scene {
    fn new(number: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("state")).unwrap();
        Self {
            directory,
            mark: format!("{:06}{number}", std::process::id()),
        }
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
        command
            .arg("run")
            .arg("--state-dir")
            .arg(self.directory.path().join("state"))
            .arg("--image-store")
            .arg(self.directory.path().join("images"))
            .args(more);
        command
    }

    fn start(&self) -> Child {
        let mut child = self
            .command(&["-f", "-", "--inject", "always"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(pod(&self.mark).as_bytes()).unwrap();
        child
    }

    /// Directories of runs.
    fn runs(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path().join("state")).unwrap();
        let name = |e: std::fs::DirEntry| e.file_name().to_string_lossy().into_owned();
        entries.flatten().map(name).collect()
    }

    /// Waits until no process of this scene is there.
    fn processes_are_gone(&self, when: &str) {
        let began = Instant::now();
        while let Some(left) = self.process() {
            assert!(began.elapsed() < PATIENCE, "{when}: {left} is still there");
            std::thread::yield_now();
        }
    }

    fn process(&self) -> Option<String> {
        let mark = format!("0.{}", self.mark);
        let directory = self.directory.path().display().to_string();
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = entries.filter_map(|e| std::fs::read(e.path().join("cmdline")).ok());
        lines
            .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
            .find(|line| line.contains(&mark) || line.contains(&directory))
    }
}

/// Reads until a line has this text; the end will do, too.
fn until(child: &mut Child, wanted: &str) {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !wanted.is_empty() && !line.contains(wanted) {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "{wanted} did not come");
    }
    // What follows is read by somebody, so that nobody waits.
    std::thread::spawn(move || output.read_to_end(&mut Vec::new()));
}

#[test]
fn an_interrupt_at_any_moment_leaves_nothing() {
    // From before the first line to a pod that runs.
    let moments = [
        "",
        "Init:0/",
        "captured",
        "Init:1/",
        "through the proxy",
        "PodInitializing",
        "Running",
    ];
    for (number, moment) in (0..).zip(moments) {
        let scene = Scene::new(number);
        let mut child = scene.start();
        until(&mut child, moment);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        child.wait().unwrap();
        scene.processes_are_gone(moment);
        assert_eq!(scene.runs(), Vec::<String>::new(), "at {moment:?}");
    }
}

#[test]
fn a_killed_run_takes_its_pods_with_it_and_the_next_removes_the_rest() {
    let scene = Scene::new(8);
    let kill = || {
        let mut child = scene.start();
        until(&mut child, "Running");
        child.kill().unwrap();
        child.wait().unwrap();
        scene.processes_are_gone("after kill -9");
        assert_eq!(scene.runs().len(), 1, "its directory is left");
    };
    kill();
    let output = scene.command(&["--clean"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("removed the remains of 1 runs"), "{text}");
    assert_eq!(scene.runs(), Vec::<String>::new());
    // Another run does it by itself, and leaves alone what goes on.
    kill();
    let mut child = scene.start();
    until(&mut child, "Running");
    assert_eq!(scene.runs(), [child.id().to_string()]);
    let output = scene.command(&["--clean"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("removed the remains of 0 runs"), "{text}");
    assert_eq!(scene.runs(), [child.id().to_string()]);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    child.wait().unwrap();
    assert_eq!(scene.runs(), Vec::<String>::new());
}
