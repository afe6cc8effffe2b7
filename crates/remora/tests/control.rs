//! `remora control` as a process: starts, says where it listens, stops when told.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Scene, binary};
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::process::Stdio;

const FILES: &[(&str, &str)] = &[
    (
        "control.yaml",
        "listen: 127.0.0.1:0\nauthority: ca\nmesh: [mesh.yaml]\ntokens: tokens.yaml\n",
    ),
    ("mesh.yaml", "kind: Workload\nname: web-0\nnamespace: shop\n"),
    (
        "tokens.yaml",
        "- {token: secret, namespace: shop, serviceAccount: web}\n",
    ),
];

#[test]
fn it_listens_and_ends_with_zero_when_told() {
    let scene = Scene::new(FILES);
    let mut child = scene
        .command(&binary(), &["control", "--config", "control.yaml"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    let address = loop {
        line.clear();
        assert_ne!(
            lines.read_line(&mut line).unwrap(),
            0,
            "it ended before it listened"
        );
        if let Some((_, address)) = line.split_once("listening on ") {
            break address.trim().to_owned();
        }
    };
    TcpStream::connect(&address).unwrap();
    let killed = std::process::Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
    let key = std::fs::metadata(scene.path("ca/root-key.pem")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&key.permissions());
    assert_eq!(mode & 0o777, 0o600, "nobody else reads the key of the root");
}

#[test]
fn mistakes_are_said_with_their_place() {
    let scene = Scene::new(FILES);
    std::fs::write(scene.path("mesh.yaml"), "---\nkind: Workload\nnmae: x\n").unwrap();
    let outcome = scene.remora(&["control", "--config", "control.yaml"]);
    let shown = outcome.shown();
    assert_eq!(outcome.code, Some(1), "{shown}");
    for part in [
        "understand the document at line 1 of mesh.yaml",
        "unknown field `nmae`",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
}
