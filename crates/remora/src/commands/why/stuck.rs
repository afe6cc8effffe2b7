//! Where in its life a pod is, and what it waits for, by its status. No IO, no clock.

use k8s_openapi::jiff::Timestamp;
use remora_pod::view;
use serde_json::Value;
use std::fmt::Write as _;

/// How a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Course {
    /// It runs and is ready, or did its work.
    Fine,
    /// It is on its way, or will never get there: this is where.
    Stuck,
}

/// Where a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) course: Course,
    /// One sentence, without the pod's name: `waits for init container "migrate" (2 of 3), which …`.
    pub(super) what: String,
    /// The container that holds it up; empty when none does.
    pub(super) container: String,
    /// Who waits behind it.
    pub(super) behind: Vec<String>,
}

impl Standing {
    fn fine(what: impl Into<String>) -> Self {
        Self {
            course: Course::Fine,
            ..Self::stuck(what, "")
        }
    }

    fn stuck(what: impl Into<String>, container: &str) -> Self {
        Self {
            course: Course::Stuck,
            what: what.into(),
            container: container.to_owned(),
            behind: Vec::new(),
        }
    }
}

/// Looks at a pod.
pub(super) fn look(pod: &Value, now: Timestamp) -> Standing {
    let status = &pod["status"];
    let phase = status["phase"].as_str().unwrap_or("Pending");
    if let Some(since) = view::text(pod, &["metadata", "deletionTimestamp"]) {
        return leaving(pod, &age(since, now));
    }
    match phase {
        "Succeeded" => return Standing::fine("did its work and ended"),
        "Failed" => return failed(pod, now),
        _ => {}
    }
    if let Some(condition) = condition(pod, "PodScheduled").filter(|c| c["status"] == "False") {
        let why = said(&condition["reason"], &condition["message"]);
        return Standing::stuck(format!("has no node: {why}"), "");
    }
    if let Some(standing) = starting(pod, now) {
        return standing;
    }
    match condition(pod, "Ready") {
        Some(ready) if ready["status"] == "True" => Standing::fine("runs and is ready"),
        Some(ready) => {
            let why = said(&ready["reason"], &ready["message"]);
            Standing::stuck(format!("runs and is not ready: {why}"), "")
        }
        None => Standing::stuck("has no kubelet that tells about it yet", ""),
    }
}

/// The first container that is not where it should be.
fn starting(pod: &Value, now: Timestamp) -> Option<Standing> {
    let inits = view::list(pod, &["spec", "initContainers"]);
    let mains = view::list(pod, &["spec", "containers"]);
    let names = |list: &[Value]| -> Vec<String> { list.iter().map(|c| name(c).to_owned()).collect() };
    for (index, container) in inits.iter().enumerate() {
        let sidecar = container["restartPolicy"] == "Always";
        let state = status_of(pod, "initContainerStatuses", name(container));
        let done = if sidecar {
            state["started"] == true
        } else {
            state["state"]["terminated"]["exitCode"] == 0
        };
        if !done {
            let role = if sidecar { "sidecar" } else { "init container" };
            let place = format!("{role} {:?} ({} of {})", name(container), index + 1, inits.len());
            let mut standing = Standing::stuck(
                format!("waits for {place}, which {}", doing(container, state, now)),
                name(container),
            );
            standing.behind = names(inits.get(index + 1..).unwrap_or_default());
            standing.behind.extend(names(mains));
            return Some(standing);
        }
    }
    for (index, container) in mains.iter().enumerate() {
        let state = status_of(pod, "containerStatuses", name(container));
        let waiting = state["state"]["waiting"]["reason"].as_str();
        let before = index.checked_sub(1).and_then(|i| mains.get(i));
        if matches!(waiting, Some("ContainerCreating" | "PodInitializing"))
            && let Some(before) = before.filter(|c| !c["lifecycle"]["postStart"].is_null())
        {
            // k8s: containers are started one after the other, and the next one waits for the hook.
            let what = format!(
                "waits for the postStart hook of container {:?}: the next container starts when it has returned",
                name(before)
            );
            let mut standing = Standing::stuck(what, name(before));
            standing.behind = names(mains.get(index..).unwrap_or_default());
            return Some(standing);
        }
        if state["ready"] != true {
            let doing = doing(container, state, now);
            return Some(Standing::stuck(
                format!("waits for container {:?}, which {doing}", name(container)),
                name(container),
            ));
        }
    }
    None
}

/// What a container does, from its status.
fn doing(container: &Value, status: &Value, now: Timestamp) -> String {
    let state = &status["state"];
    let mut text = if let Some(waiting) = state["waiting"].as_object() {
        let null = Value::Null;
        let get = |key: &str| waiting.get(key).unwrap_or(&null);
        match get("reason").as_str() {
            Some("PodInitializing" | "ContainerCreating") | None => "has not started".to_owned(),
            Some(_) => format!("does not run: {}", said(get("reason"), get("message"))),
        }
    } else if let Some(since) = state["running"]["startedAt"].as_str() {
        let since = age(since, now);
        if status["started"] == false && !container["startupProbe"].is_null() {
            format!("has run for {since} without passing its startup probe")
        } else if status["started"] == false {
            format!("has run for {since}, and whose postStart hook has not returned")
        } else if container["restartPolicy"].is_null() && status["ready"] == false && has_probe(container) {
            format!("has run for {since} and is not ready")
        } else {
            format!("has run for {since}")
        }
    } else if let Some(code) = state["terminated"]["exitCode"].as_i64() {
        let reason = state["terminated"]["reason"].as_str().unwrap_or("Error");
        format!("ended with code {code} ({reason})")
    } else {
        "has not started".to_owned()
    };
    let restarts = status["restartCount"].as_u64().unwrap_or(0);
    if restarts > 0 {
        let last = status["lastState"]["terminated"]["exitCode"].as_i64();
        let last = last.map_or_else(String::new, |code| format!(", last with code {code}"));
        let times = if restarts == 1 {
            "once".to_owned()
        } else {
            format!("{restarts} times")
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "; it ended and was started again {times}{last}");
    }
    text
}

