//! What holds for every pod: idempotence, validity, nothing lost, no panic.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::{classic, cni, container, inject, mesh, native, order, try_inject, with_order};
use proptest::prelude::*;
use remora_inject::{Order, Settings};
use remora_pod::{validate, view, yaml};
use serde_json::{Value, json};

fn settings() -> impl Strategy<Value = Settings> {
    let all = vec![
        native(),
        classic(),
        mesh(true, &cni()),
        mesh(false, &cni()),
        mesh(
            true,
            &json!({"global": {"network": "n1", "multiCluster": {"clusterName": "c1"}}}),
        ),
        mesh(
            false,
            &json!({"global": {"imagePullSecrets": ["s"], "logAsJson": true}}),
        ),
        with_order(native(), Order::Istio),
        with_order(classic(), Order::Istio),
        with_order(mesh(false, &cni()), Order::Istio),
    ];
    proptest::sample::select(all)
}

fn probe() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"httpGet": {"path": "/h", "port": 8080}, "timeoutSeconds": 3})),
        Just(json!({"httpGet": {"port": "http", "scheme": "HTTPS"}})),
        Just(json!({"tcpSocket": {"port": 9000}})),
        Just(json!({"grpc": {"port": 9001}})),
        Just(json!({"exec": {"command": ["true"]}})),
    ]
}

fn container_named(name: String, sidecar: bool) -> impl Strategy<Value = Value> {
    (
        proptest::option::of(probe()),
        proptest::option::of(probe()),
        any::<bool>(),
        proptest::option::of(0i64..2000),
    )
        .prop_map(move |(readiness, startup, ports, user)| {
            let mut c = json!({"name": name, "image": "registry.example/app:1", "xUnknown": {"kept": true}});
            if ports {
                c["ports"] = json!([{"name": "http", "containerPort": 8080}]);
            }
            if sidecar {
                c["restartPolicy"] = json!("Always");
            }
            if sidecar || !name.starts_with("init") {
                c["readinessProbe"] = readiness.unwrap_or(Value::Null);
                c["startupProbe"] = startup.unwrap_or(Value::Null);
            }
            if let Some(user) = user {
                c["securityContext"] = json!({"runAsUser": user});
            }
            c.as_object_mut().unwrap().retain(|_, v| !v.is_null());
            c
        })
}

fn annotations() -> impl Strategy<Value = Value> {
    let known = vec![
        ("sidecar.istio.io/proxyCPU", "250m"),
        ("sidecar.istio.io/interceptionMode", "TPROXY"),
        ("sidecar.istio.io/interceptionMode", "NONE"),
        ("sidecar.istio.io/nativeSidecar", "true"),
        ("sidecar.istio.io/nativeSidecar", "false"),
        ("sidecar.istio.io/userVolume", "{\"uv\":{\"emptyDir\":{}}}"),
        ("status.sidecar.istio.io/port", "0"),
        ("status.sidecar.istio.io/port", "15999"),
        ("traffic.sidecar.istio.io/excludeInboundPorts", "80, 443"),
        ("traffic.sidecar.istio.io/includeOutboundPorts", "5432"),
        ("prometheus.io/port", "9090"),
        ("prometheus.istio.io/scrape-targets", "9090,9091:/x"),
        (
            "proxy.istio.io/config",
            "{\"proxyMetadata\":{\"ISTIO_META_DNS_CAPTURE\":\"true\"}}",
        ),
        ("proxy.istio.io/config", "holdApplicationUntilProxyStarts: true"),
        ("remora.dev/network.init0", "direct"),
        ("remora.dev/network.init1", "mesh"),
        ("remora.dev/start-after.init0", "init1"),
        ("remora.dev/start-after.app0", "app1"),
        ("instrumentation.opentelemetry.io/inject-java", "true"),
    ];
    proptest::collection::vec(proptest::sample::select(known), 0..4).prop_map(|pairs| {
        let map: serde_json::Map<String, Value> =
            pairs.into_iter().map(|(k, v)| (k.to_owned(), json!(v))).collect();
        Value::Object(map)
    })
}

