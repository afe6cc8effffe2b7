//! Second passes, and pods that another tool instrumented.

use serde_json::{Value, json};

use super::{annotations, app, case};

#[test]
fn every_language_is_injected_once() {
    let exe = ("otel-go-auto-target-exe", "/x");
    for language in [
        "java",
        "nodejs",
        "python",
        "dotnet",
        "go",
        "apache-httpd",
        "nginx",
        "sdk",
    ] {
        let given = case(&[(&format!("inject-{language}"), "true"), exe], &json!({}), app());
        let first = given.run();
        assert!(first.outcome.changed, "{language}");
        let second = given.again(&first);
        assert!(!second.outcome.changed, "{language}");
        assert_eq!(
            second.outcome.targets, first.outcome.targets,
            "{language}: targets are still known"
        );
    }
}

#[test]
fn a_language_requested_later_is_added() {
    let mut given = case(
        &[("inject-java", "true"), ("container-names", "app")],
        &json!({}),
        app(),
    );
    given.spec = given.run().spec;
    given.annotations = annotations(&[
        ("inject-java", "true"),
        ("inject-nodejs", "true"),
        ("container-names", "app"),
    ]);
    let run = given.run();
    assert_eq!(run.names("volumes").len(), 2);
    assert_ne!(run.env("app", "NODE_OPTIONS"), &Value::Null);
    let options = run.env("app", "JAVA_TOOL_OPTIONS").as_str().unwrap();
    assert_eq!(options.matches("-javaagent").count(), 1);
    assert!(!given.again(&run).outcome.changed);
}

#[test]
fn a_container_added_later_is_instrumented_with_the_copy_that_is_there() {
    let short = [("inject-nodejs", "true"), ("container-names", "app,late,early")];
    let mut given = case(&short, &json!({}), app());
    given.spec = given.run().spec;
    given.spec["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "late"}));
    given.spec["initContainers"]
        .as_array_mut()
        .unwrap()
        .insert(0, json!({"name": "early"}));
    let run = given.run();
    assert_ne!(run.env("late", "NODE_OPTIONS"), &Value::Null);
    assert_eq!(
        run.names("initContainers"),
        ["opentelemetry-auto-instrumentation-nodejs", "early"]
    );
    assert!(!given.again(&run).outcome.changed);
}

#[test]
fn a_pod_the_operator_instrumented_is_adopted() {
    let spec = json!({
        "containers": [{"name": "app", "image": "shop/app:1.2", "env": [
            {"name": "OTEL_NODE_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.hostIP"}}},
            {"name": "PYTHONPATH", "value": "/otel-auto-instrumentation-python/x:/otel-auto-instrumentation-python"},
            {"name": "OTEL_RESOURCE_ATTRIBUTES_POD_NAME",
             "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
            {"name": "OTEL_RESOURCE_ATTRIBUTES", "value": "k8s.container.name=app"}],
          "volumeMounts": [{"name": "opentelemetry-auto-instrumentation-python",
                            "mountPath": "/otel-auto-instrumentation-python"}]}],
        "initContainers": [{"name": "opentelemetry-auto-instrumentation-python", "image": "other:1"}],
        "volumes": [{"name": "opentelemetry-auto-instrumentation-python", "emptyDir": {}}]});
    let short = [
        ("inject-python", "true"),
        ("inject-sdk", "true"),
        ("container-names", "app"),
    ];
    let run = case(&short, &json!({}), spec).run();
    assert!(!run.outcome.changed);
    assert_eq!(run.outcome.targets.len(), 2);
}

#[test]
fn sdk_and_language_on_one_container_double_nothing() {
    let short = [
        ("inject-java", "true"),
        ("inject-sdk", "true"),
        ("container-names", "app"),
    ];
    let given = case(&short, &json!({}), app());
    let run = given.run();
    let attributes = run.env("app", "OTEL_RESOURCE_ATTRIBUTES").as_str().unwrap();
    assert_eq!(attributes.matches("k8s.pod.name=").count(), 1);
    assert!(!given.again(&run).outcome.changed);
}

/// Found by the property test: the common literal, which Node.js brought along, hid what Java was refused for.
#[test]
fn a_refusal_is_the_same_on_a_second_pass() {
    let source =
        json!([{"name": "JAVA_TOOL_OPTIONS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    let cr = json!({"java": {"env": source}, "env": [{"name": "JAVA_TOOL_OPTIONS", "value": ""}]});
    let short = [
        ("inject-java", "true"),
        ("inject-nodejs", "true"),
        ("container-names", "app"),
    ];
    let given = case(&short, &cr, app());
    let run = given.run();
    assert_eq!(run.codes(), ["otel-container-refused"]);
    assert!(!given.again(&run).outcome.changed);
}
