//! Service names, owners and resource attributes.

use serde_json::{Value, json};

use super::super::Owner;
use super::{app, case};

fn owner(kind: &str, name: &str) -> Owner {
    Owner {
        api_version: "apps/v1".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: None,
    }
}

#[test]
fn the_service_is_named_after_the_nearest_known_thing() {
    let mut given = case(
        &[("inject-sdk", "true")],
        &json!({"defaults": {"useLabelsForResourceAttributes": true}}),
        app(),
    );
    let name = |given: &super::Case| given.run().env("app", "OTEL_SERVICE_NAME").clone();
    assert_eq!(name(&given), "app", "container");
    given.pod_name = Some("pod-1");
    assert_eq!(name(&given), "pod-1");
    given.owner = Some(owner("StatefulSet", "cart"));
    assert_eq!(name(&given), "cart");
    given.labels = json!({"app.kubernetes.io/name": "labelled"});
    assert_eq!(name(&given), "labelled");
    given.labels["app.kubernetes.io/instance"] = json!("instance");
    assert_eq!(name(&given), "instance");
    given.annotations["resource.opentelemetry.io/service.name"] = json!("annotated");
    assert_eq!(name(&given), "annotated");
    given.spec["containers"][0]["env"] = json!([{"name": "OTEL_SERVICE_NAME", "value": "mine"}]);
    assert_eq!(name(&given), "mine");
}

#[test]
fn replica_sets_and_jobs_are_followed_to_their_makers() {
    let mut given = case(
        &[("inject-sdk", "true")],
        &json!({"resource": {"addK8sUIDAttributes": true}}),
        app(),
    );
    let made = |kind: &str, api: &str, name: &str, maker: &str, by: &str| {
        json!({"apiVersion": api, "kind": kind, "metadata": {"namespace": "shop", "name": name, "ownerReferences": [
            {"apiVersion": api, "kind": maker, "name": by, "uid": "u-1"}]}})
    };
    given
        .documents
        .push(made("ReplicaSet", "apps/v1", "web-abc", "Deployment", "web"));
    given
        .documents
        .push(made("Job", "batch/v1", "nightly-1", "CronJob", "nightly"));
    given.owner = Some(owner("ReplicaSet", "web-abc"));
    let run = given.run();
    assert_eq!(run.env("app", "OTEL_SERVICE_NAME"), "web");
    assert_eq!(run.attribute("app", "k8s.deployment.uid"), Some("u-1"));
    assert_eq!(run.attribute("app", "k8s.replicaset.name"), Some("web-abc"));
    assert_eq!(
        run.attribute("app", "k8s.pod.uid"),
        Some("$(OTEL_RESOURCE_ATTRIBUTES_POD_UID)")
    );
    given.owner = Some(owner("Job", "nightly-1"));
    let run = given.run();
    assert_eq!(run.env("app", "OTEL_SERVICE_NAME"), "nightly");
    assert_eq!(run.attribute("app", "k8s.job.name"), Some("nightly-1"));
    given.owner = Some(owner("Rollout", "canary"));
    assert_eq!(
        given.run().env("app", "OTEL_SERVICE_NAME"),
        "app",
        "unknown kinds name nothing"
    );
}

#[test]
fn attributes_have_an_order_of_precedence() {
    let cr = json!({"resource": {"resourceAttributes": {
        "team": "cr", "zone": "cr", "k8s.container.name": "cr", "service.version": "cr"}}});
    let mut given = case(&[("inject-sdk", "true")], &cr, app());
    given.annotations["resource.opentelemetry.io/team"] = json!("annotation");
    given.spec["containers"][0]["env"] = json!([{"name": "OTEL_RESOURCE_ATTRIBUTES", "value": "zone=mine,k8s.pod.name=me"}, {"name": "Z", "value": ""}]);
    let run = given.run();
    let all = run.env("app", "OTEL_RESOURCE_ATTRIBUTES").as_str().unwrap();
    assert_eq!(
        all,
        "zone=mine,k8s.pod.name=me,k8s.container.name=app,k8s.namespace.name=shop,\
         k8s.node.name=$(OTEL_RESOURCE_ATTRIBUTES_NODE_NAME),\
         service.instance.id=shop.$(OTEL_RESOURCE_ATTRIBUTES_POD_NAME).app,service.namespace=shop,\
         service.version=1.2,team=annotation"
    );
    assert_eq!(
        run.env_names("app").last(),
        Some(&"OTEL_RESOURCE_ATTRIBUTES"),
        "behind what it refers to"
    );
}

