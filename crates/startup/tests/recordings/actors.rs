//! How the processes of a recorded pod behave, from their command lines.

use remora_pod::spec::{Container, Handler, Hook, ProbeKind};
use remora_rules::Intent;
use remora_rules::value::{Cidr, Ports};
use remora_startup::kubelet::StartError;
use remora_startup::network::Capture;
use remora_startup::sim::{Behaviour, Part, Role, Scenario, Target};

/// Adds the behaviour of every process of the pod.
pub(crate) fn add_all(mut scenario: Scenario) -> Scenario {
    for slot in 0..scenario.view.containers.len() {
        let container = scenario.view.containers[slot].clone();
        for (part, command) in commands(&container) {
            // k8s: hooks see `$(NAME)` as it is written, the others have it replaced.
            let words = match part {
                Part::Hook(_) => command,
                Part::Main | Part::Probe(_) => command.iter().map(|w| expand(w, &container)).collect(),
            };
            let mut behaviour = behaviour(&words);
            if part == Part::Main && container.image.contains("missing") {
                behaviour.unavailable = Some(StartError::ImagePull);
            }
            scenario = scenario.with(slot, part, behaviour);
        }
    }
    scenario
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

fn expand(word: &str, container: &Container) -> String {
    let mut word = word.to_owned();
    for (name, value) in &container.env {
        word = word.replace(&format!("$({name})"), value);
    }
    word
}

fn behaviour(words: &[String]) -> Behaviour {
    let verb = words.get(1).map_or("", String::as_str);
    let all = |key: &str| {
        let key = format!("{key}=");
        words
            .iter()
            .filter_map(|w| w.strip_prefix(&key).map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let number = |key: &str| all(key).first().and_then(|v| v.parse::<u64>().ok());
    let flag = |key: &str| number(key) == Some(1);
    let crashes = number("crashn");
    let code = |key: &str| number(key).and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
    let role = match verb {
        "proxy" => Role::Proxy {
            ready_after: number("delay").unwrap_or(1500),
            strict: flag("strict"),
        },
        "capture" => Role::Capture(capture(words)),
        "wait" => Role::AwaitProxy(number("dur").unwrap_or(60_000)),
        _ => Role::App,
    };
    Behaviour {
        lives: number("dur").filter(|_| role == Role::App),
        role,
        label: all("a").pop(),
        exit_code: code("code"),
        early_deaths: crashes
            .or(number("dien"))
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(0),
        early_life: number("life").unwrap_or(0),
        dies_deaf: crashes.is_some(),
        targets: all("t").iter().filter_map(|t| target(t)).collect(),
        must_connect: flag("must"),
        ends_connected: flag("ok"),
        keeps_connection: flag("conn"),
        listens: all("serve").iter().filter_map(|p| p.parse().ok()).collect(),
        healthy: !flag("failhttp"),
        drains: if flag("ignoreterm") {
            None
        } else {
            Some(number("drain").unwrap_or(0))
        },
        stop_code: code("termcode"),
        ..Behaviour::default()
    }
}

fn target(text: &str) -> Option<Target> {
    let (name, place) = text.split_once('@')?;
    let (address, port) = place.rsplit_once(':')?;
    Some(Target {
        name: name.to_owned(),
        address: address.parse().ok(),
        port: port.parse().ok(),
    })
}

/// The rules a capture command installs.
pub(crate) fn capture(words: &[String]) -> Capture {
    let mut intent = Intent::default();
    for word in words {
        match word.split_once('=') {
            Some(("exclport", port)) => intent.excluded_outbound_ports.extend(port.parse::<Ports>().ok()),
            Some(("exclcidr", range)) => intent.excluded_destinations.extend(range.parse::<Cidr>().ok()),
            _ => {}
        }
    }
    Capture::new(intent)
}
