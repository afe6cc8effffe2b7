//! Java, Node.js, Python, .NET: what is copied, mounted and set.

use serde_json::{Value, json};

use super::super::{Operator, Target, language::Language};
use super::{app, case};

const TAIL: [&str; 4] = [
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES_POD_NAME",
    "OTEL_RESOURCE_ATTRIBUTES_NODE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
];

#[test]
fn java_gets_copy_container_volume_mount_and_option() {
    let cr = json!({"java": {"image": "agents/java:1", "env": [{"name": "OWN", "value": "1"}]},
                    "env": [{"name": "COMMON", "value": "2"}, {"name": "OWN", "value": "x"}],
                    "imagePullPolicy": "Always"});
    let run = case(&[("inject-java", "true")], &cr, app()).run();
    assert_eq!(
        run.spec["initContainers"],
        json!([{"name": "opentelemetry-auto-instrumentation-java", "image": "agents/java:1",
                "imagePullPolicy": "Always",
                "command": ["cp", "/javaagent.jar", "/otel-auto-instrumentation-java/javaagent.jar"],
                "volumeMounts": [{"name": "opentelemetry-auto-instrumentation-java",
                                  "mountPath": "/otel-auto-instrumentation-java"}]}])
    );
    assert_eq!(
        run.spec["volumes"],
        json!([{"name": "opentelemetry-auto-instrumentation-java", "emptyDir": {"sizeLimit": "200Mi"}}])
    );
    assert_eq!(
        run.container("app")["volumeMounts"],
        json!([{"name": "opentelemetry-auto-instrumentation-java",
                "mountPath": "/otel-auto-instrumentation-java-app"}])
    );
    assert_eq!(
        run.env("app", "JAVA_TOOL_OPTIONS"),
        " -javaagent:/otel-auto-instrumentation-java-app/javaagent.jar"
    );
    let order = [
        &[
            "OTEL_NODE_IP",
            "OTEL_POD_IP",
            "OWN",
            "COMMON",
            "JAVA_TOOL_OPTIONS",
        ][..],
        &TAIL,
    ]
    .concat();
    assert_eq!(run.env_names("app"), order);
    assert_eq!(
        run.env("app", "OWN"),
        "1",
        "the language's variable wins over the common one"
    );
    let target = Target {
        container: "app".to_owned(),
        init: false,
        language: Language::Java,
    };
    assert_eq!(run.outcome.targets, [target]);
}

#[test]
fn two_targets_share_one_copy() {
    let spec = json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]});
    let run = case(
        &[("inject-java", "true"), ("container-names", "b, a")],
        &json!({}),
        spec,
    )
    .run();
    assert_eq!(
        run.names("initContainers"),
        ["opentelemetry-auto-instrumentation-java"]
    );
    assert_eq!(run.names("volumes").len(), 1);
    for name in ["a", "b"] {
        let path = &run.container(name)["volumeMounts"][0]["mountPath"];
        assert_eq!(path, &json!(format!("/otel-auto-instrumentation-java-{name}")));
    }
    assert_eq!(run.container("c"), &json!({"name": "c"}));
}

#[test]
fn java_extensions_follow_the_agent() {
    let cr = json!({"java": {"extensions": [{"image": "e:0", "dir": "/e0"}, {"image": "e:1", "dir": "/e1"}]},
                    "imagePullPolicy": "Always", "initContainerSecurityContext": {"runAsUser": 7}});
    let run = case(&[("inject-java", "true")], &cr, app()).run();
    let names = run.names("initContainers");
    assert_eq!(
        names[1..],
        [
            "opentelemetry-auto-instrumentation-extension-0",
            "opentelemetry-auto-instrumentation-extension-1"
        ]
    );
    let extension = run.container("opentelemetry-auto-instrumentation-extension-1");
    assert_eq!(
        extension["command"],
        json!(["cp", "-r", "/e1/.", "/otel-auto-instrumentation-java/extensions"])
    );
    assert_eq!(extension["imagePullPolicy"], Value::Null);
    assert_eq!(extension["securityContext"], json!({"runAsUser": 7}));
    let options = run.env("app", "JAVA_TOOL_OPTIONS").as_str().unwrap();
    assert!(options.ends_with(" -Dotel.javaagent.extensions=/otel-auto-instrumentation-java-app/extensions"));
}

