//! Reading and writing one typical Deployment.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use remora_pod::yaml::{self, Limits};
use std::hint::black_box;

const DEPLOYMENT: &str = include_str!("../tests/corpus/yaml/deployment.yaml");

fn benches(criterion: &mut Criterion) {
    let raw = yaml::split(DEPLOYMENT).next().expect("one document");
    let document = yaml::parse(&raw, Limits::default())
        .expect("valid")
        .expect("not empty");
    let mut group = criterion.benchmark_group("yaml");
    group.throughput(Throughput::Bytes(DEPLOYMENT.len() as u64));
    group.bench_function("split", |bench| {
        bench.iter(|| yaml::split(black_box(DEPLOYMENT)).count())
    });
    group.bench_function("parse", |bench| {
        bench.iter(|| yaml::parse(black_box(&raw), Limits::default()))
    });
    group.bench_function("write", |bench| {
        bench.iter(|| yaml::write(black_box(&document.value)))
    });
    group.finish();
}

criterion_group!(yaml_benches, benches);
criterion_main!(yaml_benches);
