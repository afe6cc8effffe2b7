//! Jobs of `remora run`: pods that fail are replaced, as many as are wanted succeed, as many as allowed run at a time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "others look for processes too")]
#[path = "proof/running.rs"]
mod running;

use running::Running;
use std::collections::BTreeSet;

/// A Job, or the template of a `CronJob`.
fn job(name: &str, spec: &str, args: &str) -> String {
    format!(
        "
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}, namespace: shop}}
spec:
  {spec}
  template:
    spec:
      restartPolicy: Never
      containers:
      - {{name: work, image: remora, args: [{args}]}}
"
    )
}

fn complete(manifest: &str, more: &[&str]) -> (Option<i32>, String) {
    let args = [
        "--inject",
        "never",
        "--fast-backoff",
        "50",
        "--until",
        "complete",
        "--timeout",
        "90s",
    ];
    let mut run = Running::start(manifest, &[&args[..], more].concat());
    let code = run.wait().code();
    (code, run.said())
}

/// Names of pods that were in this state.
fn pods(said: &str, state: &str) -> BTreeSet<String> {
    let lines = said.lines().filter(|line| line.contains(state));
    let names = lines.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("shop/")));
    names.map(str::to_owned).collect()
}

/// When pods began, in the order in which they did.
fn starts(said: &str) -> Vec<f64> {
    let mut known = BTreeSet::new();
    let mut times = Vec::new();
    for line in said.lines() {
        let mut words = line.split_whitespace();
        let time = words.next().and_then(|word| word.strip_suffix('s')?.parse().ok());
        if let (Some(time), Some(name)) = (time, words.next())
            && known.insert(name.to_owned())
        {
            times.push(time);
        }
    }
    times
}

#[test]
fn failures_are_replaced_until_there_are_too_many() {
    let failing = job(
        "fails",
        "backoffLimit: 2",
        "demo, call, 'http://127.0.0.1:1/', --tries, '1'",
    );
    let (code, said) = complete(&failing, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(pods(&said, "Error").len(), 3, "the first and two more: {said}");
    // A fiftieth of 10 s, then twice that.
    let starts = starts(&said);
    let [first, second, third] = starts[..] else {
        panic!("{starts:?}: {said}");
    };
    assert!(
        second >= first + 0.2 && third >= second + 0.4,
        "{starts:?}: {said}"
    );
}

#[test]
fn as_many_as_wanted_succeed_and_as_many_as_allowed_run() {
    let several = job("several", "{completions: 4, parallelism: 2}", "demo, --help");
    let several = several.replace(
        "{completions: 4, parallelism: 2}",
        "completions: 4\n  parallelism: 2",
    );
    let (code, said) = complete(&several, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(pods(&said, "Completed").len(), 4, "{said}");
    let mut running = BTreeSet::new();
    for line in said.lines() {
        let Some(name) = line.split_whitespace().find(|word| word.starts_with("shop/")) else {
            continue;
        };
        if line.contains("1/1 Running") || line.contains("0/1") {
            running.insert(name.to_owned());
        }
        if line.contains("Completed") {
            running.remove(name);
        }
        assert!(running.len() <= 2, "{running:?}: {said}");
    }
}

#[test]
fn a_cron_job_runs_once_when_it_is_asked_to() {
    let cron = "
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: shop}
spec:
  schedule: '0 3 * * *'
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers:
          - {name: work, image: remora, args: [demo, --help]}
";
    let (code, said) = complete(cron, &["--now"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(pods(&said, "Completed").len(), 1, "{said}");
    let (code, said) = complete(cron, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("waits for its schedule; --now runs it once"),
        "{said}"
    );
}
