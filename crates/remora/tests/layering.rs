//! The architecture as a test: who may know whom, and what pure crates may not know.
//!
//! Read from the manifests themselves, so that a new dependency cannot slip in unseen. See ARCHITECTURE.md.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Crates without IO, clock, environment or runtime.
const PURE: &[&str] = &["remora-pod", "remora-rules", "remora-startup", "remora-inject"];

/// What a pure crate may not depend on.
const IMPURE: &[&str] = &[
    "anyhow",
    "axum",
    "clap",
    "h2",
    "hyper",
    "indicatif",
    "kube",
    "libc",
    "nix",
    "rand",
    "reqwest",
    "rustix",
    "socket2",
    "tempfile",
    "tokio",
    "tonic",
];

/// Which crates of ours a crate may use. `remora`, the binary, may use all.
const ALLOWED: &[(&str, &[&str])] = &[
    ("remora-pod", &[]),
    ("remora-rules", &["remora-pod"]),
    ("remora-startup", &["remora-pod", "remora-rules"]),
    ("remora-inject", &["remora-pod", "remora-rules", "remora-startup"]),
    ("remora-net", &[]),
    ("remora-capture", &["remora-net", "remora-pod", "remora-rules"]),
    ("remora-testkit", &["remora-net"]),
    ("remora-mtls", &[]),
    ("remora-xds", &[]),
    ("remora-http", &[]),
    (
        "remora-control",
        &[
            "remora-http",
            "remora-inject",
            "remora-mtls",
            "remora-pod",
            "remora-startup",
            "remora-xds",
        ],
    ),
    ("remora-proxy", &["remora-mtls", "remora-net", "remora-xds"]),
    (
        "remora-engine",
        &[
            "remora-capture",
            "remora-control",
            "remora-inject",
            "remora-mtls",
            "remora-net",
            "remora-pod",
            "remora-proxy",
            "remora-rules",
            "remora-startup",
        ],
    ),
    (
        "remora-agent",
        &[
            "remora-http",
            "remora-mtls",
            "remora-net",
            "remora-pod",
            "remora-proxy",
            "remora-xds",
        ],
    ),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Names in `[dependencies]` (and target-specific ones) of every crate, by package name.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(crates()).unwrap() {
        let manifest = entry.unwrap().path().join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest).unwrap();
        let mut section = "";
        let (mut name, mut list) = (String::new(), Vec::new());
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line.trim_matches(['[', ']']);
            } else if section == "package" && line.starts_with("name") {
                line.split('"').nth(1).unwrap().clone_into(&mut name);
            } else if section.ends_with("dependencies")
                && !section.ends_with("dev-dependencies")
                && !line.is_empty()
            {
                list.push(line.split(['.', ' ', '=']).next().unwrap().to_owned());
            }
        }
        found.insert(name, list);
    }
    assert!(found.len() >= 4, "{found:?}");
    found
}

#[test]
fn pure_crates_know_no_runtime() {
    let all = dependencies();
    for name in PURE {
        for dependency in &all[*name] {
            assert!(
                !IMPURE.contains(&dependency.as_str()),
                "{name} must not know {dependency}"
            );
        }
    }
}

#[test]
fn crates_know_only_what_is_below_them() {
    for (name, list) in dependencies() {
        if name == "remora" {
            continue;
        }
        let (_, allowed) = ALLOWED
            .iter()
            .find(|(known, _)| *known == name)
            .unwrap_or_else(|| {
                panic!("{name} has no place in the layering; add it here and in ARCHITECTURE.md")
            });
        for dependency in list.iter().filter(|d| d.starts_with("remora")) {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{name} must not know {dependency}"
            );
        }
    }
}

/// `unsafe` lives in the crates that talk to the kernel, in files named `sys.rs`, with a reason each.
#[test]
fn unsafe_code_is_confined() {
    let mut stack = vec![crates()];
    let mut looked_at = 0;
    while let Some(path) = stack.pop() {
        if path.is_dir() {
            stack.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            continue;
        }
        if path.extension().is_none_or(|e| e != "rs") || path.ends_with("layering.rs") {
            continue;
        }
        looked_at += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let has_unsafe = text
            .lines()
            .any(|l| l.contains("unsafe {") || l.contains("unsafe fn") || l.contains("unsafe impl"));
        let shown = path.display().to_string();
        let kernel = shown.contains("/net/src/") || shown.contains("/engine/src/");
        let allowed = kernel && (shown.ends_with("/sys.rs") || shown.contains("/sys/"));
        assert!(!has_unsafe || allowed, "{shown} has unsafe code");
    }
    assert!(looked_at > 50, "only {looked_at} files found");
}
