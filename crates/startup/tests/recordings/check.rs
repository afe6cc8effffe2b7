//! One scenario folder: simulate it and compare.

use std::path::Path;

use remora_pod::spec::PodView;
use remora_startup::network::Capture;
use remora_startup::sim::{Act, Intervention, Scenario, Trace, simulate};
use serde_json::Value;

use crate::{actors, yaml};

/// How long a recording continues after its end was requested, in milliseconds.
const END_SLACK: u64 = 250;

/// Simulates the scenario in a folder; says what does not hold.
pub(crate) fn check(folder: &Path) -> Result<(), String> {
    let read =
        |name: &str| std::fs::read_to_string(folder.join(name)).map_err(|e| format!("reading {name}: {e}"));
    let text = fill_in(&read("pod.yaml")?);
    let summary = yaml::read(&read("summary.yaml")?)?;
    let scenario = scenario(&text)?;
    let trace = simulate(&scenario);
    let mut wrong = Vec::new();
    check_events(&summary, &scenario, &trace, &mut wrong);
    check_network(&summary["network"], &scenario, &trace, &mut wrong);
    let phase = trace.status.phase.as_str();
    if !allows(&summary["final_phase"], phase) {
        wrong.push(format!(
            "final phase {phase} instead of {}",
            summary["final_phase"]
        ));
    }
    if std::env::var_os("REMORA_RECORDINGS_TRACE").is_some() {
        for (at, id) in trace.named(&scenario) {
            wrong.push(format!("\n    {at:>7} {id}"));
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}

/// Puts values in place of what differed between runs.
fn fill_in(text: &str) -> String {
    let text = text
        .replace("TARGET2IP", "10.244.0.102")
        .replace("TARGETIP", "10.244.0.101");
    text.replace("JITTER", "1900")
}

fn scenario(text: &str) -> Result<Scenario, String> {
    let view = PodView::read(&yaml::read(text)?);
    let mut scenario = actors::add_all(Scenario::new(view));
    for line in text.lines() {
        if let Some(json) = line.strip_prefix("# Recording actions: ") {
            let wishes: Value =
                serde_json::from_str(json).map_err(|e| format!("reading the actions: {e}"))?;
            let wishes = wishes.as_array().map_or(&[][..], Vec::as_slice);
            scenario.interventions = wishes.iter().map(intervention).collect::<Result<_, _>>()?;
        } else if let Some(json) = line.strip_prefix("# CNI capture arguments: ") {
            let given: Value = serde_json::from_str(json).map_err(|e| format!("reading the capture: {e}"))?;
            scenario.at_sandbox = Some(capture(&given));
        }
    }
    Ok(scenario)
}

fn capture(given: &Value) -> Capture {
    if given["ambient"] == true {
        return Capture::ambient();
    }
    let words = given["args"].as_array().map_or(&[][..], Vec::as_slice);
    let words: Vec<String> = words
        .iter()
        .filter_map(|w| w.as_str().map(str::to_owned))
        .collect();
    actors::capture(&words)
}

fn intervention(wish: &Value) -> Result<Intervention, String> {
    let what = wish["do"].as_str().unwrap_or_default();
    let (verb, argument) = what.split_once(':').map_or((what, None), |(v, a)| (v, Some(a)));
    let act = match verb {
        "delete" => Act::Delete(argument.and_then(|a| a.parse().ok())),
        "killsandbox" => Act::LoseSandbox,
        "kubelet-restart" => Act::RestartKubelet,
        "curl" if what.ends_with("quitquitquit") => Act::QuitProxy,
        "end" => Act::End,
        _ => return Err(format!("unknown recording action {what:?}")),
    };
    let slack = if act == Act::End { END_SLACK } else { 0 };
    let on = wish["on"].as_str().unwrap_or_default().replace("api:", "pod.");
    Ok(Intervention {
        on,
        after: wish["after"].as_u64().unwrap_or(0) + slack,
        act,
    })
}

/// Positions of events by name; a repeated name gets `~2`, `~3`…
fn check_events(summary: &Value, scenario: &Scenario, trace: &Trace, wrong: &mut Vec<String>) {
    let mut seen: Vec<String> = Vec::new();
    for (_, id) in trace.named(scenario) {
        let before = seen
            .iter()
            .filter(|s| s.split('~').next() == Some(id.as_str()))
            .count();
        seen.push(if before == 0 {
            id
        } else {
            format!("{id}~{}", before + 1)
        });
    }
    let position = |id: &str| seen.iter().position(|s| *s == id.replace("#1.", "."));
    for order in strings(&summary["order"]) {
        let Some((first, second)) = order.split_once(" < ") else {
            wrong.push(format!("unreadable order {order:?}"));
            continue;
        };
        match (position(first), position(second)) {
            (Some(a), Some(b)) if a < b => {}
            (Some(_), Some(_)) => wrong.push(format!("not {order}")),
            (None, _) => wrong.push(format!("no {first}")),
            (_, None) => wrong.push(format!("no {second}")),
        }
    }
    for id in strings(&summary["never"]) {
        if position(&id).is_some() {
            wrong.push(format!("{id} happens"));
        }
    }
}

fn check_network(expected: &Value, scenario: &Scenario, trace: &Trace, wrong: &mut Vec<String>) {
    let Some(expected) = expected.as_object() else {
        return;
    };
    for (name, states) in expected {
        let lane = trace.network.iter().find(|lane| {
            let who = trace.name(scenario, lane.who);
            *name == lane.target.as_ref().map_or(who.clone(), |t| format!("{who}:{t}"))
        });
        let expected = strings(states);
        let found = lane.map(|l| l.states.iter().map(|(_, s)| s.as_str()).collect::<Vec<_>>());
        if found.as_ref().is_none_or(|f| *f != expected) {
            wrong.push(format!("{name} sees {found:?} instead of {expected:?}"));
        }
    }
}

fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().map_or(&[][..], Vec::as_slice);
    items
        .iter()
        .map(|i| i.as_str().unwrap_or_default().to_owned())
        .collect()
}

fn allows(expected: &Value, found: &str) -> bool {
    expected == found || strings(expected).iter().any(|e| e == found)
}
