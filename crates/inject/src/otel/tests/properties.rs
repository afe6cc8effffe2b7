//! What holds for every pod and every Instrumentation.

use std::collections::BTreeSet;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::super::Operator;
use super::{Case, case};

const LANGUAGES: [&str; 8] = [
    "java",
    "nodejs",
    "python",
    "dotnet",
    "go",
    "apache-httpd",
    "nginx",
    "sdk",
];
const NAMES: [&str; 7] = [
    "app",
    "web",
    "b",
    "istio-proxy",
    "setup",
    "istio-init",
    "otc-container",
];
const VARIABLES: [&str; 9] = [
    "JAVA_TOOL_OPTIONS",
    "NODE_OPTIONS",
    "PYTHONPATH",
    "DOTNET_STARTUP_HOOKS",
    "OTEL_DOTNET_AUTO_HOME",
    "LD_LIBRARY_PATH",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_NODE_IP",
    "PLAIN",
];

fn env() -> impl Strategy<Value = Value> {
    let variable = (
        prop::sample::select(&VARIABLES[..]),
        "[a-z=,:/ ]{0,8}",
        prop::bool::weighted(0.2),
    );
    let list = vec(variable, 0..4).prop_map(|entries| {
        let mut seen = BTreeSet::new();
        let kept = entries.into_iter().filter(|(name, _, _)| seen.insert(*name));
        let entry = |(name, value, indirect): (&str, String, bool)| {
            if indirect {
                return json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
            }
            json!({"name": name, "value": value})
        };
        Value::Array(kept.map(entry).collect())
    });
    prop_oneof![1 => Just(Value::Null), 4 => list]
}

fn spec() -> impl Strategy<Value = Value> {
    let names = Just(NAMES.to_vec()).prop_shuffle();
    (names, 0..3_usize, 1..4_usize, vec(env(), 7), any::<bool>()).prop_map(|(names, inits, regular, envs, bound)| {
        let container = |at: usize| {
            json!({"name": names[at], "image": "i:1", "env": envs[at], "x-unknown": {"kept": at}})
        };
        let mut spec = json!({"x-unknown": [1, 2], "volumes": [{"name": "mine", "emptyDir": {}}]});
        spec["initContainers"] = (0..inits).map(container).collect();
        spec["containers"] = (inits..inits + regular).map(container).collect();
        if bound {
            spec["nodeName"] = json!("n1");
        }
        spec
    })
}

fn names() -> impl Strategy<Value = String> {
    let some = vec(prop::sample::select(&NAMES[..]), 0..3).prop_map(|names| names.join(","));
    prop_oneof![40 => some, 1 => any::<String>(), 5 => Just(String::new())]
}

fn annotations() -> impl Strategy<Value = Value> {
    let switch = prop_oneof![40 => Just("true".to_owned()), 40 => Just(String::new()), 1 => any::<String>()];
    let lists = vec(names(), 9);
    let extra = btree_map(
        "(otel-python-platform|otel-dotnet-auto-runtime)",
        any::<String>(),
        0..1,
    );
    (vec(switch, 8), lists, extra, "[ -~\n]{0,12}").prop_map(|(switches, lists, extra, free)| {
        let prefix = "instrumentation.opentelemetry.io/";
        let mut map = Map::new();
        for ((language, switch), list) in LANGUAGES.iter().zip(switches).zip(&lists) {
            map.insert(format!("{prefix}inject-{language}"), json!(switch));
            map.insert(format!("{prefix}{language}-container-names"), json!(list));
        }
        map.insert(format!("{prefix}inject-nginx-container-names"), json!(lists[6]));
        map.insert(format!("{prefix}container-names"), json!(lists[8]));
        map.insert(format!("{prefix}otel-go-auto-target-exe"), json!("/bin/x"));
        map.insert("resource.opentelemetry.io/team".to_owned(), json!(free));
        map.extend(
            extra
                .into_iter()
                .map(|(key, value)| (format!("{prefix}{key}"), json!(value))),
        );
        Value::Object(map)
    })
}

