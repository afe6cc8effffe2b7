//! What is played: a pod whose processes are actors, and the same for the model.

use remora_pod::spec::{Container, Handler, Hook, PodView, ProbeKind};
use remora_rules::Intent;
use remora_startup::kubelet::StartError;
use remora_startup::network::Capture;
use remora_startup::sim::{Behaviour, Part, Role, Scenario, Target};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A pod and what the model is told about it.
#[derive(Debug, Clone)]
pub(crate) struct Play {
    pub(crate) pod: Value,
    pub(crate) scenario: Scenario,
}

/// Where the program under test is.
pub(crate) fn tools() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_remora"));
    program.parent().unwrap().to_owned()
}

impl Play {
    /// A pod whose commands are those of actors.
    pub(crate) fn new(pod: Value) -> Self {
        let view = PodView::read(&pod);
        let mut scenario = Scenario::new(view.clone());
        for (slot, container) in view.containers.iter().enumerate() {
            for (part, words) in commands(container) {
                let mut behaviour = behaviour(&words);
                if part == Part::Main && container.image.contains("missing") {
                    behaviour.unavailable = Some(StartError::ImagePull);
                }
                scenario = scenario.with(slot, part, behaviour);
            }
        }
        Self { pod, scenario }
    }

    pub(crate) fn name(&self) -> &str {
        remora_pod::object::name(&self.pod)
    }

    /// How many targets an actor has.
    pub(crate) fn targets_of(&self, actor: &str) -> usize {
        let view = &self.scenario.view;
        let found = view.containers.iter().flat_map(commands).find(|(_, words)| {
            let mut words = words.iter().skip_while(|w| *w != "--as");
            words.nth(1).is_some_and(|name| name == actor)
        });
        found.map_or(0, |(_, words)| behaviour(&words).targets.len())
    }
}

fn commands(container: &Container) -> Vec<(Part, Vec<String>)> {
    let mut out = vec![(Part::Main, container.command.clone())];
    let hooks = [Hook::PostStart, Hook::PreStop].map(|h| (Part::Hook(h), container.hook(h).cloned()));
    let probes = ProbeKind::ALL.map(|k| (Part::Probe(k), container.probe(k).map(|p| p.handler.clone())));
    for (part, handler) in hooks.into_iter().chain(probes) {
        if let Some(Handler::Exec(command)) = handler {
            out.push((part, command));
        }
    }
    out
}

/// The words that make an actor.
pub(crate) fn actor(name: &str, does: &str) -> Vec<String> {
    let mut words: Vec<String> = [
        "/tools/remora",
        "demo",
        "actor",
        "--as",
        name,
        "--journal",
        "/journal",
    ]
    .map(str::to_owned)
    .to_vec();
    words.extend(does.split_whitespace().map(crate::stage::place));
    words
}

/// What the model is told about such an actor.
fn behaviour(words: &[String]) -> Behaviour {
    let all = |flag: &str| -> Vec<&str> {
        let pairs = words.windows(2).filter(|pair| pair[0] == flag);
        pairs.map(|pair| pair[1].as_str()).collect()
    };
    let number = |flag: &str| all(flag).first().and_then(|v| v.parse::<u64>().ok());
    let has = |flag: &str| words.iter().any(|w| w == flag);
    let small = |flag: &str| number(flag).and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
    let role = if let Some(ready_after) = number("--proxy") {
        Role::Proxy {
            ready_after,
            strict: has("--strict"),
        }
    } else if let Some(patience) = number("--await-proxy") {
        Role::AwaitProxy(patience)
    } else if has("--capture") {
        Role::Capture(rules(&all("--exclude-port"), &all("--exclude-range")))
    } else {
        Role::App
    };
    Behaviour {
        role,
        label: all("--as")
            .pop()
            .and_then(|n| Some(n.split_once('/')?.1.to_owned())),
        lives: number("--life"),
        exit_code: small("--code"),
        early_deaths: number("--deaths")
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(0),
        early_life: number("--first-life").unwrap_or(0),
        dies_deaf: has("--deaf"),
        targets: all("--target").into_iter().filter_map(target).collect(),
        must_connect: has("--needs-network"),
        ends_connected: has("--until-connected"),
        keeps_connection: has("--keep-connection"),
        listens: all("--serve").iter().filter_map(|p| p.parse().ok()).collect(),
        healthy: !has("--unhealthy"),
        drains: (!has("--ignore-stop")).then(|| number("--drain").unwrap_or(0)),
        stop_code: small("--stop-code"),
        ..Behaviour::default()
    }
}

fn target(text: &str) -> Option<Target> {
    let (name, place) = text.split_once('=')?;
    let (address, port) = place.rsplit_once(':')?;
    Some(Target {
        name: name.to_owned(),
        address: address.parse().ok(),
        port: port.parse().ok(),
    })
}

/// Capture rules with these exceptions.
pub(crate) fn rules(ports: &[&str], ranges: &[&str]) -> Capture {
    Capture::new(Intent {
        excluded_outbound_ports: ports.iter().filter_map(|p| p.parse().ok()).collect(),
        excluded_destinations: ranges.iter().filter_map(|r| r.parse().ok()).collect(),
        ..Intent::default()
    })
}

/// The pod with the program and the journal in every container.
pub(crate) fn mounted(pod: &Value, journal: &Path) -> Value {
    let mut pod = pod.clone();
    let mounts = json!([
        {"name": "tools", "mountPath": "/tools", "readOnly": true},
        {"name": "journal", "mountPath": "/journal"},
    ]);
    for list in ["initContainers", "containers"] {
        let found = pod
            .pointer_mut(&format!("/spec/{list}"))
            .and_then(Value::as_array_mut);
        for container in found.into_iter().flatten() {
            container["volumeMounts"] = mounts.clone();
        }
    }
    pod["spec"]["volumes"] = json!([
        {"name": "tools", "hostPath": {"path": tools()}},
        {"name": "journal", "hostPath": {"path": journal}},
    ]);
    pod
}