fn has_probe(container: &Value) -> bool {
    !container["readinessProbe"].is_null()
}

fn leaving(pod: &Value, since: &str) -> Standing {
    let grace = pod["metadata"]["deletionGracePeriodSeconds"].as_u64();
    let grace = grace.map_or_else(String::new, |s| format!(" (grace {s} s)"));
    let mut running = Vec::new();
    for list in ["initContainerStatuses", "containerStatuses"] {
        let still = view::list(pod, &["status", list]).iter();
        let still = still.filter(|status| !status["state"]["running"].is_null());
        running.extend(still.map(|status| name(status).to_owned()));
    }
    let finalizers = view::list(pod, &["metadata", "finalizers"]);
    let waits = match (running.as_slice(), finalizers) {
        ([], []) => "its kubelet has not said that it is gone".to_owned(),
        ([], some) => {
            let names: Vec<&str> = some.iter().filter_map(Value::as_str).collect();
            format!("it is kept by finalizers ({})", names.join(", "))
        }
        (some, _) => format!("still running: {}", some.join(", ")),
    };
    let first = running.first().map(String::as_str).unwrap_or_default();
    Standing::stuck(format!("is to end since {since}{grace}; {waits}"), first)
}

fn failed(pod: &Value, now: Timestamp) -> Standing {
    let status = &pod["status"];
    if status["reason"].is_string() {
        return Standing::stuck(
            format!("failed: {}", said(&status["reason"], &status["message"])),
            "",
        );
    }
    for (spec, list) in [
        ("initContainers", "initContainerStatuses"),
        ("containers", "containerStatuses"),
    ] {
        for container in view::list(pod, &["spec", spec]) {
            let state = status_of(pod, list, name(container));
            if state["state"]["terminated"]["exitCode"]
                .as_i64()
                .is_some_and(|code| code != 0)
            {
                let what = format!(
                    "failed: container {:?} {}",
                    name(container),
                    doing(container, state, now)
                );
                return Standing::stuck(what, name(container));
            }
        }
    }
    Standing::stuck("failed", "")
}

/// What the cluster said about a pod: warnings, the same ones once, the newest last.
pub(super) fn warnings(events: &[Value], now: Timestamp) -> Vec<String> {
    const MOST: usize = 6;
    let mut told: Vec<(Option<Timestamp>, String)> = Vec::new();
    for event in events.iter().filter(|event| event["type"] == "Warning") {
        let times = [
            &event["series"]["lastObservedTime"],
            &event["lastTimestamp"],
            &event["eventTime"],
        ];
        let last = times.iter().find_map(|time| time.as_str());
        let count = event["series"]["count"]
            .as_u64()
            .or(event["count"].as_u64())
            .unwrap_or(1);
        let count = if count > 1 {
            format!(" ({count} times)")
        } else {
            String::new()
        };
        let ago = last.map_or_else(String::new, |last| format!(", {} ago", age(last, now)));
        let text = format!("{}{count}{ago}", said(&event["reason"], &event["message"]));
        told.push((last.and_then(|last| last.parse().ok()), text));
    }
    told.sort();
    let newest = told.len().saturating_sub(MOST);
    told.drain(newest..).map(|(_, text)| text).collect()
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    view::list(pod, &["status", "conditions"])
        .iter()
        .find(|condition| condition["type"] == kind)
}

fn status_of<'a>(pod: &'a Value, list: &str, name: &str) -> &'a Value {
    let found = view::list(pod, &["status", list])
        .iter()
        .find(|status| status["name"] == name);
    found.unwrap_or(&Value::Null)
}

fn name(container: &Value) -> &str {
    container["name"].as_str().unwrap_or_default()
}

/// `Reason: message`, in one line.
fn said(reason: &Value, message: &Value) -> String {
    let line = |value: &Value| {
        let words: Vec<&str> = value.as_str().unwrap_or_default().split_whitespace().collect();
        words.join(" ")
    };
    match (line(reason), line(message)) {
        (reason, message) if message.is_empty() => reason,
        (reason, message) if reason.is_empty() => message,
        (reason, message) => format!("{reason}: {message}"),
    }
}

/// `4 min 10 s`.
fn age(since: &str, now: Timestamp) -> String {
    let Ok(then) = since.parse::<Timestamp>() else {
        return "an unknown time".to_owned();
    };
    let seconds = now.as_second().saturating_sub(then.as_second()).max(0);
    match (
        seconds / 86_400,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
    ) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
#[path = "stuck_tests.rs"]
mod tests;
