//! A guard that is killed and images that are not what they say, as a run meets them: said once, nothing left.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "proof/machine.rs"]
mod machine;
#[allow(dead_code, reason = "others look for processes too")]
#[path = "proof/running.rs"]
mod running;

use machine::{Machine, assert_nothing_left};
use remora_engine::image::Digest;
use running::Running;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

/// What a registry with one image answers, by path. Its layer is other bytes, of the same or another length.
fn answers(layer: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let promised = vec![7_u8; 2048];
    let architecture = if cfg!(target_arch = "x86_64") {
        "amd64"
    } else {
        "arm64"
    };
    let config = json!({"architecture": architecture, "os": "linux", "config": {"Cmd": ["/app"]},
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&promised).to_string()]}})
    .to_string()
    .into_bytes();
    let described = |kind: &str, bytes: &[u8]| {
        json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "size": bytes.len(),
            "digest": Digest::of(bytes).to_string()})
    };
    let manifest = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("config.v1+json", &config), "layers": [described("layer.v1.tar", &promised)]})
    .to_string()
    .into_bytes();
    let blob = |bytes: &[u8]| format!("/v2/app/blobs/{}", Digest::of(bytes));
    [
        ("/v2/".to_owned(), b"{}".to_vec()),
        (blob(&config), config.clone()),
        (blob(&promised), layer.to_vec()),
        ("/v2/app/manifests/1".to_owned(), manifest.clone()),
        (format!("/v2/app/manifests/{}", Digest::of(&manifest)), manifest),
    ]
    .into()
}

fn answer(mut stream: TcpStream, known: &BTreeMap<String, Vec<u8>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let found = known.get(path);
    let status = if found.is_some() {
        "200 OK"
    } else {
        "404 Not Found"
    };
    let body = found.map(Vec::as_slice).unwrap_or_default();
    let kind = if path.contains("/manifests/") {
        "application/vnd.oci.image.manifest.v1+json"
    } else {
        "application/octet-stream"
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    if method == "GET" {
        stream.write_all(body)?;
    }
    Ok(())
}

/// A registry on a loopback port, for as long as the test lasts.
fn registry(layer: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let known = answers(&layer);
        for stream in listener.incoming().flatten() {
            // A client that went away needs no answer.
            let _ = answer(stream, &known);
        }
    });
    port
}

#[test]
fn an_image_that_is_not_what_it_says_is_said_and_never_run() {
    // As long as promised, and shorter.
    for layer in [vec![8; 2048], vec![7; 100]] {
        let registry = format!("127.0.0.1:{}", registry(layer));
        let pod = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p, namespace: shop}}, spec: {{containers: \
             [{{name: app, image: '{registry}/app:1'}}]}}}}"
        );
        let args = [
            "--inject",
            "never",
            "--until",
            "ready",
            "--timeout",
            "6s",
            "--insecure-registry",
            &registry,
        ];
        let mut run = Running::start(&pod, &args);
        run.wait_for("ErrImagePull");
        let seen = Machine::of(&run);
        assert_eq!(run.wait().code(), Some(1), "{}", run.said());
        let said = run.said();
        let told = said.lines().find(|line| line.contains("shop/p/app"));
        let told = told.unwrap_or_else(|| panic!("no word about the container: {said}"));
        assert!(
            told.contains("sha256:") || told.contains("bytes"),
            "what is wrong is missing: {told}"
        );
        assert!(!said.contains("1/1 Running"), "{said}");
        assert_nothing_left(&run, &seen, "after a corrupt image");
    }
}

/// The guard is for the case that the runner is killed; without it the run goes on and ends as it should.
#[test]
fn a_killed_guard_disturbs_nobody() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop}, spec: {terminationGracePeriodSeconds: 2, \
        containers: [{name: app, image: remora, args: [demo, hello, --port, '8080']}]}}";
    let mut run = Running::start(pod, &["--inject", "always"]);
    run.wait_for("2/2 Running");
    let seen = Machine::of(&run);
    let is_guard = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == "remora-guard"
    };
    let guard = run.processes("").into_iter().find(is_guard).unwrap();
    remora_net::process::signal(guard, 9).unwrap();
    let answer = run.ask(&[
        "exec",
        "-c",
        "app",
        "p",
        "--",
        "remora",
        "demo",
        "call",
        "http://127.0.0.1:8080/",
    ]);
    assert!(answer.contains("answered 200"), "{answer}");
    assert_eq!(run.stop().code(), Some(0), "{}", run.said());
    assert_nothing_left(&run, &seen, "without a guard");
}