fn instrumentation() -> impl Strategy<Value = Value> {
    (env(), env(), any::<bool>(), "[ -~\n]{0,10}").prop_map(|(common, own, tls, free)| {
        let mut spec = json!({"env": common, "java": {"env": own, "extensions": [{"image": "e", "dir": "/e"}]},
            "python": {"env": own}, "nginx": {"attrs": [{"name": "X", "value": free}]},
            "resource": {"addK8sUIDAttributes": tls, "resourceAttributes": {"free": free}}});
        if tls {
            spec["exporter"] = json!({"tls": {"secretName": "s", "configMapName": "c", "ca_file": "a"}});
        }
        spec
    })
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let key = "(spec|name|env|value|valueFrom|containers|initContainers|volumes|volumeMounts|mountPath|java|nginx|\
               exporter|tls|sampler|type|argument|attrs|extensions|image|[a-z]{1,3})";
    leaf.prop_recursive(4, 40, 4, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(key, inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn given(annotations: Value, cr: &Value, spec: Value, multi: bool) -> Case {
    let mut given = case(&[], cr, spec);
    given.annotations = annotations;
    if !multi {
        let text = super::EVERYTHING.replace(
            "\"EnableMultiInstrumentation\": true",
            "\"EnableMultiInstrumentation\": false",
        );
        given.operator = Operator::from_json(&text).unwrap();
    }
    given
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// Names are unique, mounts have volumes and unique paths, variables have one source and one entry.
fn fault(spec: &Value) -> Option<String> {
    let mut names = BTreeSet::new();
    let volumes: Vec<&Value> = list(spec, "volumes").map(|volume| &volume["name"]).collect();
    if volumes
        .iter()
        .map(ToString::to_string)
        .collect::<BTreeSet<_>>()
        .len()
        != volumes.len()
    {
        return Some("a volume name twice".to_owned());
    }
    for container in list(spec, "initContainers").chain(list(spec, "containers")) {
        let name = container["name"].to_string();
        if !names.insert(name.clone()) {
            return Some(format!("container {name} twice"));
        }
        if container["image"].as_str().is_none_or(str::is_empty) {
            return Some(format!("{name} has no image"));
        }
        let mut paths = BTreeSet::new();
        for mount in list(container, "volumeMounts") {
            if !volumes.contains(&&mount["name"]) || !paths.insert(mount["mountPath"].to_string()) {
                return Some(format!("{name}: mount {mount}"));
            }
        }
        let mut variables = BTreeSet::new();
        for entry in list(container, "env") {
            let both = entry.get("value").is_some() && entry.get("valueFrom").is_some();
            if both || !variables.insert(entry["name"].to_string()) {
                return Some(format!("{name}: variable {entry}"));
            }
        }
    }
    None
}

/// Everything of `before` that injection has no business with is still in `after`.
fn lost(before: &Value, after: &Value) -> Option<String> {
    if before["x-unknown"] != after["x-unknown"] {
        return Some("pod field".to_owned());
    }
    for key in ["initContainers", "containers"] {
        let mut rest = list(after, key);
        for old in list(before, key) {
            let Some(new) = rest.find(|new| new["name"] == old["name"]) else {
                return Some(format!("{} or its order", old["name"]));
            };
            if new["x-unknown"] != old["x-unknown"] || new["image"] != old["image"] {
                return Some(format!("a field of {}", old["name"]));
            }
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_result_is_valid_complete_and_stable(
        spec in spec(), annotations in annotations(), cr in instrumentation(), multi in any::<bool>(),
    ) {
        let given = given(annotations, &cr, spec.clone(), multi);
        let first = given.run();
        prop_assert_eq!(fault(&first.spec), None);
        prop_assert_eq!(lost(&spec, &first.spec), None);
        for (at, warning) in first.outcome.warnings.iter().enumerate() {
            prop_assert!(!first.outcome.warnings[..at].contains(warning), "said twice: {:?}", warning);
            prop_assert!(!warning.text.chars().any(char::is_control), "{:?}", warning);
        }
        for target in &first.outcome.targets {
            prop_assert!(!target.container.starts_with("istio") && target.container != "otc-container");
        }
        let second = given.again(&first);
        prop_assert!(!second.outcome.changed, "{:#}\n---\n{:#}", first.spec, second.spec);
    }

    #[test]
    fn nothing_panics(
        spec in any_json(), cr in any_json(), document in any_json(), annotations in annotations(), text in any::<String>(),
    ) {
        let mut given = given(annotations, &cr, spec, true);
        given.documents.push(document);
        given.run();
        Operator::from_json(&text).ok();
    }
}
