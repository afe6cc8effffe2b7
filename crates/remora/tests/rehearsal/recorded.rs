//! Recordings of a real kubelet, played again on this engine.

use crate::judge::strings;
use crate::play::{Play, actor, rules};
use crate::stage::place;
use remora_startup::network::Capture;
use remora_startup::sim::{Act, Intervention};
use serde_json::{Value, json};
use std::path::Path;

/// How long a recording goes on after it was told to end.
const END_SLACK: u64 = 250;

/// A recording as a play, and what held in every recorded run.
pub(crate) fn read(folder: &Path) -> (Play, Value) {
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let source = text("pod.yaml");
    let filled = source
        .replace("TARGET2IP", &place("SECOND"))
        .replace("TARGETIP", &place("TARGET"))
        .replace("JITTER", "1900");
    let mut pod = crate::yaml(&filled);
    for list in ["initContainers", "containers"] {
        let found = pod
            .pointer_mut(&format!("/spec/{list}"))
            .and_then(Value::as_array_mut);
        for container in found.into_iter().flatten() {
            translate(container);
        }
    }
    let comment = |start: &str| {
        let line = filled.lines().find_map(|line| line.strip_prefix(start));
        line.map(|json| serde_json::from_str::<Value>(json).unwrap())
    };
    let sandbox = comment("# CNI capture arguments: ").map(|given| capture(&given));
    if let Some(capture) = sandbox.as_ref().filter(|c| !c.is_ambient()) {
        annotate(&mut pod, capture);
    }
    let mut play = Play::new(pod);
    play.scenario.at_sandbox = sandbox;
    let actions = comment("# Recording actions: ").unwrap_or_default();
    let actions = actions.as_array().cloned().unwrap_or_default();
    play.scenario.interventions = actions.iter().map(intervention).collect();
    let mut expected = crate::yaml(&text("summary.yaml"));
    improve(&mut expected);
    (play, expected)
}

/// Istio's rules break connections that were open before; ours take new connections only.
fn improve(expected: &mut Value) {
    const BROKEN: &str = ".conn-broken";
    let (better, order) = strings(&expected["order"])
        .into_iter()
        .partition::<Vec<_>, _>(|o| o.contains(BROKEN));
    expected["order"] = json!(order);
    let mut never = strings(&expected["never"]);
    never.extend(
        better
            .iter()
            .filter_map(|o| Some(o.split_once(" < ")?.1.to_owned())),
    );
    expected["never"] = json!(never);
}

/// Puts our actor in the place of the recorded one.
fn translate(container: &mut Value) {
    let name = remora_pod::view::name(container).to_owned();
    let words = |command: &Value| strings(command);
    let image = container["image"].as_str().unwrap_or_default().to_owned();
    if !image.contains("missing") {
        container["image"] = json!("remora");
    }
    container["command"] = json!(actor(&name, &flags(&words(&container["command"]))));
    for place in [
        "/lifecycle/postStart/exec/command",
        "/lifecycle/preStop/exec/command",
        "/startupProbe/exec/command",
        "/readinessProbe/exec/command",
        "/livenessProbe/exec/command",
    ] {
        if let Some(command) = container.pointer_mut(place) {
            let given = words(command);
            let label = given.iter().find_map(|w| w.strip_prefix("a=")).unwrap_or("exec");
            *command = json!(actor(&format!("{name}/{label}"), &flags(&given)));
        }
    }
}

/// Our flags for the recorded actor's arguments.
fn flags(words: &[String]) -> String {
    let verb = words.get(1).map_or("", String::as_str);
    let mut out = Vec::new();
    let deaf = words.iter().any(|w| w.starts_with("crashn="));
    if verb == "capture" {
        out.push("--capture".to_owned());
    }
    for word in words.iter().skip(2) {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        out.push(match (key, value) {
            ("t", target) => format!("--target {}", target.replace('@', "=")),
            ("dur", time) if verb == "wait" => format!("--await-proxy {time}"),
            ("dur", time) => format!("--life {time}"),
            ("delay", time) => format!("--proxy {time}"),
            ("must", "1") => "--needs-network".to_owned(),
            ("ok", "1") => "--until-connected".to_owned(),
            ("conn", "1") => "--keep-connection".to_owned(),
            ("failhttp", "1") => "--unhealthy".to_owned(),
            ("strict", "1") => "--strict".to_owned(),
            ("ignoreterm", "1") => "--ignore-stop".to_owned(),
            ("dien" | "crashn", n) => format!("--deaths {n}{}", if deaf { " --deaf" } else { "" }),
            ("life", time) => format!("--first-life {time}"),
            ("termcode", code) => format!("--stop-code {code}"),
            ("exclport", port) => format!("--exclude-port {port}"),
            ("exclcidr", range) => format!("--exclude-range {range}"),
            (key @ ("code" | "serve" | "drain"), value) => format!("--{key} {value}"),
            ("a", _) => String::new(),
            other => panic!("unknown argument {other:?}"),
        });
    }
    if verb == "proxy" && !out.iter().any(|w| w.starts_with("--proxy")) {
        out.push("--proxy 1500".to_owned());
    }
    out.join(" ")
}

fn capture(given: &Value) -> Capture {
    if given["ambient"] == true {
        return Capture::ambient();
    }
    let words = strings(&given["args"]);
    let of = |key: &str| -> Vec<&str> { words.iter().filter_map(|w| w.strip_prefix(key)).collect() };
    rules(&of("exclport="), &of("exclcidr="))
}

/// The same wishes in the words a pod says them with.
fn annotate(pod: &mut Value, capture: &Capture) {
    let ports: Vec<String> = capture
        .intent()
        .excluded_outbound_ports
        .iter()
        .map(ToString::to_string)
        .collect();
    let ranges: Vec<String> = capture
        .intent()
        .excluded_destinations
        .iter()
        .map(ToString::to_string)
        .collect();
    let annotations = &mut pod["metadata"]["annotations"];
    annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = json!(ports.join(","));
    annotations["traffic.sidecar.istio.io/excludeOutboundIPRanges"] = json!(ranges.join(","));
}

fn intervention(wish: &Value) -> Intervention {
    let what = wish["do"].as_str().unwrap();
    let (verb, argument) = what.split_once(':').map_or((what, None), |(v, a)| (v, Some(a)));
    let act = match verb {
        "delete" => Act::Delete(argument.and_then(|a| a.parse().ok())),
        "killsandbox" => Act::LoseSandbox,
        "kubelet-restart" => Act::RestartKubelet,
        "curl" => Act::QuitProxy,
        "end" => Act::End,
        other => panic!("unknown action {other}"),
    };
    let slack = if act == Act::End { END_SLACK } else { 0 };
    Intervention {
        on: wish["on"].as_str().unwrap().replace("api:", "pod."),
        after: wish["after"].as_u64().unwrap_or(0) + slack,
        act,
    }
}
