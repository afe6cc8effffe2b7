//! The Instrumentation resource: what is refused, and certificates.

use serde_json::{Value, json};

use super::super::Options;
use super::{app, case};

#[test]
fn bad_instrumentations_are_refused_with_the_field() {
    let table = [
        (json!(7), "spec "),
        (json!({"sampler": {"type": "sometimes"}}), "spec.sampler"),
        (
            json!({"sampler": {"type": "traceidratio", "argument": "1.5"}}),
            "spec.sampler",
        ),
        (
            json!({"sampler": {"type": "jaeger_remote", "argument": "endpoint="}}),
            "spec.sampler",
        ),
        (
            json!({"sampler": {"type": "jaeger_remote", "argument": "pollingIntervalMs=x"}}),
            "spec.sampler",
        ),
        (json!({"propagators": ["pigeon"]}), "spec.propagators"),
        (json!({"propagators": "b3"}), "spec.propagators"),
        (json!({"imagePullPolicy": "Sometimes"}), "spec.imagePullPolicy"),
        (json!({"exporter": {"endpoint": 4317}}), "spec.exporter.endpoint"),
        (
            json!({"exporter": {"tls": {"secretName": "a/b"}}}),
            "spec.exporter.tls.secretName",
        ),
        (
            json!({"exporter": {"tls": {"ca_file": "../../etc/passwd"}}}),
            "spec.exporter.tls.ca_file",
        ),
        (json!({"env": [{"name": "A", "value": 1}]}), "spec.env[0]"),
        (json!({"env": [{"name": "A=B"}]}), "spec.env[0]"),
        (
            json!({"java": {"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {}}}]}}),
            "spec.java.env[0]",
        ),
        (
            json!({"java": {"extensions": [{"image": "x"}]}}),
            "spec.java.extensions[0]",
        ),
        (
            json!({"java": {"volumeLimitSize": "1Gi", "volumeClaimTemplate": {"spec": {}}}}),
            "spec.java.volumeClaimTemplate",
        ),
        (
            json!({"java": {"volumeLimitSize": "much"}}),
            "spec.java.volumeLimitSize",
        ),
        (json!({"java": {"image": "a b"}}), "spec.java.image"),
        (
            json!({"apacheHttpd": {"version": "3"}}),
            "spec.apacheHttpd.version",
        ),
        (
            json!({"resource": {"resourceAttributes": {"a": 1}}}),
            "spec.resource.resourceAttributes[a]",
        ),
    ];
    for (spec, field) in table {
        let run = case(&[("inject-java", "true")], &spec, app()).run();
        run.untouched("otel-instrumentation-invalid");
        let text = &run.outcome.warnings[0].text;
        assert!(text.contains("\"cr\"") && text.contains(field), "{spec}: {text}");
    }
}

#[test]
fn good_values_and_unknown_fields_pass() {
    let specs = [
        json!(null),
        json!({"future": {"x": 1}, "java": {"future": true}}),
        json!({"sampler": {"type": "parentbased_traceidratio", "argument": ""}}),
        json!({"sampler": {"type": "jaeger_remote", "argument": "endpoint=http://x,pollingIntervalMs=5,initialSamplingRate=0.2"}}),
        json!({"java": {"volumeLimitSize": 1000}}),
    ];
    for spec in specs {
        let run = case(&[("inject-java", "true")], &spec, app()).run();
        assert!(
            run.outcome.changed && run.codes().is_empty(),
            "{spec}: {:?}",
            run.outcome.warnings
        );
    }
}

#[test]
fn the_announced_next_version_is_understood() {
    let cr = json!({"envConfig": {"exporter": {"endpoint": "http://c"}, "propagators": ["b3"]},
                    "resource": {"attributes": {"team": "x"}, "k8sMetadata": {"includeUIDs": true}},
                    "python": {"resources": {"limits": {"cpu": "1"}}}});
    let run = case(&[("inject-python", "true")], &cr, app()).run();
    assert_eq!(run.env("app", "OTEL_EXPORTER_OTLP_ENDPOINT"), "http://c");
    assert_eq!(run.attribute("app", "team"), Some("x"));
    assert!(run.env_names("app").contains(&"OTEL_RESOURCE_ATTRIBUTES_POD_UID"));
    let copy = run.container("opentelemetry-auto-instrumentation-python");
    assert_eq!(copy["resources"], json!({"limits": {"cpu": "1"}}));
}

fn tls() -> Value {
    json!({"exporter": {"endpoint": "https://c", "tls": {"secretName": "certs.shop", "configMapName": "ca",
           "ca_file": "ca.crt", "cert_file": "tls.crt", "key_file": "/abs/tls.key"}}})
}

#[test]
fn certificates_are_mounted_read_only_before_the_agent() {
    let run = case(&[("inject-java", "true")], &tls(), app()).run();
    let expected = [
        "otel-auto-secret-certs-shop",
        "otel-auto-configmap-ca",
        "opentelemetry-auto-instrumentation-java",
    ];
    assert_eq!(run.names("volumes"), expected);
    assert_eq!(
        run.volume("otel-auto-secret-certs-shop")["secret"]["secretName"],
        "certs.shop"
    );
    assert_eq!(
        run.container("app")["volumeMounts"][1],
        json!({"name": "otel-auto-secret-certs-shop", "readOnly": true,
               "mountPath": "/otel-auto-instrumentation-secret-certs.shop"})
    );
    let path = |variable: &str| run.env("app", variable).clone();
    assert_eq!(
        path("OTEL_EXPORTER_OTLP_CERTIFICATE"),
        "/otel-auto-instrumentation-configmap-ca/ca.crt"
    );
    assert_eq!(
        path("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
        "/otel-auto-instrumentation-secret-certs.shop/tls.crt"
    );
    assert_eq!(path("OTEL_EXPORTER_OTLP_CLIENT_KEY"), "/abs/tls.key");
    assert_eq!(run.codes(), ["otel-tls-unconfirmed", "otel-tls-unconfirmed"]);
}

#[test]
fn missing_certificates_refuse_only_with_a_complete_inventory() {
    let mut given = case(&[("inject-java", "true")], &tls(), app());
    given.options = Options {
        inventory_complete: true,
    };
    given.run().untouched("otel-tls-missing");
    for (kind, name) in [("Secret", "certs.shop"), ("ConfigMap", "ca")] {
        given
            .documents
            .push(json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "shop", "name": name}}));
    }
    let run = given.run();
    assert!(run.outcome.changed && run.codes().is_empty());
}

#[test]
fn a_volume_name_in_use_is_not_taken_over() {
    let mut given = case(&[("inject-sdk", "true")], &tls(), app());
    given.spec["volumes"] = json!([{"name": "otel-auto-configmap-ca", "emptyDir": {}}]);
    let run = given.run();
    assert_eq!(
        run.volume("otel-auto-configmap-ca"),
        &json!({"name": "otel-auto-configmap-ca", "emptyDir": {}})
    );
    let own = run
        .names("volumes")
        .into_iter()
        .find(|name| name.starts_with("otel-auto-configmap-ca-"))
        .unwrap();
    assert_eq!(run.volume(own)["configMap"]["name"], "ca");
    assert!(!given.again(&run).outcome.changed);
}