#[test]
fn a_bound_pod_uses_its_node_name() {
    let mut given = case(&[("inject-sdk", "true")], &json!({}), app());
    given.spec["nodeName"] = json!("n1");
    let run = given.run();
    assert_eq!(run.attribute("app", "k8s.node.name"), Some("n1"));
    assert!(
        !run.env_names("app")
            .contains(&"OTEL_RESOURCE_ATTRIBUTES_NODE_NAME")
    );
    assert!(!given.again(&run).outcome.changed, "still found on a second pass");
}

#[test]
fn versions_come_from_annotation_label_or_image() {
    let version = |image: &str| {
        let spec = json!({"containers": [{"name": "app", "image": image}]});
        case(&[("inject-sdk", "true")], &json!({}), spec)
            .run()
            .attribute("app", "service.version")
            .map(str::to_owned)
    };
    assert_eq!(version("host:5000/app"), None);
    assert_eq!(version("host:5000/app:v3").as_deref(), Some("v3"));
    assert_eq!(version("app@sha256:ab").as_deref(), Some("sha256:ab"));
    assert_eq!(version("app:v3@sha256:ab").as_deref(), Some("v3@sha256:ab"));
    let mut given = case(
        &[("inject-sdk", "true")],
        &json!({"defaults": {"useLabelsForResourceAttributes": true}}),
        app(),
    );
    given.labels = json!({"app.kubernetes.io/version": "labelled"});
    assert_eq!(given.run().attribute("app", "service.version"), Some("labelled"));
    given.annotations["resource.opentelemetry.io/service.version"] = json!("annotated");
    assert_eq!(given.run().attribute("app", "service.version"), Some("annotated"));
}

#[test]
fn a_value_cannot_smuggle_in_attributes() {
    let mut given = case(&[("inject-sdk", "true")], &json!({}), app());
    given.annotations["resource.opentelemetry.io/team"] = json!("a,admin=true\nx");
    let run = given.run();
    assert_eq!(run.attribute("app", "team"), Some("a%2Cadmin%3Dtrue%0Ax"));
    assert_eq!(run.attribute("app", "admin"), None);
}

#[test]
fn indirect_attributes_are_left_alone_and_reported() {
    let mut given = case(&[("inject-sdk", "true")], &json!({}), app());
    let entry = json!({"name": "OTEL_RESOURCE_ATTRIBUTES", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}});
    given.spec["containers"][0]["env"] = json!([entry]);
    let run = given.run();
    assert_eq!(run.codes(), ["otel-attributes-indirect"]);
    assert!(run.container("app")["env"].as_array().unwrap().contains(&entry));
}

#[test]
fn exporter_propagators_and_sampler_yield_to_the_container() {
    let cr = json!({"exporter": {"endpoint": "http://c:4318"}, "propagators": ["b3", "baggage"],
                    "sampler": {"type": "traceidratio", "argument": "0.5"}});
    let run = case(&[("inject-sdk", "true")], &cr, app()).run();
    assert_eq!(run.env("app", "OTEL_EXPORTER_OTLP_ENDPOINT"), "http://c:4318");
    assert_eq!(run.env("app", "OTEL_PROPAGATORS"), "b3,baggage");
    assert_eq!(run.env("app", "OTEL_TRACES_SAMPLER_ARG"), "0.5");
    let spec = json!({"containers": [{"name": "app", "env": [{"name": "OTEL_TRACES_SAMPLER", "value": "always_on"}]}]});
    let run = case(&[("inject-sdk", "true")], &cr, spec).run();
    assert_eq!(run.env("app", "OTEL_TRACES_SAMPLER"), "always_on");
    assert_eq!(run.env("app", "OTEL_TRACES_SAMPLER_ARG"), &Value::Null);
}
