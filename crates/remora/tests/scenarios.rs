//! Recordings of a real kubelet with the real sidecar (`e2e/scenarios`): the model still tells the same story, and so do
//! the same pods on `remora run`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(dead_code, reason = "a run can be asked for more than these tests need")]

#[path = "proof/running.rs"]
mod running;
#[path = "scenarios/stage.rs"]
mod stage;

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the model puts further apart must come in its order; milliseconds.
const APART: u64 = 60;

fn remora(words: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_remora"))
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap().stdout
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The pod injected as the webhook did it, and simulated.
fn simulated(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("pod.json")).unwrap();
    let text = text
        .replace("PLAIN:", "10.0.0.1:")
        .replace("STRICT:", "10.0.0.2:");
    let injected = remora(&["inject", "-f", "-", "--native", "on"], text.as_bytes());
    let assumptions = folder.join("assume.json");
    let words = [
        "check",
        "-f",
        "-",
        "--format",
        "json",
        "--assume",
        assumptions.to_str().unwrap(),
    ];
    let report: Value = serde_json::from_slice(&remora(&words, &injected)).unwrap();
    report["pods"][0]["simulation"].clone()
}

/// When things happened first.
fn times(events: &Value) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for event in events.as_array().unwrap() {
        let name = event["event"].as_str().unwrap().to_owned();
        out.entry(name).or_insert(event["at"].as_u64().unwrap());
    }
    out
}

fn disagreements(model: &Value, recording: &Value) -> Vec<String> {
    let (told, seen) = (times(&model["events"]), times(&recording["events"]));
    let mut wrong: Vec<String> = seen
        .keys()
        .filter(|event| !told.contains_key(*event))
        .map(|event| format!("{event} happened, and is not foretold"))
        .collect();
    let both: Vec<&String> = seen.keys().filter(|event| told.contains_key(*event)).collect();
    for a in &both {
        for b in &both {
            if told[*a] + APART < told[*b] && seen[*a] >= seen[*b] {
                wrong.push(format!("{a} came after {b}"));
            }
        }
    }
    for process in model["network"].as_array().unwrap() {
        let states: Vec<&Value> = process["states"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| &s["state"])
            .collect();
        let met = &recording["network"][process["process"].as_str().unwrap()];
        if met
            .as_array()
            .is_some_and(|met| met.iter().ne(states.iter().copied()))
        {
            wrong.push(format!(
                "{} met {met}, the model says {states:?}",
                process["process"]
            ));
        }
    }
    wrong
}

fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/scenarios");
    let entries = std::fs::read_dir(root).unwrap().flatten().map(|e| e.path());
    entries
        .filter(|path| path.join("recording.json").is_file())
        .collect()
}

#[test]
fn the_model_tells_what_was_recorded_on_a_cluster() {
    let folders = folders();
    assert!(folders.len() >= 7, "{folders:?}");
    for folder in folders {
        let wrong = disagreements(&simulated(&folder), &json(&folder.join("recording.json")));
        assert!(wrong.is_empty(), "{}: {wrong:?}", folder.display());
    }
}

/// The same pods, sidecar and capture on `remora run`: what happened on a cluster happens here, in the same order and with
/// the same network.
#[test]
fn the_same_pods_on_this_machine_do_what_they_did_on_a_cluster() {
    let folders = folders();
    let seen = stage::play(&folders);
    let mut wrong = Vec::new();
    for folder in &folders {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let (here, there) = (&seen[name], json(&folder.join("recording.json")));
        let (events, recorded) = (times(&here["events"]), times(&there["events"]));
        let mut differs: Vec<String> = recorded
            .keys()
            .filter(|event| !events.contains_key(*event))
            .map(|event| format!("{event} does not happen"))
            .collect();
        differs.extend(
            events
                .keys()
                .filter(|event| !recorded.contains_key(*event))
                .map(|event| format!("{event} happens")),
        );
        differs.extend(disagreements(&simulated(folder), here));
        if here["network"] != there["network"] {
            differs.push(format!(
                "met {}, on a cluster {}",
                here["network"], there["network"]
            ));
        }
        wrong.extend(differs.iter().map(|what| format!("{name}: {what}; {here}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn another_pods_recording_does_not_fit() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/scenarios");
    let recording = json(&root.join("classic-held/recording.json"));
    assert!(!disagreements(&simulated(&root.join("native")), &recording).is_empty());
}
