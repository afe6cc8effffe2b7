use super::{Manifest, Owner, Reading};
use remora_pod::{object, yaml};
use serde_json::Value;

fn read(text: &str, cron_now: bool) -> Manifest {
    let documents: Vec<Value> = yaml::split(text)
        .filter_map(|raw| yaml::parse(&raw, yaml::Limits::default()).unwrap())
        .map(|d| d.value)
        .collect();
    let reading = Reading {
        namespace: "default",
        cron_now,
    };
    Manifest::read(&documents, reading)
}

const TEMPLATE: &str = "template: {metadata: {labels: {app: a}}, spec: {containers: [{name: c, image: i}]}}";

#[test]
fn workloads_become_pods_with_the_names_of_their_controllers() {
    let text = format!(
        "{{kind: Deployment, metadata: {{name: web, namespace: shop}}, spec: {{replicas: 2, {TEMPLATE}}}}}\n---\n\
         {{kind: StatefulSet, metadata: {{name: db}}, spec: {{replicas: 2, serviceName: dbs, {TEMPLATE}}}}}\n---\n\
         {{kind: DaemonSet, metadata: {{name: agent}}, spec: {{{TEMPLATE}}}}}\n---\n\
         {{kind: Job, metadata: {{name: once}}, spec: {{completions: 3, parallelism: 2, {TEMPLATE}}}}}\n"
    );
    let manifest = read(&text, false);
    let names: Vec<&str> = manifest.pods.iter().map(|p| object::name(&p.pod)).collect();
    assert_eq!(names.len(), 7, "{names:?}");
    assert!(names[0].starts_with("web-") && names[1].starts_with("web-") && names[0] != names[1]);
    assert_eq!(&names[2..4], ["db-0", "db-1"]);
    assert_eq!(manifest.pods[3].after, Some(2));
    assert_eq!(manifest.pods[2].pod["spec"]["subdomain"], "dbs");
    assert!(names[4].starts_with("agent-"));
    let Owner::Job(job) = &manifest.pods[5].owner else {
        panic!("{:?}", manifest.pods[5].owner)
    };
    assert_eq!((job.completions, job.parallelism, job.backoff_limit), (3, 2, 6));
    let third = manifest.pods[6].again(2);
    assert_ne!(object::name(&third.pod), names[5]);
    assert_ne!(object::name(&third.pod), names[6]);
    assert_eq!(object::namespace(&manifest.pods[0].pod), "shop");
    assert_eq!(manifest.pods[0].pod["metadata"]["labels"]["app"], "a");
    assert_eq!(
        read(&text, false).pods,
        manifest.pods,
        "the same documents, the same names"
    );
}

#[test]
fn other_kinds_are_named_and_left_out() {
    let text = format!(
        "{{kind: List, items: [{{kind: Ingress, metadata: {{name: in}}}}, {{kind: Namespace, metadata: {{name: x}}}}]}}\n---\n\
         {{kind: CronJob, metadata: {{name: night}}, spec: {{jobTemplate: {{spec: {{{TEMPLATE}}}}}}}}}\n"
    );
    let manifest = read(&text, false);
    assert!(manifest.pods.is_empty());
    assert_eq!(manifest.notes.len(), 2, "{:?}", manifest.notes);
    assert!(manifest.notes[0].starts_with("Ingress default/in"));
    assert!(manifest.notes[1].contains("--now"));
    let now = read(&text, true);
    assert_eq!(now.pods.len(), 1);
    assert!(object::name(&now.pods[0].pod).starts_with("night-now-"));
}