#[test]
fn existing_options_are_extended_in_place() {
    let spec = |name: &str, value: &str| json!({"containers": [{"name": "app", "env": [{"name": name, "value": value}, {"name": "Z", "value": ""}]}]});
    let table = [
        (
            "java",
            "JAVA_TOOL_OPTIONS",
            "-Xmx1g",
            "-Xmx1g -javaagent:/otel-auto-instrumentation-java-app/javaagent.jar",
        ),
        (
            "nodejs",
            "NODE_OPTIONS",
            "-r x",
            "-r x --require /otel-auto-instrumentation-nodejs/autoinstrumentation.js",
        ),
        (
            "python",
            "PYTHONPATH",
            "/mine",
            "/otel-auto-instrumentation-python/opentelemetry/instrumentation/auto_instrumentation:/mine:\
             /otel-auto-instrumentation-python",
        ),
        (
            "dotnet",
            "DOTNET_SHARED_STORE",
            "/mine",
            "/mine:/otel-auto-instrumentation-dotnet/store",
        ),
    ];
    for (language, variable, old, new) in table {
        let run = case(
            &[(&format!("inject-{language}"), "true")],
            &json!({}),
            spec(variable, old),
        )
        .run();
        assert_eq!(run.env("app", variable), new);
        assert_eq!(
            run.env_names("app")[2..4],
            [variable, "Z"],
            "{language}: order kept"
        );
    }
}

