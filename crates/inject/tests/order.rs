//! The start order of the containers of injected pods, in every mode.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::{
    classic, cni, codes, container, inject, inject_document, mesh, native, order, parse, try_inject,
    with_order,
};
use remora_inject::{Order, Settings};
use serde_json::{Value, json};

/// Two init containers of the user's and one application.
fn pod() -> Value {
    parse(
        "metadata: {name: p}\n\
         spec:\n  initContainers: [{name: u1, image: i}, {name: u2, image: i}]\n  \
         containers: [{name: app, image: i}]\n",
    )
}

fn annotated(annotations: &Value) -> Value {
    let mut pod = pod();
    pod["metadata"]["annotations"] = annotations.clone();
    pod
}

#[test]
fn every_mode_has_its_order() {
    let none = json!({"metadata": {"annotations": {"sidecar.istio.io/interceptionMode": "NONE"}}});
    let table = [
        (native(), pod(), "istio-init istio-proxy u1 u2 | app"),
        (
            mesh(true, &cni()),
            pod(),
            "istio-validation istio-proxy u1 u2 | app",
        ),
        (classic(), pod(), "u1 u2 istio-init | istio-proxy app"),
        (
            mesh(false, &cni()),
            pod(),
            "istio-validation u1 u2 | istio-proxy app",
        ),
        (
            native(),
            annotated(&none["metadata"]["annotations"]),
            "istio-proxy u1 u2 | app",
        ),
        (
            classic(),
            annotated(&none["metadata"]["annotations"]),
            "u1 u2 | istio-proxy app",
        ),
        (
            with_order(native(), Order::Istio),
            pod(),
            "istio-init istio-proxy u1 u2 | app",
        ),
        (
            with_order(classic(), Order::Istio),
            pod(),
            "u1 u2 istio-init | app istio-proxy",
        ),
    ];
    for (settings, pod, wanted) in table {
        assert_eq!(order(&inject(&pod, &settings).pod), wanted);
    }
}

const INSTRUMENTED: &str = "\
apiVersion: opentelemetry.io/v1alpha1
kind: Instrumentation
metadata: {name: default, namespace: shop}
spec: {}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cart, namespace: shop}
spec:
  template:
    metadata:
      annotations: {instrumentation.opentelemetry.io/inject-python: 'true'}
    spec:
      initContainers: [{name: migrate, image: i}]
      containers: [{name: cart, image: i}]
";

#[test]
fn agents_are_copied_before_anything_that_could_load_them() {
    let otel = "opentelemetry-auto-instrumentation-python";
    let table = [
        (native(), format!("istio-init istio-proxy {otel} migrate | cart")),
        (classic(), format!("{otel} migrate istio-init | istio-proxy cart")),
        (
            mesh(false, &cni()),
            format!("istio-validation {otel} migrate | istio-proxy cart"),
        ),
    ];
    for (settings, wanted) in table {
        let (object, _, errors) = inject_document(INSTRUMENTED, &settings);
        assert_eq!(errors, [""; 0]);
        assert_eq!(order(&object["spec"]["template"]), wanted);
    }
}

#[test]
fn hold_never_lets_instrumentation_land_in_the_proxy() {
    let (object, _, _) = inject_document(INSTRUMENTED, &classic());
    let pod = &object["spec"]["template"];
    assert!(
        container(pod, "istio-proxy")["env"]
            .as_array()
            .unwrap()
            .iter()
            .all(|v| v["name"] != "PYTHONPATH")
    );
    assert!(
        container(pod, "cart")["env"]
            .as_array()
            .unwrap()
            .iter()
            .any(|v| v["name"] == "PYTHONPATH")
    );
}

#[test]
fn direct_runs_before_capture_and_start_after_is_kept() {
    let pod = annotated(&json!({"remora.dev/network.u2": "direct"}));
    let injected = inject(&pod, &native());
    assert_eq!(order(&injected.pod), "u2 istio-init istio-proxy u1 | app");
    assert!(injected.warnings.is_empty(), "{:?}", injected.warnings);

    let pod = annotated(&json!({"remora.dev/start-after.u1": "u2"}));
    assert_eq!(
        order(&inject(&pod, &native()).pod),
        "istio-init istio-proxy u2 u1 | app"
    );
}

