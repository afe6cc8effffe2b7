//! Plays the pods of a cluster on this machine, all in one run, and writes down what a cluster's recording has.

use crate::running::{PATIENCE, Running};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Who is called, in the order in which addresses are given.
const TARGETS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: outside}
---
apiVersion: v1
kind: Namespace
metadata: {name: stage, labels: {istio-injection: enabled}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: stage}
spec: {mtls: {mode: STRICT}}
---
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: outside}
spec:
  containers:
  - {name: target, image: remora, args: [demo, actor, --as, target, --journal, /tmp, --banner, '8080']}
---
apiVersion: v1
kind: Pod
metadata: {name: strict, namespace: stage}
spec:
  containers:
  - {name: target, image: remora, args: [demo, actor, --as, target, --journal, /tmp, --banner, '8080']}
";
const PLAIN: &str = "10.244.0.2:";
const STRICT: &str = "10.244.0.3:";
/// A state that lasts no longer is a change between two others: two targets are looked at, each on its own.
const PASSING: u64 = 1300;
/// The mesh reached and the outside not is a target that is slow to answer, for as long as one look may take.
const SLOW: u64 = 3000;

/// One pod on stage.
struct Play {
    name: String,
    journal: PathBuf,
    /// What is waited for before it is deleted, how long after that, and with which grace.
    end: Option<(String, Duration, String)>,
    due: Option<Instant>,
    deleted: bool,
}

/// A line of a journal: milliseconds, who, what.
type Line = (u64, String, String);