/// A user's own istio-proxy, sometimes.
fn own_proxy() -> impl Strategy<Value = Option<Value>> {
    proptest::option::weighted(
        0.3,
        (any::<bool>(), 0i64..3).prop_map(|(limits, user)| {
            let mut own = json!({"name": "istio-proxy", "image": "auto", "env": [{"name": "MINE", "value": "v"}],
                "livenessProbe": {"httpGet": {"path": "/x", "port": 15021}}});
            if limits {
                own["resources"] = json!({"limits": {"cpu": "3"}});
            }
            if user > 0 {
                own["securityContext"] = json!({"runAsUser": 4000 + user});
            }
            own
        }),
    )
}

fn pod() -> impl Strategy<Value = Value> {
    let list = |prefix: &'static str, range: std::ops::Range<usize>, sidecars: bool| {
        proptest::collection::vec(any::<bool>(), range).prop_flat_map(move |kinds| {
            kinds
                .into_iter()
                .enumerate()
                .map(|(i, sidecar)| container_named(format!("{prefix}{i}"), sidecars && sidecar))
                .collect::<Vec<_>>()
        })
    };
    (list("init", 0..4, true), list("app", 1..3, false), annotations(), own_proxy(), any::<bool>()).prop_map(
        |(init, mut main, annotations, own, volume)| {
            main.extend(own);
            let mut pod = json!({"metadata": {"name": "p", "labels": {"app": "p"}, "annotations": annotations},
                "spec": {"initContainers": init, "containers": main, "xFuture": [1, {"a": null}]}});
            if volume {
                pod["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
            }
            pod
        },
    )
}