#[test]
fn contradictions_are_warned_about() {
    let pod = annotated(&json!({"remora.dev/start-after.u1": "u2", "remora.dev/start-after.u2": "u1"}));
    let injected = inject(&pod, &native());
    assert_eq!(codes(&injected.warnings), ["order-contradiction"]);
    assert_eq!(order(&injected.pod), "istio-init istio-proxy u1 u2 | app");
}

#[test]
fn init_containers_without_network_are_named() {
    for how in [Order::Safe, Order::Istio] {
        let injected = inject(&pod(), &with_order(mesh(false, &cni()), how));
        assert_eq!(
            codes(&injected.warnings),
            ["init-without-network", "init-without-network"]
        );
        assert_eq!(injected.warnings[0].container.as_deref(), Some("u1"));
    }
    let quiet = annotated(&json!({"remora.dev/network.u1": "none", "remora.dev/network.u2": "none"}));
    assert!(inject(&quiet, &mesh(false, &cni())).warnings.is_empty());
    let mut copies = pod();
    copies["spec"]["initContainers"] =
        json!([{"name": "u1", "image": "i", "command": ["cp", "-r", "/a", "/b"]}]);
    assert!(
        inject(&copies, &mesh(false, &cni())).warnings.is_empty(),
        "copying needs no network"
    );
    let mut exempt = pod();
    exempt["spec"]["securityContext"] = json!({"runAsGroup": 1337});
    assert!(inject(&exempt, &mesh(false, &cni())).warnings.is_empty());
}

#[test]
fn classic_holds_unless_somebody_said_no() {
    let hook = |pod: &Value, settings| {
        let injected = inject(pod, &settings);
        container(&injected.pod, "istio-proxy")["lifecycle"]["postStart"].is_object()
    };
    let refused = annotated(&json!({"proxy.istio.io/config": "holdApplicationUntilProxyStarts: false"}));
    let asked = annotated(&json!({"proxy.istio.io/config": "holdApplicationUntilProxyStarts: true"}));
    assert!(hook(&pod(), classic()));
    assert!(!hook(&refused, classic()));
    assert!(!hook(&pod(), with_order(classic(), Order::Istio)));
    assert!(hook(&asked, with_order(classic(), Order::Istio)));
    let values = json!({"global": {"proxy": {"holdApplicationUntilProxyStarts": false}}});
    assert!(!hook(&pod(), mesh(false, &values)));
    assert_eq!(codes(&inject(&asked, &native()).warnings), ["hold-ignored"]);
}

#[test]
fn a_native_proxy_is_waited_for_by_its_probe_or_by_its_hook_never_by_both() {
    let gates = |pod: &Value, settings: &Settings| {
        let injected = inject(pod, settings).pod;
        assert_eq!(
            inject(&injected, settings).pod,
            injected,
            "again, nothing changes"
        );
        let proxy = container(&injected, "istio-proxy");
        let hook = &proxy["lifecycle"]["postStart"];
        assert!(proxy["lifecycle"]["preStop"].is_object(), "it drains either way");
        (proxy["startupProbe"].is_object(), hook.is_object())
    };
    let (probe, hook) = ((true, false), (false, true));
    let everywhere = mesh(true, &json!({"remora": {"gate": "hook"}}));
    assert_eq!(gates(&pod(), &native()), probe);
    assert_eq!(gates(&pod(), &everywhere), hook);
    assert_eq!(
        gates(&annotated(&json!({"remora.dev/gate": "hook"})), &native()),
        hook
    );
    assert_eq!(
        gates(&annotated(&json!({"remora.dev/gate": "probe"})), &everywhere),
        probe
    );
    let wrong = mesh(true, &json!({"remora": {"gate": "door"}}));
    assert!(try_inject(&pod(), &wrong).is_err());
    assert!(try_inject(&annotated(&json!({"remora.dev/gate": "door"})), &native()).is_err());
}

