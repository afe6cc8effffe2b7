//! How fast the webhook answers, and how a control plane grows with the mesh.
//!
//! `cargo bench -p remora-control --bench control [-- OPTIONS]`; `bench/run control` writes the results down. Options: a
//! number of workloads for that size only, `webhook` for the webhook only, `--out FILE` for the tables. Each size runs in
//! a process of its own, so that memory is that size's. CPU times are those of the threads that serve; latencies and
//! other times are of a clock, and on a busy machine the machine is in them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    reason = "a program for people who measure"
)]

#[path = "control/measure.rs"]
mod measure;
#[path = "control/mesh.rs"]
mod mesh;
#[path = "control/webhook.rs"]
mod webhook;

use std::process::Command;

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let out = words
        .iter()
        .position(|word| word == "--out")
        .map(|at| words[at + 1].clone());
    let first = words.first().map(String::as_str).unwrap_or_default();
    if first == "webhook" {
        print!("{}", webhook::measure());
    } else if let Ok(workloads) = first.parse() {
        print!("{}", mesh::measure(workloads));
    } else {
        let mut text = part("webhook");
        text.push('\n');
        text.push_str(mesh::HEAD);
        for size in SIZES {
            text.push_str(&part(&size.to_string()));
        }
        print!("{text}");
        if let Some(path) = out {
            std::fs::write(path, text).unwrap();
        }
    }
}

/// In a process of its own.
fn part(name: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .arg(name)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