/// What another webhook does to a pod between two passes.
fn foreign(pod: &mut Value, change: usize) {
    let late = json!({"name": "foreign", "image": "i"});
    let init = view::list_mut(pod, &["spec", "initContainers"]);
    match change {
        0 => init.push(late),
        1 => init.insert(0, late),
        2 => init.reverse(),
        3 => {
            let probe = json!({"httpGet": {"path": "/", "port": 7}});
            view::list_mut(pod, &["spec", "containers"])
                .push(json!({"name": "foreign", "image": "i", "livenessProbe": probe}));
        }
        4 => view::list_mut(pod, &["spec", "containers"]).rotate_left(1),
        _ => {
            if let Some(proxy) = view::container_mut(pod, "istio-proxy") {
                view::list_mut(proxy, &["env"]).push(json!({"name": "FOREIGN", "value": "1"}));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn injecting_twice_is_injecting_once(pod in pod(), settings in settings()) {
        let once = inject(&pod, &settings);
        let twice = inject(&once.pod, &settings);
        prop_assert_eq!(yaml::write(&twice.pod), yaml::write(&once.pod));
    }

    #[test]
    fn foreign_changes_are_absorbed(pod in pod(), settings in settings(), change in 0usize..6) {
        let once = inject(&pod, &settings).pod;
        let mut changed = once.clone();
        foreign(&mut changed, change);
        let again = inject(&changed, &settings).pod;
        // The user's settings of the proxy still apply, also after another webhook changed the pod.
        let (before, after) = (container(&once, "istio-proxy"), container(&again, "istio-proxy"));
        for field in ["resources", "securityContext", "livenessProbe", "image", "args"] {
            prop_assert_eq!(before.get(field), after.get(field), "{}", field);
        }
        if change == 5 {
            prop_assert!(view::find(view::list(after, &["env"]), "FOREIGN").is_some());
        }
        prop_assert_eq!(&inject(&again, &settings).pod, &again);
        prop_assert_eq!(validate::pod(&again["metadata"], &again["spec"]), []);
    }

    #[test]
    fn the_result_is_valid_and_nothing_is_lost(pod in pod(), settings in settings()) {
        let injected = inject(&pod, &settings).pod;
        prop_assert_eq!(validate::pod(&injected["metadata"], &injected["spec"]), []);
        prop_assert_eq!(&injected["spec"]["xFuture"], &pod["spec"]["xFuture"]);
        for list in ["initContainers", "containers"] {
            for given in view::list(&pod, &["spec", list]).iter().filter(|c| view::name(c) != "istio-proxy") {
                let now = view::find(view::list(&injected, &["spec", list]), view::name(given));
                prop_assert!(now.is_some(), "{} in {}", view::name(given), order(&injected));
                prop_assert_eq!(&now.unwrap()["xUnknown"], &given["xUnknown"]);
            }
        }
        let text = yaml::write(&injected);
        prop_assert_eq!(yaml::parse_str(&text).unwrap().unwrap().value, injected);
    }

    #[test]
    fn nothing_runs_captured_without_a_proxy_unless_it_is_said(pod in pod(), settings in settings()) {
        let settings = with_order(settings, Order::Safe);
        let injected = inject(&pod, &settings);
        let mut captured = view::container(&injected.pod, "istio-validation").is_some();
        let mut proxied = false;
        for c in view::init_containers(&injected.pod) {
            match view::name(c) {
                "istio-init" => captured = true,
                "istio-proxy" => proxied = true,
                "istio-validation" => {}
                name => {
                    let exempt = c["securityContext"]["runAsUser"] == json!(1337);
                    let said = injected.warnings.iter().any(|w| w.container.as_deref() == Some(name));
                    prop_assert!(!captured || proxied || exempt || said, "{} in {}", name, order(&injected.pod));
                }
            }
        }
    }

    #[test]
    fn hostile_annotations_never_change_the_structure(value in ".*", which in 0usize..12, settings in settings()) {
        let keys = ["sidecar.istio.io/proxyImage", "sidecar.istio.io/logLevel", "sidecar.istio.io/componentLogLevel",
            "sidecar.istio.io/agentLogLevel", "sidecar.istio.io/bootstrapOverride", "sidecar.istio.io/proxyImageType",
            "traffic.sidecar.istio.io/includeOutboundPorts", "traffic.sidecar.istio.io/excludeInterfaces",
            "sidecar.istio.io/userVolume", "proxy.istio.io/config", "k8s.v1.cni.cncf.io/networks",
            "sidecar.istio.io/status"];
        let pod = json!({"metadata": {"name": "p", "annotations": {keys[which]: value}}, "spec": {"containers": [{"name": "a", "image": "i"}]}});
        if let Ok(injected) = try_inject(&pod, &settings) {
            let names = ["istio-init", "istio-validation", "istio-proxy", "a"];
            let all = view::init_containers(&injected.pod).iter().chain(view::containers(&injected.pod));
            prop_assert!(all.map(view::name).all(|n| names.contains(&n)), "{}", order(&injected.pod));
            for mesh in ["istio-init", "istio-proxy"] {
                for arg in view::container(&injected.pod, mesh).map(|c| view::list(c, &["args"])).unwrap_or_default() {
                    prop_assert!(!arg.as_str().unwrap().contains(['\n', ';', '`', '\0']), "{}", arg);
                }
            }
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(|b| json!(b)),
        any::<i64>().prop_map(|n| json!(n)),
        "[a-z./:*,{}\"-]{0,12}".prop_map(|s| json!(s)),
    ];
    let keys = proptest::sample::select(vec![
        "metadata",
        "spec",
        "containers",
        "initContainers",
        "name",
        "annotations",
        "labels",
        "env",
        "ports",
        "args",
        "sidecar.istio.io/status",
        "proxy.istio.io/overrides",
        "template",
        "volumes",
        "kind",
        "items",
        "apiVersion",
        "livenessProbe",
        "httpGet",
        "port",
        "lifecycle",
        "image",
        "instrumentation.opentelemetry.io/inject-java",
    ]);
    leaf.prop_recursive(6, 64, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            proptest::collection::btree_map(keys.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_documents_never_panic(document in any_json(), settings in settings()) {
        let mut inventory = remora_inject::Inventory::default();
        inventory.add(&document);
        inventory.finish();
        let mut object = document;
        let _ = remora_inject::inject_object(&mut object, &settings, &inventory);
        let _ = try_inject(&object, &settings);
    }
}
