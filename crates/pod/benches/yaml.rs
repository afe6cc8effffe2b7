//! Splitting, reading and writing one typical Deployment.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use remora_pod::yaml::{self, Limits};
use std::hint::black_box;

const DEPLOYMENT: &str = include_str!("../tests/corpus/yaml/deployment.yaml");

fn yaml_benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("yaml");
    group.throughput(Throughput::Bytes(DEPLOYMENT.len() as u64));
    group.bench_function("split", |bench| {
        bench.iter(|| yaml::split(black_box(DEPLOYMENT)).count());
    });
    for raw in yaml::split(DEPLOYMENT) {
        group.bench_function("parse", |bench| {
            bench.iter(|| yaml::parse(black_box(&raw), Limits::default()));
        });
        if let Ok(Some(document)) = yaml::parse(&raw, Limits::default()) {
            group.bench_function("write", |bench| {
                bench.iter(|| yaml::write(black_box(&document.value)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, yaml_benches);
criterion_main!(benches);
