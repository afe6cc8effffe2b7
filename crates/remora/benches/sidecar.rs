//! How long a sidecar takes from exec to ready and what it needs when nothing happens: the built-in proxy beside a real
//! Envoy with the same pod, control plane and certificate authority.
//!
//! `cargo bench -p remora --bench sidecar [-- ROUNDS]` (as root, with `envoy` on the path). The contenders take turns.
//! Ready is the first 200 on port 15021, asked for again and again from inside the pod. Memory is what the processes
//! have for themselves plus their share of what they share (Pss), a second after they are ready.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a program for people who measure"
)]

#[path = "../tests/envoy/plane.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod plane;
#[path = "../tests/sidecar/process.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod process;
#[path = "../tests/envoy/protos.rs"]
mod protos;
#[path = "../tests/envoy/scene.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod scene;

use process::Process;
use scene::{Scene, children, here};
use std::time::{Duration, Instant};

const ROUNDS: usize = 15;
const CONTENDERS: [&str; 2] = ["remora", "remora with envoy"];

/// One contender's numbers.
#[derive(Default)]
struct Numbers {
    ready: Vec<f64>,
    agent: Vec<f64>,
    envoy: Vec<f64>,
}

fn main() {
    if !here() {
        return;
    }
    let given = std::env::args().skip(1).find_map(|word| word.parse().ok());
    let rounds = given.unwrap_or(ROUNDS);
    let scene = Scene::new();
    let _plane = scene.plane(&[8443]);
    let mut numbers: [Numbers; 2] = Default::default();
    for _ in 0..rounds {
        for (contender, numbers) in CONTENDERS.iter().zip(&mut numbers) {
            measure(&scene, contender, numbers);
        }
    }
    println!(
        "{:<20} {:>14} {:>14} {:>14} {:>14}",
        "", "ready (ms)", "worst (ms)", "agent (MiB)", "envoy (MiB)"
    );
    for (contender, numbers) in CONTENDERS.iter().zip(&mut numbers) {
        let worst = numbers.ready.iter().copied().fold(0.0, f64::max);
        println!(
            "{contender:<20} {:>14.1} {worst:>14.1} {:>14.1} {:>14.1}",
            median(&mut numbers.ready),
            median(&mut numbers.agent),
            median(&mut numbers.envoy),
        );
    }
}

fn measure(scene: &Scene, contender: &str, numbers: &mut Numbers) {
    let started = Instant::now();
    let mut sidecar = if contender == "remora" {
        scene.built_in(Scene::env())
    } else {
        scene.sidecar(Scene::env())
    };
    let ready = scene.first_200();
    numbers.ready.push((ready - started).as_secs_f64() * 1000.0);
    std::thread::sleep(Duration::from_secs(1));
    numbers.agent.push(memory(sidecar.pid()));
    let envoys = children(sidecar.pid());
    // The sum of nothing is -0.
    let total: f64 = envoys.iter().copied().map(memory).sum();
    numbers.envoy.push(total.abs());
    end(&mut sidecar);
}

fn end(sidecar: &mut Process) {
    // Twice: nobody uses it, so nothing is to be waited for.
    sidecar.signal("TERM");
    sidecar.signal("TERM");
    sidecar.end();
}

/// Pss in MiB.
fn memory(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib / 1024.0
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