#[test]
fn indirect_options_refuse_the_container_wherever_they_come_from() {
    let table = [
        ("java", "JAVA_TOOL_OPTIONS"),
        ("nodejs", "NODE_OPTIONS"),
        ("python", "PYTHONPATH"),
        ("dotnet", "DOTNET_STARTUP_HOOKS"),
    ];
    for (language, variable) in table {
        let source = json!([{"name": variable, "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]);
        let ask = format!("inject-{language}");
        let pod = json!({"containers": [{"name": "app", "env": source}]});
        case(&[(&ask, "true")], &json!({}), pod)
            .run()
            .untouched("otel-container-refused");
        let cr = json!({language: {"env": source}});
        case(&[(&ask, "true")], &cr, app())
            .run()
            .untouched("otel-container-refused");
    }
    let cr = json!({"env": [{"name": "JAVA_TOOL_OPTIONS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]});
    case(&[("inject-java", "true")], &cr, app())
        .run()
        .untouched("otel-container-refused");
}

#[test]
fn a_refused_container_does_not_stop_another() {
    let spec = json!({"containers": [
        {"name": "bad", "env": [{"name": "NODE_OPTIONS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
         "securityContext": {"runAsUser": 1}},
        {"name": "good", "securityContext": {"runAsUser": 2}}]});
    let run = case(
        &[("inject-nodejs", "true"), ("container-names", "bad,good")],
        &json!({}),
        spec.clone(),
    )
    .run();
    assert_eq!(run.container("bad"), &spec["containers"][0]);
    assert_eq!(run.env("good", "OTEL_METRICS_EXPORTER"), "otlp");
    let copy = run.container("opentelemetry-auto-instrumentation-nodejs");
    assert_eq!(
        copy["securityContext"],
        json!({"runAsUser": 2}),
        "inherited from the first accepted target"
    );
}

#[test]
fn python_sets_path_before_common_variables_and_exporters_after() {
    let cr = json!({"python": {"env": [{"name": "OTEL_LOGS_EXPORTER", "value": "none"}]},
                    "env": [{"name": "PYTHONPATH", "value": "/ignored"}, {"name": "COMMON", "value": ""}]});
    let run = case(&[("inject-python", "true")], &cr, app()).run();
    let order = [
        &[
            "OTEL_NODE_IP",
            "OTEL_POD_IP",
            "OTEL_LOGS_EXPORTER",
            "PYTHONPATH",
            "COMMON",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ][..],
        &["OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"],
        &TAIL,
    ];
    assert_eq!(run.env_names("app"), order.concat());
    assert_eq!(run.env("app", "OTEL_LOGS_EXPORTER"), "none");
    assert_eq!(
        run.env("app", "PYTHONPATH"),
        "/otel-auto-instrumentation-python/opentelemetry/instrumentation/auto_instrumentation:\
         /otel-auto-instrumentation-python"
    );
}

#[test]
fn platform_annotations_choose_the_variant() {
    let source = |platform: &str| {
        let short = [("inject-python", "true"), ("otel-python-platform", platform)];
        let run = case(&short, &json!({}), app()).run();
        run.container("opentelemetry-auto-instrumentation-python")["command"][2].clone()
    };
    assert_eq!(source("glibc"), "/autoinstrumentation/.");
    assert_eq!(source("musl"), "/autoinstrumentation-musl/.");
    assert_eq!(source("beos"), Value::Null);
    let library = |runtime: &str| {
        let short = [("inject-dotnet", "true"), ("otel-dotnet-auto-runtime", runtime)];
        case(&short, &json!({}), app())
            .run()
            .env("app", "CORECLR_PROFILER_PATH")
            .clone()
    };
    let native = "OpenTelemetry.AutoInstrumentation.Native.so";
    assert_eq!(
        library("linux-x64"),
        format!("/otel-auto-instrumentation-dotnet/linux/{native}")
    );
    assert_eq!(
        library("linux-musl-x64"),
        format!("/otel-auto-instrumentation-dotnet/linux-musl/{native}")
    );
    let short = [("inject-dotnet", "true"), ("otel-dotnet-auto-runtime", "win")];
    case(&short, &json!({}), app())
        .run()
        .untouched("otel-platform-unknown");
}

#[test]
fn dotnet_keeps_profiler_settings_and_refuses_a_foreign_home() {
    let spec =
        json!({"containers": [{"name": "app", "env": [{"name": "CORECLR_PROFILER", "value": "{mine}"}]}]});
    let run = case(&[("inject-dotnet", "true")], &json!({}), spec).run();
    assert_eq!(run.env("app", "CORECLR_PROFILER"), "{mine}");
    assert_eq!(run.env("app", "CORECLR_ENABLE_PROFILING"), "1");
    let home = json!([{"name": "OTEL_DOTNET_AUTO_HOME", "value": "/x"}]);
    let pod = json!({"containers": [{"name": "app", "env": home}]});
    case(&[("inject-dotnet", "true")], &json!({}), pod)
        .run()
        .untouched("otel-container-refused");
    let cr = json!({"dotnet": {"env": home}});
    case(&[("inject-dotnet", "true")], &cr, app())
        .run()
        .untouched("otel-container-refused");
}

#[test]
fn init_targets_come_after_their_copy() {
    let spec = json!({"initContainers": [{"name": "first"}, {"name": "migrate", "securityContext": {"runAsUser": 5}}],
                      "containers": [{"name": "app", "securityContext": {"runAsUser": 6}}]});
    let short = [("inject-nodejs", "true"), ("container-names", "app,migrate")];
    let run = case(&short, &json!({}), spec).run();
    assert_eq!(
        run.names("initContainers"),
        ["first", "opentelemetry-auto-instrumentation-nodejs", "migrate"]
    );
    let copy = run.container("opentelemetry-auto-instrumentation-nodejs");
    assert_eq!(
        copy["securityContext"],
        json!({"runAsUser": 5}),
        "init targets come first"
    );
    let targets: Vec<_> = run
        .outcome
        .targets
        .iter()
        .map(|t| (t.container.as_str(), t.init))
        .collect();
    assert_eq!(targets, [("migrate", true), ("app", false)]);
}

#[test]
fn volumes_follow_the_section() {
    let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"]}});
    let run = case(
        &[("inject-nodejs", "true")],
        &json!({"nodejs": {"volumeClaimTemplate": claim}}),
        app(),
    )
    .run();
    let volume = run.volume("opentelemetry-auto-instrumentation-nodejs");
    assert_eq!(volume["ephemeral"]["volumeClaimTemplate"], claim);
    let run = case(
        &[("inject-nodejs", "true")],
        &json!({"nodejs": {"volumeLimitSize": "1Gi"}}),
        app(),
    )
    .run();
    let volume = run.volume("opentelemetry-auto-instrumentation-nodejs");
    assert_eq!(volume["emptyDir"]["sizeLimit"], "1Gi");
}

#[test]
fn defaults_fill_images_always_and_resources_without_a_configuration() {
    let cr = json!({"java": {"resources": {"limits": {"cpu": "1"}}}, "python": {"image": ""}});
    let mut given = case(&[("inject-java", "true")], &cr, app());
    let copy = "opentelemetry-auto-instrumentation-java";
    let run = given.run();
    assert!(
        run.container(copy)["image"]
            .as_str()
            .unwrap()
            .contains("/autoinstrumentation-java:")
    );
    assert_eq!(run.container(copy)["resources"], json!({"limits": {"cpu": "1"}}));
    given.operator = Operator::default();
    let resources = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "50m", "memory": "64Mi"}});
    assert_eq!(given.run().container(copy)["resources"], resources);
    let text = r#"{"enable-java-instrumentation": true, "auto-instrumentation-java-image": "mirror/java:9"}"#;
    given.operator = Operator::from_json(text).unwrap();
    assert_eq!(given.run().container(copy)["image"], "mirror/java:9");
}

#[test]
fn a_mount_in_the_way_or_a_taken_name_is_reported() {
    let spec = json!({"containers": [{"name": "app", "volumeMounts": [
        {"name": "mine", "mountPath": "/otel-auto-instrumentation-nodejs"}]}], "volumes": [{"name": "mine"}]});
    case(&[("inject-nodejs", "true")], &json!({}), spec)
        .run()
        .untouched("otel-container-refused");
    let spec = json!({"containers": [{"name": "app"}, {"name": "opentelemetry-auto-instrumentation-java"}]});
    case(&[("inject-java", "true")], &json!({}), spec)
        .run()
        .untouched("otel-name-taken");
}

#[test]
fn a_copy_that_may_not_be_root_needs_a_user() {
    let mut spec = app();
    spec["securityContext"] = json!({"runAsNonRoot": true});
    let codes = |cr: &Value, spec: &Value| case(&[("inject-java", "true")], cr, spec.clone()).run().codes();
    assert_eq!(codes(&json!({}), &spec), ["otel-copy-needs-user"]);
    let user = json!({"initContainerSecurityContext": {"runAsUser": 1000}});
    assert!(codes(&user, &spec).is_empty());
    spec["containers"][0]["securityContext"] = json!({"runAsUser": 7});
    assert!(codes(&json!({}), &spec).is_empty(), "inherited");
}
