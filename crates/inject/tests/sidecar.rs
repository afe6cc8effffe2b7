//! What injection puts into a pod, beyond the order.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::{
    classic, codes, container, inject, inject_document, mesh, native, order, parse, try_inject, variable,
    with_order,
};
use remora_inject::{InjectConfig, Order, Settings, patch};
use remora_pod::{validate, view};
use serde_json::{Value, json};

fn pod() -> Value {
    parse("metadata: {name: p, labels: {app: web}}\nspec: {containers: [{name: app, image: i}]}\n")
}

fn annotated(key: &str, value: &str) -> Value {
    let mut pod = pod();
    pod["metadata"]["annotations"] = json!({key: value});
    pod
}

#[test]
fn result_is_a_valid_pod() {
    for settings in [native(), classic(), with_order(native(), Order::Istio)] {
        let injected = inject(&pod(), &settings);
        assert_eq!(
            validate::pod(&injected.pod["metadata"], &injected.pod["spec"]),
            []
        );
    }
}

#[test]
fn the_json_patch_leads_from_one_to_the_other() {
    let before = pod();
    let after = inject(&before, &native()).pod;
    let operations = patch(&before, &after);
    let mut patched = before.clone();
    json_patch::patch(&mut patched, &operations).unwrap();
    assert_eq!(patched, after);
    assert!(patch(&after, &after).is_empty());
}

#[test]
fn decisions() {
    let mut host = pod();
    host["spec"]["hostNetwork"] = json!(true);
    assert_eq!(
        inject(&host, &native()).skipped.unwrap().to_string(),
        "has host networking enabled"
    );
    let refused = annotated("sidecar.istio.io/inject", "false");
    let injected = inject(&refused, &native());
    assert!(!injected.changed && injected.skipped.is_some());
    let odd = annotated("sidecar.istio.io/inject", "yes");
    let injected = inject(&odd, &native());
    assert!(injected.changed);
    assert_eq!(codes(&injected.warnings), ["bad-inject-value"]);
    let mut label_wins = annotated("sidecar.istio.io/inject", "false");
    label_wins["metadata"]["labels"]["sidecar.istio.io/inject"] = json!("true");
    assert!(inject(&label_wins, &native()).changed);
}

#[test]
fn selectors_and_policy_decide_about_pods_that_say_nothing() {
    let settings = |policy: &str, never: Value, always: Value| {
        mesh(
            true,
            &json!({
                "global": {"proxy": {"autoInject": policy}},
                "sidecarInjectorWebhook": {"neverInjectSelector": never, "alwaysInjectSelector": always},
            }),
        )
    };
    let web = json!([{"matchLabels": {"app": "web"}}]);
    let changed = |settings: &Settings| inject(&pod(), settings).changed;
    assert!(!changed(&settings("enabled", web.clone(), json!([]))));
    assert!(changed(&settings("disabled", json!([]), web.clone())));
    assert!(!changed(&settings("disabled", web.clone(), web)));
    assert!(
        !changed(&settings("disabled", json!([]), json!([{}]))),
        "an empty selector matches nothing"
    );
    let injected = inject(&pod(), &settings("sometimes", json!([]), json!([])));
    assert_eq!(codes(&injected.warnings), ["bad-policy"]);
}

#[test]
fn a_user_defined_proxy_is_moved_and_wins() {
    let mut pod = pod();
    let own = json!({"name": "istio-proxy", "image": "auto", "tty": true,
        "resources": {"limits": {"cpu": "3"}}, "securityContext": {"runAsUser": 1234},
        "env": [{"name": "MINE", "value": "1"}]});
    pod["spec"]["containers"].as_array_mut().unwrap().push(own);
    let injected = inject(&pod, &native()).pod;
    assert_eq!(order(&injected), "istio-init istio-proxy | app");
    let proxy = container(&injected, "istio-proxy");
    assert_eq!(
        proxy["resources"]["limits"],
        json!({"cpu": "3", "memory": "1024Mi"})
    );
    assert_eq!(proxy["tty"], true);
    assert_ne!(proxy["image"], "auto");
    assert_eq!(variable(&injected, "MINE"), Some("1"));
    let args: Vec<&str> = container(&injected, "istio-init")["args"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let user = args.iter().position(|a| *a == "-u").unwrap();
    assert_eq!(
        args[user + 1],
        "1234",
        "the capture rules exempt the user the proxy runs as"
    );
}

/// A later pass used to forget the user's definitions (Istio still does).
#[test]
fn overrides_survive_another_pass_and_foreign_changes() {
    let mut pod = pod();
    let own = json!({"name": "istio-proxy", "image": "auto", "resources": {"limits": {"cpu": "3"}},
        "livenessProbe": {"httpGet": {"path": "/x", "port": 15021}},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "9"]}}}});
    pod["spec"]["containers"].as_array_mut().unwrap().push(own);
    for settings in [native(), classic(), with_order(classic(), Order::Istio)] {
        let mut once = inject(&pod, &settings).pod;
        let proxy = view::container_mut(&mut once, "istio-proxy").unwrap();
        view::list_mut(proxy, &["volumeMounts"])
            .push(json!({"name": "kube-api", "mountPath": "/var/run/sa"}));
        view::list_mut(&mut once, &["spec", "volumes"]).push(json!({"name": "kube-api", "emptyDir": {}}));
        let twice = inject(&once, &settings).pod;
        assert_eq!(container(&twice, "istio-proxy"), container(&once, "istio-proxy"));
        assert_eq!(
            container(&twice, "istio-proxy")["resources"]["limits"]["cpu"],
            "3"
        );
        assert!(container(&twice, "istio-proxy")["livenessProbe"].is_object());
    }
}

