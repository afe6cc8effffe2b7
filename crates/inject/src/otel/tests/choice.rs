//! Which languages, which Instrumentation, which containers.

use serde_json::{Map, Value, json};

use super::super::{Operator, OperatorError, requested};
use super::{annotations, app, case, instrumentation};

fn map(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

#[test]
fn pod_and_namespace_decide_together() {
    let table = [
        ("", "", false),
        ("true", "", true),
        ("", "true", true),
        ("false", "true", false),
        ("FALSE", "", false),
        ("true", "false", true),
        ("name", "false", true),
        ("", "false", false),
    ];
    for (pod, namespace, expected) in table {
        let side = |value: &str| map(&annotations(&[("inject-sdk", value)]));
        assert_eq!(
            requested(&side(pod), &side(namespace)),
            expected,
            "pod {pod:?}, namespace {namespace:?}"
        );
    }
}

#[test]
fn a_pods_true_takes_the_name_its_namespace_gives() {
    let mut given = case(&[("inject-sdk", "true")], &json!({}), app());
    given.documents = vec![
        instrumentation("shop", "one", &json!({"exporter": {"endpoint": "http://one"}})),
        instrumentation("shop", "two", &json!({"exporter": {"endpoint": "http://two"}})),
        json!({"apiVersion": "v1", "kind": "Namespace",
               "metadata": {"name": "shop", "annotations": annotations(&[("inject-sdk", "two")])}}),
    ];
    assert_eq!(
        given.run().env("app", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        "http://two"
    );
    given.annotations = annotations(&[("inject-sdk", "one")]);
    assert_eq!(
        given.run().env("app", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        "http://one"
    );
    given.annotations = annotations(&[("inject-sdk", "false")]);
    assert!(!given.run().outcome.changed);
}

#[test]
fn instrumentations_are_found_by_name_namespace_or_being_the_only_one() {
    let mut given = case(&[("inject-sdk", "central/base")], &json!({}), app());
    given.documents.push(instrumentation(
        "central",
        "base",
        &json!({"exporter": {"endpoint": "http://c"}}),
    ));
    assert_eq!(given.run().env("app", "OTEL_EXPORTER_OTLP_ENDPOINT"), "http://c");
    given.annotations = annotations(&[("inject-sdk", "nobody")]);
    given.run().untouched("otel-lookup");
    given
        .documents
        .push(instrumentation("shop", "second", &json!({})));
    given.annotations = annotations(&[("inject-sdk", "true")]);
    given.run().untouched("otel-lookup");
    given.documents.clear();
    given.run().untouched("otel-lookup");
}

#[test]
fn an_object_without_namespace_is_in_the_default_one() {
    let mut inventory = super::Inventory::default();
    inventory.add(&json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "opentelemetry.io/v1alpha1", "kind": "Instrumentation", "metadata": {"name": "cr"}}]}));
    assert!(inventory.instrumentation("default", "cr").is_some());
    inventory.set_default_namespace("shop");
    assert!(inventory.instrumentation("default", "cr").is_none());
    assert_eq!(inventory.instrumentations("shop").len(), 1);
}

#[test]
fn a_lookup_error_of_one_language_leaves_the_pod_alone() {
    let short = [
        ("inject-java", "true"),
        ("inject-python", "gone"),
        ("container-names", "app"),
    ];
    case(&short, &json!({}), app()).run().untouched("otel-lookup");
}

#[test]
fn without_a_list_the_first_container_that_no_injector_added_is_the_target() {
    let spec = json!({"containers": [{"name": "istio-proxy"}, {"name": "otc-container"}, {"name": "app"}, {"name": "b"}]});
    let run = case(&[("inject-java", "true")], &json!({}), spec.clone()).run();
    assert_eq!(run.container("istio-proxy"), &spec["containers"][0]);
    assert_ne!(run.env("app", "JAVA_TOOL_OPTIONS"), &Value::Null);
    assert_eq!(run.container("b"), &spec["containers"][3]);
    let spec = json!({"containers": [{"name": "linkerd-proxy"}]});
    case(&[("inject-java", "true")], &json!({}), spec)
        .run()
        .untouched("otel-no-target");
}

#[test]
fn listed_containers_that_cannot_be_targets_are_reported() {
    let spec = json!({"initContainers": [{"name": "setup"}], "containers": [{"name": "istio-proxy"}, {"name": "app"}]});
    let short = [
        ("inject-sdk", "true"),
        ("container-names", "istio-proxy,ghost,app"),
    ];
    let run = case(&short, &json!({}), spec.clone()).run();
    assert_eq!(run.codes(), ["otel-container-unknown", "otel-container-refused"]);
    assert_eq!(run.outcome.warnings[0].container.as_deref(), Some("ghost"));
    assert_ne!(run.env("app", "OTEL_SERVICE_NAME"), &Value::Null);
    let short = [("inject-nginx", "true"), ("container-names", "setup")];
    case(&short, &json!({}), spec)
        .run()
        .untouched("otel-container-refused");
}

#[test]
fn lists_are_trimmed_united_and_checked() {
    let short = [
        ("inject-java", "true"),
        ("container-names", " app , app"),
        ("java-container-names", "app"),
    ];
    let run = case(&short, &json!({}), app()).run();
    assert!(run.codes().is_empty(), "{:?}", run.outcome.warnings);
    assert_eq!(run.outcome.targets.len(), 1);
    for hostile in ["a b", "app\n", "app;rm", "$(x)", "a.b", "ä"] {
        let short = [("inject-java", "true"), ("container-names", hostile)];
        let run = case(&short, &json!({}), app()).run();
        if hostile != "app\n" {
            run.untouched("otel-containers-invalid");
        }
        assert!(run.outcome.warnings.iter().all(|w| !w.text.contains('\n')));
    }
}

