//! How long one pod takes.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use remora_pod::spec::PodView;
use remora_startup::analysis::Analysis;
use remora_startup::findings::{Options, check, fix};
use remora_startup::sim::{Scenario, simulate};
use serde_json::{Value, json};

/// A pod as injectors leave them: two init containers of the user, two main containers, probes everywhere.
fn typical() -> Value {
    let http = |path: &str, port: u16| json!({"httpGet": {"path": path, "port": port}, "periodSeconds": 5});
    let env: Vec<Value> = (0..20)
        .map(|n| json!({"name": format!("SETTING_{n}"), "value": "some ordinary value"}))
        .collect();
    let app = |name: &str, port: u16| {
        json!({"name": name, "image": "registry.example.com/team/app:1.2.3", "env": env,
            "ports": [{"name": "http", "containerPort": port}],
            "readinessProbe": http("/ready", 15020), "livenessProbe": http("/live", 15020),
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}, "volumeMounts": [{"name": "data", "mountPath": "/data"}]})
    };
    json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "shop"}, "spec": {"template": {
        "metadata": {"annotations": {"sidecar.istio.io/status": "{}"}, "labels": {"app": "shop"}},
        "spec": {
            "initContainers": [
                {"name": "istio-init", "image": "proxyv2", "args": ["istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337",
                    "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*", "-d", "15090,15021,15020"]},
                {"name": "migrate", "image": "registry.example.com/team/app:1.2.3", "command": ["./manage", "migrate"],
                    "env": [{"name": "DATABASE_URL", "value": "postgres://db.prod:5432/shop"}]},
                {"name": "otel", "image": "autoinstrumentation-java", "command": ["cp", "/javaagent.jar", "/otel"]}],
            "containers": [app("shop", 8080), app("cache", 8081),
                {"name": "istio-proxy", "image": "proxyv2", "env": env, "readinessProbe": http("/healthz/ready", 15021),
                    "securityContext": {"runAsUser": 1337, "runAsGroup": 1337}}]}}}})
}

fn pod(c: &mut Criterion) {
    let document = typical();
    let options = Options::default();
    c.bench_function("analysis", |b| b.iter(|| check(black_box(&document), &options)));
    c.bench_function("fix", |b| b.iter(|| fix(black_box(&document), &options)));
    let scenario = Scenario {
        horizon: 30_000,
        ..Scenario::usual(&Analysis::new(PodView::read(&document), None))
    };
    c.bench_function("simulation of 30 s", |b| {
        b.iter(|| simulate(black_box(&scenario)));
    });
}

criterion_group!(benches, pod);
criterion_main!(benches);