#[test]
fn a_second_pass_restores_the_plan_after_other_webhooks() {
    for (settings, wanted) in [
        (native(), "istio-init istio-proxy first late | app late-sidecar"),
        (classic(), "first late istio-init | istio-proxy app late-sidecar"),
    ] {
        let mut pod = inject(&pod(), &settings).pod;
        let init = view::list_mut(&mut pod, &["spec", "initContainers"]);
        init.push(json!({"name": "late", "image": "i"}));
        init.insert(0, json!({"name": "first", "image": "i"}));
        let probe = json!({"httpGet": {"path": "/h", "port": 8080}});
        view::list_mut(&mut pod, &["spec", "containers"])
            .push(json!({"name": "late-sidecar", "image": "i", "readinessProbe": probe}));
        let again = inject(&pod, &settings).pod;
        assert_eq!(order(&again), wanted);
        let rewritten = &container(&again, "late-sidecar")["readinessProbe"]["httpGet"];
        assert_eq!(rewritten["path"], "/app-health/late-sidecar/readyz");
        assert!(
            variable(&again, "ISTIO_KUBE_APP_PROBERS")
                .unwrap()
                .contains("\"port\":8080")
        );
        assert_eq!(
            variable(&again, "ISTIO_META_APP_CONTAINERS"),
            Some("app,late-sidecar")
        );
        assert_eq!(inject(&again, &settings).pod, again);
    }
}

#[test]
fn a_pod_changes_its_mode_on_the_next_pass() {
    let native_pod = inject(&pod(), &native()).pod;
    let now_classic = inject(&native_pod, &classic()).pod;
    assert_eq!(order(&now_classic), "istio-init | istio-proxy app");
    assert!(
        container(&now_classic, "istio-proxy")
            .get("restartPolicy")
            .is_none()
    );
    let back = inject(&now_classic, &native()).pod;
    assert_eq!(back, native_pod);
}

#[test]
fn probes_of_every_kind_go_through_the_agent() {
    let pod = parse(
        "metadata: {name: p}
spec:
  containers:
  - name: app
    image: i
    ports: [{name: http, containerPort: 8080}]
    livenessProbe: {httpGet: {path: /live, port: http, scheme: HTTPS, httpHeaders: [{name: Host, value: x}]}, timeoutSeconds: 7}
    readinessProbe: {tcpSocket: {port: 8081}}
    startupProbe: {grpc: {port: 8082, service: health}}
    lifecycle: {preStop: {httpGet: {path: /bye, port: 8080}}, postStart: {exec: {command: [date]}}}
",
    );
    let injected = inject(&pod, &native()).pod;
    let app = container(&injected, "app");
    let http = &app["livenessProbe"]["httpGet"];
    assert_eq!((&http["scheme"], &http["port"]), (&json!("HTTP"), &json!(15020)));
    assert_eq!(http["httpHeaders"][0]["name"], "Host");
    assert_eq!(
        app["readinessProbe"],
        json!({"httpGet": {"path": "/app-health/app/readyz", "port": 15020}})
    );
    assert_eq!(
        app["startupProbe"],
        json!({"httpGet": {"path": "/app-health/app/startupz", "port": 15020}})
    );
    assert_eq!(
        app["lifecycle"]["preStop"]["httpGet"]["path"],
        "/app-lifecycle/app/prestopz"
    );
    assert!(app["lifecycle"]["postStart"]["exec"].is_object());
    let probers: Value =
        serde_json::from_str(variable(&injected, "ISTIO_KUBE_APP_PROBERS").unwrap()).unwrap();
    assert_eq!(
        probers["/app-health/app/livez"]["httpGet"]["port"], 8080,
        "names are resolved"
    );
    assert_eq!(probers["/app-health/app/livez"]["timeoutSeconds"], 7);
    assert_eq!(
        probers["/app-health/app/startupz"]["grpc"],
        json!({"port": 8082, "service": "health"})
    );
}