#[test]
fn several_languages_need_lists_unless_multi_is_off() {
    let short = [
        ("inject-java", "true"),
        ("inject-nodejs", "true"),
        ("java-container-names", "app"),
    ];
    let mut given = case(&short, &json!({}), app());
    given.run().untouched("otel-containers-missing");
    let off = r#"{"EnableJavaAutoInstrumentation": true, "EnableNodeJSAutoInstrumentation": true}"#;
    given.operator = Operator::from_json(off).unwrap();
    let run = given.run();
    assert_ne!(run.env("app", "NODE_OPTIONS"), &Value::Null);
    assert_ne!(run.env("app", "JAVA_TOOL_OPTIONS"), &Value::Null);
    let mut names = run.env_names("app");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), run.env_names("app").len(), "no variable twice");
}

#[test]
fn languages_that_are_off_are_reported_and_do_not_count() {
    let short = [("inject-go", "gone"), ("inject-java", "true")];
    let mut given = case(&short, &json!({}), app());
    given.operator = Operator::default();
    let run = given.run();
    assert_eq!(run.codes(), ["otel-language-off"]);
    assert_ne!(run.env("app", "JAVA_TOOL_OPTIONS"), &Value::Null);
}

#[test]
fn operator_configurations_are_checked() {
    assert!(matches!(Operator::from_json("{"), Err(OperatorError::Json(_))));
    assert!(matches!(
        Operator::from_json("\"all\""),
        Err(OperatorError::NotAnObject { found: "text" })
    ));
    let bad = [
        r#"{"EnableGoAutoInstrumentation": "yes"}"#,
        r#"{"enable-cobol-instrumentation": true}"#,
    ];
    for text in bad {
        let error = Operator::from_json(text).unwrap_err();
        assert!(!error.hint().is_empty(), "{error}");
    }
    assert!(Operator::from_json(r#"{"CollectorImage": "x", "labels": [1]}"#).is_ok());
}

#[test]
fn an_operator_without_resources_uses_its_own_instrumentation() {
    let text = r#"{"EnableJavaAutoInstrumentation": true, "EnableInstrumentationCRDs": false,
                   "instrumentation": {"exporter": {"endpoint": "http://own"}}}"#;
    let mut given = case(&[("inject-java", "true")], &json!({}), app());
    given.operator = Operator::from_json(text).unwrap();
    assert_eq!(
        given.run().env("app", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        "http://own"
    );
    given.operator =
        Operator::from_json(r#"{"EnableJavaAutoInstrumentation": true, "EnableInstrumentationCRDs": false}"#)
            .unwrap();
    given.run().untouched("otel-lookup");
}

#[test]
fn a_mesh_container_with_an_agent_is_reported() {
    let spec = json!({"containers": [
        {"name": "istio-proxy", "volumeMounts": [{"name": "opentelemetry-auto-instrumentation-java", "mountPath": "/x"}]},
        {"name": "app"}], "volumes": [{"name": "opentelemetry-auto-instrumentation-java", "emptyDir": {}}]});
    let run = case(&[("inject-java", "true")], &json!({}), spec).run();
    assert_eq!(run.codes(), ["otel-mesh-container-instrumented"]);
    assert!(run.outcome.warnings[0].text.contains("container-names"));
    assert_ne!(run.env("app", "JAVA_TOOL_OPTIONS"), &Value::Null);
}

#[test]
fn malformed_pods_are_left_alone() {
    for spec in [
        json!(null),
        json!([]),
        json!({}),
        json!({"containers": 3}),
        json!({"containers": [1]}),
    ] {
        let run = case(&[("inject-java", "true")], &json!({}), spec).run();
        assert!(!run.outcome.changed && !run.outcome.warnings.is_empty());
    }
    let spec = json!({"containers": [{"name": "app", "env": {"A": "b"}}]});
    case(&[("inject-java", "true")], &json!({}), spec)
        .run()
        .untouched("otel-container-refused");
    let spec = json!({"containers": [{"name": "app"}], "volumes": "none"});
    case(&[("inject-java", "true")], &json!({}), spec)
        .run()
        .untouched("otel-pod-malformed");
}

#[test]
fn annotations_without_effect_are_reported() {
    let mut given = case(
        &[("inject-jav", "true"), ("nginx-container-names", "app")],
        &json!({}),
        app(),
    );
    given.annotations["instrumentation.opentelemetry.io/inject-java"] = json!(true);
    let run = given.run();
    assert!(!run.outcome.changed);
    assert_eq!(
        run.codes(),
        [
            "otel-annotation-unknown",
            "otel-annotation-not-text",
            "otel-annotation-unknown"
        ]
    );
}

#[test]
fn a_list_of_a_million_names_is_refused_immediately() {
    let long = "a,".repeat(500_000);
    let short = [("inject-java", "true"), ("container-names", long.as_str())];
    let run = case(&short, &json!({}), app()).run();
    run.untouched("otel-containers-invalid");
    assert!(
        run.outcome
            .warnings
            .iter()
            .all(|warning| warning.text.len() < 500)
    );
}
