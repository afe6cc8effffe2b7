//! Scenes in short: a pod of actors, what is done to it, and what is expected.

use crate::play::{Play, actor};
use remora_startup::kubelet::Config;
use serde_json::{Value, json};

/// A scene as a pod of actors.
pub(crate) fn play(scene: &Value) -> Play {
    let list = |key: &str| -> Vec<Value> {
        let items = scene[key].as_array().map_or(&[][..], Vec::as_slice);
        items.iter().map(container).collect()
    };
    let mut spec = json!({
        "restartPolicy": scene["policy"].as_str().unwrap_or("Always"),
        "terminationGracePeriodSeconds": scene["grace"].as_u64().unwrap_or(4),
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "initContainers": list("inits"),
        "containers": list("mains"),
    });
    if spec["initContainers"] == json!([]) {
        spec.as_object_mut().unwrap().remove("initContainers");
    }
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": scene["scene"], "namespace": "default", "annotations": {}},
        "spec": spec,
    });
    let mut play = Play::new(pod);
    if scene["captured"] == "sandbox" {
        play.scenario.at_sandbox = Some(remora_startup::network::Capture::default());
    }
    let backoff = Config {
        first_backoff: 1000,
        max_backoff: 8000,
        error_retry: 1000,
        ..play.scenario.kubelet.clone()
    };
    play.scenario.kubelet = backoff;
    // YAML takes a plain `on` for a truth.
    let mut deeds = scene["do"].clone();
    for deed in deeds.as_array_mut().into_iter().flatten() {
        deed["on"] = deed["when"].take();
    }
    play.scenario.assume(&json!({"do": deeds})).unwrap();
    play
}

/// A container from its short form: `capture`, `{proxy: 700}`, or `{name: app, does: …}`.
fn container(short: &Value) -> Value {
    if short == "capture" {
        let mut capture = part("istio-init", "--capture", 0);
        capture["securityContext"]["capabilities"] = json!({"add": ["NET_ADMIN", "NET_RAW", "DAC_OVERRIDE"]});
        return capture;
    }
    if short["proxy"].is_u64() {
        return proxy(short);
    }
    let name = short["name"].as_str().unwrap();
    let user = short["user"].as_u64().unwrap_or(1000);
    let mut made = part(name, short["does"].as_str().unwrap_or_default(), user);
    if short["sidecar"] == true {
        made["restartPolicy"] = json!("Always");
    }
    add_commands(&mut made, short);
    made
}

fn part(name: &str, does: &str, user: u64) -> Value {
    json!({
        "name": name, "image": "remora", "command": actor(name, does),
        "securityContext": {"runAsUser": user, "runAsGroup": user},
    })
}

/// Hooks and probes: words for an actor, or what the pod says.
fn add_commands(made: &mut Value, short: &Value) {
    let name = made["name"].as_str().unwrap().to_owned();
    let handler = |field: &str, given: &Value| match given.as_str() {
        Some(does) => json!({"exec": {"command": actor(&format!("{name}/{field}"), does)}}),
        None => given.clone(),
    };
    for hook in ["postStart", "preStop"] {
        if !short[hook].is_null() {
            made["lifecycle"][hook] = handler(hook, &short[hook]);
        }
    }
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        if !short[probe].is_null() {
            made[probe] = handler(probe, &short[probe]);
            if made[probe]["periodSeconds"].is_null() {
                made[probe]["periodSeconds"] = json!(1);
            }
        }
    }
}

/// The proxy: `native` with its gate, or a container beside the others.
fn proxy(short: &Value) -> Value {
    let native = short["native"].as_str();
    let drain = short["drain"].as_u64().unwrap_or(0);
    let more = short["does"].as_str().unwrap_or_default();
    let does = format!("--proxy {} --drain {drain} {more}", short["proxy"]);
    let mut made = part("istio-proxy", &does, 1337);
    let ready = json!({"httpGet": {"path": "/healthz/ready", "port": 15021}, "periodSeconds": 1});
    made["readinessProbe"] = ready.clone();
    if native.is_some() {
        made["restartPolicy"] = json!("Always");
    }
    if native == Some("probe") {
        made["startupProbe"] = ready;
        made["startupProbe"]["failureThreshold"] = json!(600);
    }
    if let Some(patience) = short["hold"].as_u64() {
        let does = format!("--await-proxy {patience}");
        made["lifecycle"]["postStart"] = json!({"exec": {"command": actor("istio-proxy/postStart", &does)}});
    }
    made
}