#[test]
fn probes_that_could_only_fail_are_left_alone() {
    let unresolved = parse(
        "metadata: {name: p}\nspec: {containers: [{name: app, image: i, livenessProbe: {httpGet: {port: nowhere}}}]}\n",
    );
    let injected = inject(&unresolved, &native());
    assert_eq!(
        container(&injected.pod, "app")["livenessProbe"]["httpGet"]["port"],
        "nowhere"
    );
    assert_eq!(codes(&injected.warnings), ["probe-not-rewritten"]);

    let sidecar = parse(
        "metadata: {name: p}\nspec: {initContainers: [{name: s, image: i, restartPolicy: Always, \
         startupProbe: {httpGet: {port: 99}}}], containers: [{name: app, image: i}]}\n",
    );
    let injected = inject(&sidecar, &classic());
    assert_eq!(
        container(&injected.pod, "s")["startupProbe"]["httpGet"]["port"],
        99
    );
    assert_eq!(codes(&injected.warnings), ["probe-not-rewritten"]);
    let injected = inject(&sidecar, &native());
    assert_eq!(
        container(&injected.pod, "s")["startupProbe"]["httpGet"]["port"],
        15020
    );
}

#[test]
fn status_port_zero_leaves_no_hook_that_can_only_fail() {
    let pod = annotated("status.sidecar.istio.io/port", "0");
    let injected = inject(&pod, &native());
    let proxy = container(&injected.pod, "istio-proxy");
    assert!(proxy.get("lifecycle").is_none() && proxy.get("startupProbe").is_none());
    assert_eq!(codes(&injected.warnings), ["status-port-zero"]);
    let as_istio = inject(&pod, &with_order(native(), Order::Istio));
    assert!(
        container(&as_istio.pod, "istio-proxy")["lifecycle"]
            .to_string()
            .contains("--debug-port=0")
    );
}

#[test]
fn metrics_move_to_the_agent() {
    let mut pod = pod();
    pod["metadata"]["annotations"] =
        json!({"prometheus.io/scrape": "true", "prometheus.io.port": "9090", "prometheus.io/path": "/m"});
    let injected = inject(&pod, &native()).pod;
    let annotations = &injected["metadata"]["annotations"];
    assert_eq!(annotations["prometheus.io/port"], "15020");
    assert!(annotations.get("prometheus.io.port").is_none());
    assert_eq!(
        variable(&injected, "ISTIO_PROMETHEUS_ANNOTATIONS"),
        Some("{\"scrape\":\"true\",\"path\":\"/m\",\"port\":\"9090\"}")
    );
    let errors = try_inject(&annotated("prometheus.io/port", "15000"), &native()).unwrap_err();
    assert!(
        errors[0].to_string().contains("reserved for Istio"),
        "{}",
        errors[0]
    );
}

fn custom(name: &str, text: &str) -> Settings {
    let mut settings = native();
    settings.config.templates.insert(name.to_owned(), text.to_owned());
    settings
}

