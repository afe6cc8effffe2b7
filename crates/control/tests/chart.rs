//! The chart, rendered by an engine for Go templates with the few functions it uses, is the installation.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use gotmpl::{FuncMap, Template, TemplateError, Value as Go};
use remora_control::install::{Options, chart, objects};
use remora_pod::merge::overlay;
use remora_pod::yaml;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

fn go(value: &Value) -> Go {
    match value {
        Value::Null => Go::Nil,
        Value::Bool(flag) => Go::Bool(*flag),
        Value::Number(number) => Go::Int(number.as_i64().unwrap()),
        Value::String(text) => Go::String(Arc::from(text.as_str())),
        Value::Array(items) => Go::List(items.iter().map(go).collect()),
        Value::Object(map) => {
            let pairs = map
                .iter()
                .map(|(key, value)| (Arc::from(key.as_str()), go(value)));
            Go::Map(Arc::new(pairs.collect::<BTreeMap<_, _>>()))
        }
    }
}

fn plain(value: &Go) -> Value {
    match value {
        Go::Nil => Value::Null,
        Go::Bool(flag) => json!(flag),
        Go::Int(number) => json!(number),
        Go::String(text) => json!(&**text),
        Go::List(items) => items.iter().map(plain).collect(),
        Go::Map(map) => map
            .iter()
            .map(|(key, value)| (key.to_string(), plain(value)))
            .collect(),
        other => panic!("not in a chart: {other:?}"),
    }
}

type Function = fn(&[Go]) -> Result<Go, TemplateError>;

/// As Helm has them.
const FUNCTIONS: [(&str, Function); 6] = [
    ("list", |args| Ok(Go::List(args.to_vec().into()))),
    ("int", |args| Ok(args[0].clone())),
    ("quote", |args| {
        Ok(go(&json!(format!("{:?}", args[0].to_string()))))
    }),
    ("toJson", |args| Ok(go(&json!(plain(&args[0]).to_string())))),
    ("dict", |args| {
        let pairs = args
            .chunks(2)
            .map(|pair| (Arc::from(pair[0].to_string()), pair[1].clone()));
        Ok(Go::Map(Arc::new(pairs.collect::<BTreeMap<_, _>>())))
    }),
    ("mergeOverwrite", |args| {
        let mut base = plain(&args[0]);
        overlay(&mut base, &plain(&args[1]));
        Ok(go(&base))
    }),
];

/// The objects Helm would make of a chart of these options, with some values changed.
fn rendered(options: &Options, changes: &Value) -> Vec<Value> {
    let files = chart(options);
    let text = |path: &str| &files.iter().find(|file| file.path == path).unwrap().text;
    let mut values = yaml::parse_str(text("values.yaml")).unwrap().unwrap().value;
    overlay(&mut values, changes);
    let data = go(&json!({"Values": values, "Release": {"Namespace": options.namespace}}));
    let mut all = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with("templates/")) {
        let mut functions = FuncMap::new();
        for (name, function) in FUNCTIONS {
            functions.insert(name.to_owned(), Arc::new(function));
        }
        let template = Template::new(file.path)
            .funcs(functions)
            .parse(&file.text)
            .unwrap();
        let mut output = String::new();
        template.execute_fmt(&mut output, &data).unwrap();
        for raw in yaml::split(&output) {
            let document = yaml::parse(&raw, yaml::Limits::default()).unwrap();
            all.extend(
                document
                    .map(|document| document.value)
                    .filter(|value| !value.is_null()),
            );
        }
    }
    all
}

fn assert_same(rendered: Vec<Value>, installed: Vec<Value>) {
    let (rendered, installed) = (comparable(rendered), comparable(installed));
    for (one, other) in rendered.iter().zip(&installed) {
        assert!(one == other, "{one}\nis not\n{other}");
    }
    assert_eq!(rendered.len(), installed.len());
}

/// In an order of its own, and with texts of JSON as what they say.
fn comparable(objects: Vec<Value>) -> Vec<String> {
    let mut all: Vec<String> = objects
        .into_iter()
        .filter(|object| object["kind"] != "Namespace")
        .map(|mut object| {
            for value in object["data"]
                .as_object_mut()
                .into_iter()
                .flatten()
                .map(|(_, value)| value)
            {
                *value = serde_json::from_str(value.as_str().unwrap()).unwrap();
            }
            format!("{object:#}")
        })
        .collect();
    all.sort();
    all
}

#[test]
fn with_its_own_values_it_is_what_install_prints() {
    let chosen = Options {
        namespace: "mesh".to_owned(),
        revision: "canary".to_owned(),
        image: "registry.example:5000/mesh/remora:7".to_owned(),
        pull_policy: Some("Never".to_owned()),
        replicas: 1,
        trust_domain: "example.org".to_owned(),
        cluster: "east".to_owned(),
        pilot: json!({"tolerations": [{"operator": "Exists"}], "failurePolicy": "Ignore",
            "affinity": {"nodeAffinity": {"x": "y"}}, "priorityClassName": "", "networkPolicy": {"enabled": false}}),
        values: json!({"global": {"proxy": {"logLevel": "debug"}}}),
        mesh: json!({"accessLogFile": "/dev/stdout", "defaultConfig": {"concurrency": 2}}),
    };
    for options in [Options::default(), chosen] {
        assert_same(rendered(&options, &json!({})), objects(&options));
    }
}

#[test]
fn values_given_to_helm_are_options_given_to_install() {
    let given = json!({"hub": "example.com", "revision": "r2", "replicas": 3, "imagePullPolicy": "Always",
        "trustDomain": "td", "pilot": {"resources": {"limits": {"memory": "2Gi"}}, "maxWorkloadCertTTL": "1h",
            "nodeSelector": {"disk": "fast"}, "imagePullSecrets": [{"name": "s"}], "priorityClassName": "mine",
            "networkPolicy": {"webhookFrom": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}}, "values": {"global": {"network": "n"}}, "meshConfig": {"enableTracing": true}});
    let defaults = Options::default();
    let same = Options {
        image: format!("example.com/{}", defaults.image),
        revision: "r2".to_owned(),
        replicas: 3,
        pull_policy: Some("Always".to_owned()),
        trust_domain: "td".to_owned(),
        pilot: json!({"resources": {"limits": {"memory": "2Gi"}}, "maxWorkloadCertTTL": "1h",
            "nodeSelector": {"disk": "fast"}, "imagePullSecrets": [{"name": "s"}], "priorityClassName": "mine",
            "networkPolicy": {"webhookFrom": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}}),
        values: json!({"global": {"network": "n"}}),
        mesh: json!({"enableTracing": true}),
        ..defaults.clone()
    };
    assert_same(rendered(&defaults, &given), objects(&same));
}
