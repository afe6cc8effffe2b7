//! Go: the sidecar, and everything that keeps it away.

use serde_json::{Value, json};

use super::{app, case};

const EXE: (&str, &str) = ("otel-go-auto-target-exe", "/bin/shop");

#[test]
fn the_sidecar_speaks_for_the_application() {
    let cr = json!({"go": {"image": "agents/go:1", "env": [{"name": "OWN", "value": "1"}]}});
    let run = case(&[("inject-go", "true"), EXE], &cr, app()).run();
    assert_eq!(
        run.names("containers"),
        ["app", "opentelemetry-auto-instrumentation"]
    );
    assert_eq!(
        run.container("app"),
        &app()["containers"][0],
        "the application itself is not changed"
    );
    let sidecar = "opentelemetry-auto-instrumentation";
    assert_eq!(run.spec["shareProcessNamespace"], true);
    assert_eq!(
        run.container(sidecar)["securityContext"],
        json!({"privileged": true, "runAsUser": 0})
    );
    assert_eq!(
        run.env_names(sidecar)[..4],
        ["OTEL_NODE_IP", "OTEL_POD_IP", "OTEL_GO_AUTO_TARGET_EXE", "OWN"]
    );
    assert_eq!(run.env(sidecar, "OTEL_SERVICE_NAME"), "app");
    assert_eq!(run.attribute(sidecar, "k8s.container.name"), Some("app"));
    assert_eq!(run.attribute(sidecar, "service.version"), Some("1.2"));
    assert_eq!(
        run.volume("kernel-debug")["hostPath"]["path"],
        "/sys/kernel/debug"
    );
}

#[test]
fn the_binary_may_be_named_by_the_instrumentation() {
    let cr = json!({"go": {"securityContext": {"runAsUser": 9}}, "env": [{"name": "OTEL_GO_AUTO_TARGET_EXE", "value": "/x"}]});
    let run = case(&[("inject-go", "true")], &cr, app()).run();
    assert_eq!(
        run.env("opentelemetry-auto-instrumentation", "OTEL_GO_AUTO_TARGET_EXE"),
        "/x"
    );
    assert_eq!(
        run.container("opentelemetry-auto-instrumentation")["securityContext"],
        json!({"runAsUser": 9})
    );
}

#[test]
fn obstacles_leave_the_pod_alone() {
    case(&[("inject-go", "true")], &json!({}), app())
        .run()
        .untouched("otel-container-refused");
    let mut spec = app();
    spec["shareProcessNamespace"] = Value::Bool(false);
    case(&[("inject-go", "true"), EXE], &json!({}), spec)
        .run()
        .untouched("otel-container-refused");
    let mut spec = app();
    spec["volumes"] = json!([{"name": "kernel-debug", "emptyDir": {}}]);
    case(&[("inject-go", "true"), EXE], &json!({}), spec)
        .run()
        .untouched("otel-container-refused");
    let short = [("inject-go", "true"), EXE, ("go-container-names", "app,b")];
    let two = json!({"containers": [{"name": "app"}, {"name": "b"}]});
    case(&short, &json!({}), two)
        .run()
        .untouched("otel-container-refused");
}

#[test]
fn a_namespace_that_forbids_privilege_keeps_it_out() {
    for (level, allowed) in [("privileged", true), ("baseline", false), ("restricted", false)] {
        let mut given = case(&[("inject-go", "true"), EXE], &json!({}), app());
        given
            .documents
            .push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": "shop", "labels": {"pod-security.kubernetes.io/enforce": level}}}));
        assert_eq!(given.run().outcome.changed, allowed, "{level}");
    }
}

#[test]
fn a_namespace_cannot_name_the_binary() {
    let mut given = case(&[("inject-go", "true")], &json!({}), app());
    given
        .documents
        .push(json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "shop", "annotations": super::annotations(&[EXE])}}));
    given.run().untouched("otel-container-refused");
}
