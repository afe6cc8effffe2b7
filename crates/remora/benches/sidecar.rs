//! How long a sidecar takes from exec to ready, what it needs when nothing happens, and what `remora wait` adds: the
//! built-in proxy beside a real Envoy with the same pod, control plane and certificate authority.
//!
//! `bench/run sidecar` measures the released binary. `cargo bench -p remora --bench sidecar [-- OPTIONS]` (as root, with
//! `envoy` on the path) measures what cargo built, or the binary that `REMORA_BINARY` names. Options: a number of rounds,
//! and `--out FILE` for the tables. The contenders take turns. Ready is the first 200 on port 15021, asked for again and
//! again from inside the pod. Memory is what the processes have for themselves plus their share of what they share
//! (Pss), a second after they are ready.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
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

use process::{Process, binary};
use scene::{Scene, children, here};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const ROUNDS: usize = 15;
const CONTENDERS: [&str; 2] = ["remora", "remora with Envoy"];
/// Waits for one that is ready already, in every round.
const WAITS: usize = 20;

/// One contender's numbers.
#[derive(Default)]
struct Numbers {
    ready: Vec<f64>,
    agent: Vec<f64>,
    envoy: Vec<f64>,
    /// How long after the first 200 a wait that began before the sidecar returned.
    late: Vec<f64>,
}

/// From exec to exit.
#[derive(Default)]
struct Waits {
    ready: Vec<f64>,
    nothing: Vec<f64>,
}

fn main() {
    if !here() {
        return;
    }
    let (rounds, out) = options();
    let scene = Scene::new();
    let _plane = scene.plane(&[8443]);
    let mut numbers: [Numbers; 2] = Default::default();
    let mut waits = Waits::default();
    for _ in 0..rounds {
        for (contender, numbers) in CONTENDERS.iter().zip(&mut numbers) {
            measure(&scene, contender, numbers, &mut waits);
        }
    }
    let text = report(&mut numbers, &mut waits, rounds);
    println!("{text}");
    if let Some(path) = out {
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
    }
}

/// Rounds, and where the tables go.
fn options() -> (usize, Option<PathBuf>) {
    let (mut rounds, mut out) = (ROUNDS, None);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.parse() {
            Ok(number) => rounds = number,
            Err(_) if word == "--out" => out = words.next().map(PathBuf::from),
            // Cargo's own.
            Err(_) => {}
        }
    }
    (rounds, out)
}

fn measure(scene: &Scene, contender: &str, numbers: &mut Numbers, waits: &mut Waits) {
    // Made reachable for everybody by whoever may.
    let program = binary();
    let (ready, waited, started, mut sidecar) = std::thread::scope(|scope| {
        let program = program.clone();
        let waiting = scope.spawn(move || scene.inside(move || ended(&program, &["wait"])));
        // The wait runs and finds nobody.
        std::thread::sleep(Duration::from_millis(50));
        let asking = scope.spawn(|| scene.first_200());
        let started = Instant::now();
        let sidecar = if contender == "remora" {
            scene.built_in(Scene::env())
        } else {
            scene.sidecar(Scene::env())
        };
        let ready = asking.join().unwrap();
        (ready, waiting.join().unwrap(), started, sidecar)
    });
    numbers.ready.push(millis(ready - started));
    numbers.late.push(millis(waited.saturating_duration_since(ready)));
    if contender == "remora" {
        waits.ready.extend(scene.inside(move || run(&program, &["wait"])));
        waits.nothing.extend(scene.inside(|| run("true".as_ref(), &[])));
    }
    std::thread::sleep(Duration::from_secs(1));
    numbers.agent.push(memory(sidecar.pid()));
    let envoys = children(sidecar.pid());
    // The sum of nothing is -0.
    let total: f64 = envoys.iter().copied().map(memory).sum();
    numbers.envoy.push(total.abs());
    end(&mut sidecar);
}

/// Runs a program once; when it ended.
fn ended(program: &Path, words: &[&str]) -> Instant {
    let status = Command::new(program).args(words).env_clear().status().unwrap();
    let now = Instant::now();
    assert!(status.success(), "{words:?}: {status}");
    now
}

/// Runs a program many times: milliseconds from exec to exit.
fn run(program: &Path, words: &[&str]) -> Vec<f64> {
    let once = |_| {
        let started = Instant::now();
        let status = Command::new(program).args(words).status().unwrap();
        assert!(status.success(), "{}: {status}", program.display());
        millis(started.elapsed())
    };
    (0..WAITS).map(once).collect()
}

fn end(sidecar: &mut Process) {
    // Twice: nobody uses it, so nothing is to be waited for.
    sidecar.signal("TERM");
    sidecar.signal("TERM");
    sidecar.end();
}

fn report(numbers: &mut [Numbers; 2], waits: &mut Waits, rounds: usize) -> String {
    let mut text = format!(
        "## From exec to ready, and at rest\n\nOne run, {rounds} rounds, the contenders in turns; medians.\n\n\
         | | ready (ms) | worst (ms) | agent (MiB) | Envoy (MiB) |\n|---|---|---|---|---|\n"
    );
    for (contender, numbers) in CONTENDERS.iter().zip(numbers.iter_mut()) {
        let [ready, worst] = [0.5, 1.0].map(|share| at(&mut numbers.ready, share));
        let [agent, envoy] = [&mut numbers.agent, &mut numbers.envoy].map(|values| at(values, 0.5));
        let _ = writeln!(
            text,
            "| {contender} | {ready:.1} | {worst:.1} | {agent:.1} | {envoy:.1} |"
        );
    }
    text.push_str(
        "\n## What `remora wait` adds\n\nMilliseconds. Late: after the first 200, for a wait that began before the \
         sidecar. Ready: from exec to exit where the sidecar is ready already, beside a program that does nothing.\n\n\
         | | least | median | 90 % | 99 % | most | of |\n|---|---|---|---|---|---|---|\n",
    );
    let [built_in, envoy] = numbers;
    for (name, values) in [
        ("late, remora", &mut built_in.late),
        ("late, remora with Envoy", &mut envoy.late),
        ("ready", &mut waits.ready),
        ("`true`", &mut waits.nothing),
    ] {
        let [least, median, most90, most99, most] = [0.0, 0.5, 0.9, 0.99, 1.0].map(|share| at(values, share));
        let count = values.len();
        let _ = writeln!(
            text,
            "| {name} | {least:.2} | {median:.2} | {most90:.2} | {most99:.2} | {most:.2} | {count} |"
        );
    }
    text
}

/// Pss in MiB.
fn memory(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib / 1024.0
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The value below which that share of all values is.
fn at(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values
        .get((last as f64 * share).round() as usize)
        .copied()
        .unwrap_or_default()
}