/// What happened to each pod, as a recording tells it.
pub(crate) fn play(folders: &[PathBuf]) -> BTreeMap<String, Value> {
    let stage = tempfile::tempdir().unwrap();
    fs::set_permissions(stage.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let report = stage.path().join("report.json");
    let mut manifest = TARGETS.to_owned();
    let mut plays: Vec<Play> = Vec::new();
    for folder in folders {
        let text = fs::read_to_string(folder.join("pod.json")).unwrap();
        let text = text
            .replace("\"IMAGE\"", "\"remora\"")
            .replace("PLAIN:", PLAIN)
            .replace("STRICT:", STRICT)
            .replace("/var/lib/stage", stage.path().to_str().unwrap());
        manifest.push_str("---\n");
        manifest.push_str(&text);
        plays.push(Play::new(folder, stage.path()));
    }
    let words = ["--inject", "auto", "--fast-backoff", "20", "--report"];
    let mut run = Running::start(&manifest, &[&words[..], &[report.to_str().unwrap()]].concat());
    is(&run, "outside/plain", "1/1 Running");
    is(&run, "stage/strict", "2/2 Running");
    // Their volumes are there only now, and no pod starts without its volumes.
    for play in &plays {
        fs::create_dir(&play.journal).unwrap();
        fs::set_permissions(&play.journal, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let began = Instant::now();
    while !plays.iter().all(|play| play.deleted || play.end.is_none()) {
        assert!(began.elapsed() < PATIENCE, "{}", run.said());
        for play in &mut plays {
            play.intervene(&run);
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    for play in &plays {
        is(&run, &format!("stage/{}", play.name), "Completed");
    }
    run.stop();
    let told: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let recordings = plays
        .iter()
        .map(|play| (play.name.clone(), play.recording(&told)));
    recordings.collect()
}

/// Waits for a line about a pod.
fn is(run: &Running, pod: &str, state: &str) {
    let about = |line: &str| line.split_whitespace().any(|word| word == pod) && line.contains(state);
    run.wait_until(&format!("{pod} {state}"), |said| said.lines().any(about));
}

impl Play {
    fn new(folder: &Path, stage: &Path) -> Self {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let assumed: Value = serde_json::from_slice(&fs::read(folder.join("assume.json")).unwrap()).unwrap();
        let end = assumed["do"].as_array().map(|steps| {
            let step = &steps[0];
            let after = step["after"].as_str().unwrap().trim_end_matches('s');
            (
                step["on"].as_str().unwrap().to_owned(),
                Duration::from_secs(after.parse().unwrap()),
                step["grace"].to_string(),
            )
        });
        Self {
            journal: stage.join(&name),
            name,
            end,
            due: None,
            deleted: false,
        }
    }

    /// What the actors wrote down.
    fn lines(&self) -> Vec<Line> {
        let text = fs::read_to_string(self.journal.join("events")).unwrap_or_default();
        let line = |line: &str| {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            let [nanos, name, instance, event] = words[..] else {
                return None;
            };
            let who = match instance {
                "1" => name.to_owned(),
                n => format!("{name}#{n}"),
            };
            Some((nanos.parse::<u64>().ok()? / 1_000_000, who, event.to_owned()))
        };
        text.lines().filter_map(line).collect()
    }

    /// Deletes the pod when its time has come.
    fn intervene(&mut self, run: &Running) {
        let Some((on, after, grace)) = self.end.clone().filter(|_| !self.deleted) else {
            return;
        };
        if self.due.is_none() {
            let happened = self
                .lines()
                .iter()
                .any(|(_, who, what)| format!("{who}.{what}") == on);
            self.due = happened.then(|| Instant::now() + after);
        }
        if self.due.is_some_and(|due| due <= Instant::now()) {
            run.ask(&[
                "delete",
                "-n",
                "stage",
                "--no-wait",
                "--grace-period",
                &grace,
                &self.name,
            ]);
            self.deleted = true;
        }
    }

    fn recording(&self, told: &Value) -> Value {
        let name = format!("stage/{}", self.name);
        let pods = told["pods"].as_array().unwrap();
        let measured = &pods.iter().find(|pod| pod["pod"] == name.as_str()).unwrap()["measured"];
        let is_told = |event: &&Value| {
            let Some((who, what)) = event["event"].as_str().unwrap().rsplit_once('.') else {
                return false;
            };
            let told = match what {
                "start" => true,
                "exit" => who.starts_with("ctr:"),
                // The sidecar is no actor: that it was signalled is not in a recording.
                "sigterm" => !who.starts_with("istio-"),
                _ => false,
            };
            told && !who.contains('/')
        };
        let events: Vec<&Value> = measured["events"]
            .as_array()
            .unwrap()
            .iter()
            .filter(is_told)
            .collect();
        let lines = self.lines();
        let end = lines.last().map_or(0, |line| line.0);
        let mut network = serde_json::Map::new();
        for (_, who, what) in &lines {
            if what.starts_with("net=") && !network.contains_key(who) {
                network.insert(who.clone(), json!(states(&lines, who, end)));
            }
        }
        json!({"events": events, "network": network})
    }
}

/// What two targets together say about an actor's network, without what passes.
fn states(lines: &[Line], actor: &str, end: u64) -> Vec<&'static str> {
    let own = || lines.iter().filter(|(_, who, _)| who == actor);
    let over = own()
        .find(|(_, _, what)| what == "exit")
        .map_or(end, |line| line.0);
    let (mut plain, mut strict, mut seen) = (None, None, Vec::new());
    for (at, _, what) in own() {
        let Some((target, word)) = what.strip_prefix("net=").and_then(|w| w.split_once(' ')) else {
            continue;
        };
        let reached = Some(word == "direct");
        if target == "plain" {
            plain = reached;
        } else {
            strict = reached;
        }
        seen.extend(plain.zip(strict).map(|both| (*at, named(both))));
    }
    let ends = seen.iter().skip(1).map(|s| s.0).chain([over]).collect::<Vec<_>>();
    let mut out: Vec<&str> = Vec::new();
    for ((at, state), until) in seen.into_iter().zip(ends) {
        let least = if state == "?" { SLOW } else { PASSING };
        if until.saturating_sub(at) >= least && out.last() != Some(&state) {
            out.push(state);
        }
    }
    out
}

const fn named((plain, strict): (bool, bool)) -> &'static str {
    match (plain, strict) {
        (true, true) => "proxied",
        (true, false) => "direct",
        (false, false) => "broken",
        (false, true) => "?",
    }
}