/// A native proxy that captures the traffic itself takes the place of istio-init.
#[test]
fn a_native_proxy_may_capture_the_traffic_itself() {
    let asked = json!({"remora.dev/capture": "sidecar", "remora.dev/network.u2": "direct",
        "traffic.sidecar.istio.io/excludeOutboundPorts": "5432"});
    let injected = inject(&annotated(&asked), &native());
    assert_eq!(codes(&injected.warnings), Vec::<&str>::new());
    assert_eq!(order(&injected.pod), "u2 istio-proxy u1 | app");
    assert_eq!(
        inject(&injected.pod, &native()).pod,
        injected.pod,
        "again, nothing changes"
    );
    let proxy = container(&injected.pod, "istio-proxy");
    let words: Vec<&str> = proxy["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w.as_str().unwrap())
        .collect();
    let end = words.iter().position(|word| *word == "--").unwrap();
    let init = inject(
        &annotated(&json!({"traffic.sidecar.istio.io/excludeOutboundPorts": "5432"})),
        &native(),
    );
    assert_eq!(
        json!(words[..end]),
        container(&init.pod, "istio-init")["args"],
        "the flags are those of istio-init"
    );
    assert_eq!(
        json!(words[end + 1..]),
        container(&init.pod, "istio-proxy")["args"]
    );
    assert_eq!(
        proxy["securityContext"]["capabilities"],
        json!({"add": ["NET_ADMIN"], "drop": ["ALL"]})
    );
    assert_eq!(proxy["securityContext"]["runAsGroup"], json!(1337));
    assert_eq!(proxy["securityContext"]["allowPrivilegeEscalation"], json!(false));
    let everywhere = mesh(true, &json!({"remora": {"capture": "sidecar"}}));
    assert_eq!(order(&inject(&pod(), &everywhere).pod), "istio-proxy u1 u2 | app");
    let back = annotated(&json!({"remora.dev/capture": "init"}));
    assert_eq!(
        order(&inject(&back, &everywhere).pod),
        "istio-init istio-proxy u1 u2 | app"
    );
}

#[test]
fn where_nobody_would_wait_for_it_or_it_lacks_the_rights_istio_init_captures() {
    let asked = |more: &Value| {
        let mut annotations = json!({"remora.dev/capture": "sidecar"});
        annotations
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        annotated(&annotations)
    };
    let mut own = asked(&json!({}));
    own["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "istio-proxy", "image": "auto", "securityContext": {"runAsUser": 2000}}));
    let open = mesh(
        true,
        &json!({"global": {"proxy": {"startupProbe": {"enabled": false}}}}),
    );
    let table = [
        (asked(&json!({})), classic()),
        (asked(&json!({})), mesh(true, &cni())),
        (asked(&json!({})), open),
        (
            asked(&json!({"sidecar.istio.io/interceptionMode": "TPROXY"})),
            native(),
        ),
        (own, native()),
    ];
    for (pod, settings) in table {
        let injected = inject(&pod, &settings);
        let before = order(&injected.pod);
        assert!(
            before.contains("istio-init") || before.contains("istio-validation"),
            "{before}"
        );
        assert!(codes(&injected.warnings).contains(&"capture-by-init"), "{before}");
    }
    // Where nothing is captured nothing is said.
    let none = inject(
        &asked(&json!({"sidecar.istio.io/interceptionMode": "NONE"})),
        &native(),
    );
    assert_eq!(codes(&none.warnings), Vec::<&str>::new());
    let wrong = mesh(true, &json!({"remora": {"capture": "nobody"}}));
    assert!(try_inject(&pod(), &wrong).is_err());
    assert!(try_inject(&annotated(&json!({"remora.dev/capture": "nobody"})), &native()).is_err());
}