#[test]
fn custom_templates_see_go_names_and_merge() {
    let text = "\
metadata:
  annotations:
    revision: {{ .Revision | default \"none\" | quote }}
spec:
  containers:
  {{- range $i, $c := .Spec.Containers }}
  - name: {{ $c.Name }}
    env:
    - {name: INDEX, value: \"{{ $i }}\"}
    - {name: IMAGE, value: {{ $.Values.global.proxy.image | upper | quote }} }
  {{- end }}
";
    let settings = custom("extra", text);
    let mut pod = annotated("inject.istio.io/templates", "sidecar, extra");
    pod["spec"]["containers"][0]["env"] = json!([{"name": "MINE", "value": "1"}]);
    let injected = inject(&pod, &settings).pod;
    let env = container(&injected, "app")["env"].as_array().unwrap();
    let value = |name: &str| view::find(env, name).map(|v| v["value"].clone());
    assert_eq!(
        (value("INDEX"), value("IMAGE"), value("MINE")),
        (Some(json!("0")), Some(json!("PROXYV2")), Some(json!("1")))
    );
    assert_eq!(injected["metadata"]["annotations"]["revision"], "none");
    assert_eq!(inject(&injected, &settings).pod, injected);
}

/// Istio makes a second container of the same name, which the API server refuses.
#[test]
fn a_template_about_the_proxy_means_the_one_there_is() {
    let text = "spec:\n  containers:\n  - name: istio-proxy\n    tty: true\n  volumes:\n  - {name: workload-socket, csi: {driver: csi.spiffe.io}}\n";
    let pod = annotated("inject.istio.io/templates", "sidecar,spire");
    for native in [true, false] {
        let mut settings = custom("spire", text);
        settings.native = native;
        let injected = inject(&pod, &settings).pod;
        assert_eq!(container(&injected, "istio-proxy")["tty"], true);
        assert_eq!(validate::pod(&injected["metadata"], &injected["spec"]), []);
        let volumes = injected["spec"]["volumes"].as_array().unwrap();
        assert_eq!(
            view::find(volumes, "workload-socket").unwrap()["csi"]["driver"],
            "csi.spiffe.io"
        );
    }
}

#[test]
fn template_mistakes_are_named() {
    let said = |pod: &Value, settings: &Settings| {
        let errors = try_inject(pod, settings).unwrap_err();
        let source = std::error::Error::source(&errors[0])
            .map(|s| format!(": {s}"))
            .unwrap_or_default();
        format!("{}{source}", errors[0])
    };
    let unknown = annotated("inject.istio.io/templates", "nothing");
    assert_eq!(
        said(&unknown, &native()),
        "requested template \"nothing\" not found; have sidecar"
    );
    let asked = annotated("inject.istio.io/templates", "x");
    assert!(said(&asked, &custom("x", "{{ nosuch }}")).starts_with("template \"x\": "));
    assert!(said(&asked, &custom("x", "spec: [1")).contains("not YAML"));
    assert!(said(&asked, &custom("x", "- a")).contains("not a map"));
    assert!(said(&asked, &custom("x", "{{ fail \"no\" }}")).contains("no"));
}

#[test]
fn bare_template_files_take_the_sidecars_place() {
    let config = InjectConfig::from_text(
        "spec:\n  containers:\n  - name: istio-proxy\n    image: x:{{ .Values.global.tag }}\n",
    )
    .unwrap();
    let mut settings = classic();
    settings.config = config;
    let injected = inject(&pod(), &settings).pod;
    assert_eq!(container(&injected, "istio-proxy")["image"], "x:1.28.0");
}

#[test]
fn kinds_are_found_by_shape_and_cronjobs_annotate_their_pods() {
    let rollout = "apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: r}\nspec: {template: {spec: {containers: [{name: a, image: i}]}}}\n";
    let (object, _, _) = inject_document(rollout, &native());
    assert_eq!(order(&object["spec"]["template"]), "istio-init istio-proxy | a");
    let cron = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c}\nspec: {jobTemplate: {spec: {template: {spec: {containers: [{name: a, image: i}]}}}}}\n";
    let (object, _, _) = inject_document(cron, &native());
    let pod = &object["spec"]["jobTemplate"]["spec"]["template"];
    assert!(pod["metadata"]["annotations"]["sidecar.istio.io/status"].is_string());
    assert!(object["spec"]["jobTemplate"].get("metadata").is_none());
    let (_, _, errors) = inject_document(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {}\n",
        &native(),
    );
    assert_eq!(errors, ["spec.template is required"]);
}

#[test]
fn unknown_fields_and_annotations() {
    let mut pod = annotated("sidecar.istio.io/injct", "false");
    pod["spec"]["fromTheFuture"] = json!({"deep": [1]});
    pod["spec"]["containers"][0]["alsoNew"] = json!("x");
    let injected = inject(&pod, &native());
    assert_eq!(injected.pod["spec"]["fromTheFuture"], json!({"deep": [1]}));
    assert_eq!(container(&injected.pod, "app")["alsoNew"], "x");
    assert_eq!(codes(&injected.warnings), ["unknown-annotation"]);
}

#[test]
fn malformed_pods_get_one_error_each() {
    let cases = [
        (
            json!({"spec": {"containers": {"a": 1}}}),
            "spec.containers must be a list of maps",
        ),
        (
            json!({"spec": {"containers": [1]}}),
            "spec.containers must be a list of maps",
        ),
        (
            json!({"metadata": 3, "spec": {"containers": []}}),
            "metadata must be a map",
        ),
        (json!({"spec": "x"}), "spec must be a map"),
    ];
    for (pod, wanted) in cases {
        let errors = try_inject(&pod, &native()).unwrap_err();
        assert!(errors[0].to_string().starts_with(wanted), "{}", errors[0]);
    }
}
