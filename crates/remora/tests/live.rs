//! `remora check --namespace` and `remora why POD`: what a cluster is asked, and what is made of its answers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(dead_code, reason = "the API server can do more than these tests need")]

#[path = "native_auto/api_server.rs"]
mod api_server;
mod common;

use api_server::ApiServer;
use common::{Scene, binary};
use serde_json::{Value, json};
use std::process::Output;

/// Istio's order after another webhook: traffic is captured, and an init container needs the network.
fn broken(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "managedFields": [{"manager": "kubectl"}],
            "ownerReferences": [{"controller": true, "uid": "u1", "name": "web-6f", "kind": "ReplicaSet"}]},
        "spec": {
            "initContainers": [
                {"name": "istio-init", "image": "proxyv2", "args": ["istio-iptables", "-p", "15001", "-z", "15006", "-i", "*", "-b", "*"]},
                {"name": "migrate", "image": "curlimages/curl", "command": ["curl", "http://db:80/"]}],
            "containers": [
                {"name": "web", "image": "web:1"},
                {"name": "istio-proxy", "image": "proxyv2", "args": ["proxy", "sidecar"]}]},
        "status": {"phase": "Pending",
            "initContainerStatuses": [
                {"name": "istio-init", "state": {"terminated": {"exitCode": 0}}},
                {"name": "migrate", "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"exitCode": 7}}}],
            "containerStatuses": [{"name": "web", "state": {"waiting": {"reason": "PodInitializing"}}}]}})
}

fn sound() -> Value {
    json!({"metadata": {"name": "cart", "namespace": "shop"},
        "spec": {"containers": [{"name": "cart", "image": "cart:1"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "cart", "ready": true, "started": true,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}})
}

fn list(items: &[Value]) -> (u16, String) {
    let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items});
    (200, list.to_string())
}

fn refusal(code: u16, reason: &str) -> (u16, String) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
        "message": format!("{reason} here")});
    (code, status.to_string())
}

/// Two pods made alike, one that is well, a cron job without pods.
fn answer(head: &str) -> (u16, String) {
    let path = head.split(' ').nth(1).unwrap();
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let nightly = json!({"metadata": {"name": "nightly", "namespace": "shop"}, "spec": {"jobTemplate": {"spec":
        {"template": {"spec": {"containers": [{"name": "work", "image": "work:1"}]}}}}}});
    match path.rsplit('/').next().unwrap() {
        "pods" => list(&[broken("web-6f-b"), broken("web-6f-a"), sound()]),
        "cronjobs" => list(&[nightly]),
        "statefulsets" => refusal(403, "Forbidden"),
        "nodes" => {
            list(&[json!({"metadata": {"name": "n"}, "status": {"nodeInfo": {"kubeletVersion": "v1.33.1"}}})])
        }
        "events" if query.contains("web-6f-a") => {
            list(&[json!({"metadata": {"name": "e"}, "type": "Warning",
            "reason": "BackOff", "message": "Back-off restarting failed container migrate", "count": 4,
            "lastTimestamp": "2026-01-01T00:00:00Z"})])
        }
        "events" if query.contains("FailedCreate") => {
            list(&[json!({"metadata": {"name": "e"}, "type": "Warning",
            "reason": "FailedCreate", "message": "admission webhook denied the request: no sidecar for you",
            "involvedObject": {"name": "bank-7c"}})])
        }
        "web-6f-a" => (200, broken("web-6f-a").to_string()),
        "cart" => (200, sound().to_string()),
        "deployments" | "daemonsets" | "jobs" | "events" => list(&[]),
        _ => refusal(404, "NotFound"),
    }
}

