//! The first command of the README: bookinfo, its page through a published port, and what makes starting hard.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

fn remora(scene: &tempfile::TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    let (verb, rest) = args.split_first().unwrap();
    command
        .arg(verb)
        .arg("--state-dir")
        .arg(scene.path().join("state"));
    if *verb == "run" {
        command.arg("--image-store").arg(scene.path().join("images"));
    }
    command.args(rest).stdin(Stdio::null());
    command
}

fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: productpage\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Ends what was started, whatever becomes of the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn bookinfo_is_served_through_the_mesh() {
    let scene = tempfile::tempdir().unwrap();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/bookinfo");
    let child = remora(&scene, &["run", "-f", examples, "-p", "0:productpage:9080"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut run = Ended(child);
    let mut notes = BufReader::new(run.0.stderr.take().unwrap());
    let (mut said, mut address) = (String::new(), String::new());
    loop {
        let mut line = String::new();
        assert_ne!(notes.read_line(&mut line).unwrap(), 0, "{said}");
        said.push_str(&line);
        if let Some((_, at)) = line.trim().split_once("published on http://") {
            at.clone_into(&mut address);
        }
        if line.contains("everything is ready") {
            break;
        }
    }
    let stands_in = said.matches("built-in demo application plays").count();
    assert_eq!(stands_in, 1, "said once: {said}");
    let page = get(&address, "/productpage");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    for wanted in [
        "The Comedy of Errors",
        "William Shakespeare",
        "An extremely entertaining play",
    ] {
        assert!(page.contains(wanted), "{wanted} is missing: {page}");
    }
    // The Job is done, its sidecar with it; the init container had its network; the slow starter got its time.
    let pods = shown(&remora(&scene, &["ps", "-o", "json"]).output().unwrap());
    let pods: Vec<serde_json::Value> = serde_json::from_str(&pods).unwrap();
    assert_eq!(pods.len(), 8, "{pods:#?}");
    for pod in &pods {
        let (name, status) = (pod["name"].as_str().unwrap(), pod["status"].as_str().unwrap());
        let wanted = if name.starts_with("first-visitor") {
            "Completed"
        } else {
            "Running"
        };
        assert_eq!(status, wanted, "{name}");
        assert_eq!(pod["restarts"], 0, "{name}");
        assert!(status == "Completed" || pod["network"] == "proxied", "{name}");
    }
    let fetched = ["logs", "deploy/recommendations-v1", "-c", "fetch-catalogue"];
    let fetched = shown(&remora(&scene, &fetched).output().unwrap());
    assert!(
        fetched.contains("http://details:9080/details/0 answered 200"),
        "{fetched}"
    );
    let pid = rustix::process::Pid::from_child(&run.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut rest = String::new();
    notes.read_to_string(&mut rest).unwrap();
    assert_eq!(run.0.wait().unwrap().code(), Some(0), "{rest}");
}

/// An image that could be played is pulled if that is asked for, and played if its registry cannot be reached.
#[test]
fn a_registry_that_is_away_is_said_and_replaced() {
    let scene = tempfile::tempdir().unwrap();
    let manifest = scene.path().join("pod.yaml");
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {remora.dev/demo.c: 'call http://127.0.0.1:1/'}}, \
        spec: {restartPolicy: Never, containers: [{name: c, image: '127.0.0.1:1/none', command: [nothing]}]}}";
    std::fs::write(&manifest, pod).unwrap();
    let file = manifest.display().to_string();
    let args = [
        "run", "-f", &file, "--inject", "never", "--until", "complete", "--logs",
    ];
    let output = remora(&scene, &args).args(["--images", "pull"]).output().unwrap();
    let text = shown(&output);
    assert!(text.contains("127.0.0.1:1/none cannot be had"), "{text}");
    assert!(
        text.contains("http://127.0.0.1:1/: Connection refused"),
        "it was played: {text}"
    );
    // Without the annotation there is nothing to replace it.
    std::fs::write(&manifest, pod.replace("remora.dev/demo.c", "other")).unwrap();
    let args = ["run", "-f", &file, "--inject", "never", "--until", "2s"];
    let text = shown(&remora(&scene, &args).output().unwrap());
    assert!(text.contains("ErrImagePull"), "{text}");
}
