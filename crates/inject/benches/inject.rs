//! How long one injection takes: a typical Deployment (one container, probes, two volumes), patch included.
#![allow(clippy::unwrap_used, missing_docs, reason = "a bench")]

use criterion::{Criterion, criterion_group, criterion_main};
use remora_inject::{Inventory, Settings, inject_object, patch};
use remora_pod::yaml;
use std::hint::black_box;

const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web, version: v1}
      annotations: {prometheus.io/scrape: 'true', prometheus.io/port: '9090'}
    spec:
      serviceAccountName: web
      containers:
      - name: web
        image: registry.example/web:1.2.3
        ports: [{name: http, containerPort: 8080}, {name: metrics, containerPort: 9090}]
        env: [{name: A, value: '1'}, {name: B, value: '2'}]
        resources: {requests: {cpu: 100m, memory: 128Mi}, limits: {memory: 256Mi}}
        livenessProbe: {httpGet: {path: /live, port: http}, periodSeconds: 10}
        readinessProbe: {httpGet: {path: /ready, port: http}, periodSeconds: 5}
        startupProbe: {httpGet: {path: /live, port: http}, failureThreshold: 30}
        volumeMounts: [{name: config, mountPath: /etc/web}, {name: cache, mountPath: /cache}]
      volumes: [{name: config, configMap: {name: web}}, {name: cache, emptyDir: {}}]
";

fn bench(c: &mut Criterion) {
    let settings = Settings {
        native: true,
        ..Settings::default()
    };
    let inventory = Inventory::default();
    let before = yaml::parse_str(DEPLOYMENT).unwrap().unwrap().value;
    c.bench_function("inject and patch", |b| {
        b.iter(|| {
            let mut after = before.clone();
            let report = inject_object(&mut after, &settings, &inventory);
            assert!(report.changed());
            black_box(patch(&before, &after))
        });
    });
    let mut injected = before.clone();
    inject_object(&mut injected, &settings, &inventory);
    c.bench_function("inject an injected pod", |b| {
        b.iter(|| {
            let mut again = injected.clone();
            inject_object(&mut again, &settings, &inventory);
            black_box(again)
        });
    });
    c.bench_function("parse, inject, write", |b| {
        b.iter(|| {
            let mut after = yaml::parse_str(DEPLOYMENT).unwrap().unwrap().value;
            inject_object(&mut after, &settings, &inventory);
            black_box(yaml::write(&after))
        });
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