/// Status, output and errors of a command in front of this cluster.
fn remora(arguments: &[&str]) -> (Option<i32>, String, String) {
    let api = ApiServer::plain(answer);
    let kubeconfig = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u",
            "namespace": "shop"}}],
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", api.address())}}],
        "users": [{"name": "u", "user": {}}]});
    let scene = Scene::new(&[("kubeconfig", &kubeconfig.to_string())]);
    let mut command = scene.command(&binary(), arguments);
    let output: Output = command.args(["--kubeconfig", "kubeconfig"]).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn what_runs_in_a_namespace_is_checked_like_a_file() {
    let (code, told, warned) = remora(&["check", "--namespace", "shop"]);
    assert_eq!(code, Some(1), "{told}{warned}");
    assert!(
        told.contains("error[RM001]") && told.contains("--> shop/pod/web-6f-a:34:5"),
        "{told}"
    );
    assert!(
        told.contains("why: migrate") && !told.contains("web-6f-b"),
        "one of two alike: {told}"
    );
    assert!(
        told.contains("CronJob \"shop/nightly\"") && told.contains("ok"),
        "{told}"
    );
    assert!(
        warned.contains("statefulsets") && warned.contains("Forbidden"),
        "what could not be seen is told: {warned}"
    );
    assert!(!told.contains("managedFields"));
}

#[test]
fn all_namespaces_as_json_for_programs() {
    let (code, told, _) = remora(&["check", "-A", "--format", "json", "--fail-on", "never"]);
    assert_eq!(code, Some(0));
    let report: Value = serde_json::from_str(&told).unwrap();
    assert!(report.to_string().contains("shop/pod/web-6f-a"), "{report}");
}

#[test]
fn a_pod_that_is_stuck_is_explained_in_the_words_of_check() {
    let (code, told, warned) = remora(&["why", "web-6f-a"]);
    assert_eq!(code, Some(1), "{told}{warned}");
    let first = told.lines().next().unwrap();
    assert_eq!(
        first,
        "pod shop/web-6f-a waits for init container \"migrate\" (2 of 2), which does not run: CrashLoopBackOff; it \
         ended and was started again 4 times, last with code 7"
    );
    assert!(told.contains("behind it: web, istio-proxy"), "{told}");
    assert!(
        told.contains("event: BackOff: Back-off restarting failed container migrate (4 times)"),
        "{told}"
    );
    let (_, checked, _) = remora(&["check", "-n", "shop"]);
    let finding = |text: &str| {
        text.lines()
            .find(|line| line.contains("error["))
            .unwrap()
            .to_owned()
    };
    assert_eq!(finding(&told), finding(&checked));
}

#[test]
fn a_workload_by_name_a_pod_that_is_well_and_pods_that_were_refused() {
    let (code, told, warned) = remora(&["why", "web"]);
    assert_eq!(code, Some(1));
    assert!(
        warned.contains("looking at \"web-6f-") && told.contains("migrate"),
        "{warned}{told}"
    );
    let (code, told, _) = remora(&["why", "shop/cart"]);
    assert_eq!(
        (code, told.as_str()),
        (Some(0), "pod shop/cart runs and is ready\n")
    );
    let (code, _, warned) = remora(&["why", "bank"]);
    assert_eq!(code, Some(2));
    assert!(
        warned.contains("could not be created") && warned.contains("no sidecar for you"),
        "{warned}"
    );
    let (code, _, warned) = remora(&["why", "nobody", "--json"]);
    assert!(
        code == Some(2) && warned.contains("there is no pod \"nobody\" in namespace \"shop\""),
        "{warned}"
    );
    let (_, told, _) = remora(&["why", "web-6f-a", "--json"]);
    let story: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&story["fine"], &story["container"]),
        (&json!(false), &json!("migrate"))
    );
}

#[test]
fn flags_that_make_no_sense_together_are_refused() {
    for (arguments, part) in [
        (&["check", "-f", "x.yaml", "-n", "shop"][..], "leave -f away"),
        (&["check", "-n", "shop", "--fix"], "give them with -f"),
        (&["why", "shop/web", "cart:80"], "cannot be used with"),
    ] {
        let (code, _, warned) = remora(arguments);
        assert!(
            code == Some(2) && warned.contains(part),
            "{arguments:?}: {warned}"
        );
    }
}
