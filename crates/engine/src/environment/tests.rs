use super::{ConfigError, Facts, command_line, variables};
use crate::objects::Objects;
use crate::services::{Protocol, Service, ServicePort};
use serde_json::{Value, json};

fn facts() -> Facts {
    Facts {
        pod_ip: "10.244.0.7".parse().unwrap(),
        host_ip: "10.244.0.1".parse().unwrap(),
        node: "remora".to_owned(),
        uid: "u-1".to_owned(),
        cpu_millis: 2000,
        memory: 1 << 30,
        now: std::time::SystemTime::UNIX_EPOCH,
    }
}

fn pod(container: &Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "shop", "labels": {"app": "cart"}},
        "spec": {"serviceAccountName": "sa", "containers": [container]}})
}

fn values(
    container: &Value,
    objects: &Objects,
    services: &[Service],
) -> Result<Vec<(String, String)>, ConfigError> {
    let pod = pod(container);
    variables(&pod, container, &facts(), objects, services)
}

#[test]
fn values_refer_to_what_came_before() {
    let mut objects = Objects::default();
    objects.put_config_map("shop", "c", [("K".to_owned(), b"from".to_vec())].into());
    let container = json!({"name": "a", "envFrom": [{"prefix": "P_", "configMapRef": {"name": "c"}}], "env": [
        {"name": "ONE", "value": "$(P_K)-$(TWO)"},
        {"name": "TWO", "value": "2"},
        {"name": "THREE", "value": "$(ONE)$(TWO)"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1"}}},
        {"name": "GONE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}},
    ]});
    let found = values(&container, &objects, &[]).unwrap();
    let text: Vec<String> = found.iter().map(|(n, v)| format!("{n}={v}")).collect();
    assert_eq!(
        text,
        [
            "P_K=from",
            "ONE=from-$(TWO)",
            "TWO=2",
            "THREE=from-$(TWO)2",
            "IP=10.244.0.7",
            "APP=cart",
            "CPU=2"
        ]
    );
}

#[test]
fn what_is_missing_is_named() {
    let container = json!({"name": "a", "env": [
        {"name": "X", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}]});
    let error = values(&container, &Objects::default(), &[]).unwrap_err();
    assert_eq!(error.to_string(), "Secret \"db\" not found");
}

#[test]
fn services_of_the_namespace_are_told_unless_a_variable_has_the_name() {
    let service = Service {
        name: "my-db".to_owned(),
        namespace: "shop".to_owned(),
        address: Some("10.96.0.20".parse().unwrap()),
        headless: false,
        ports: vec![ServicePort {
            name: "sql".to_owned(),
            port: 5432,
            target: crate::services::Target::Number(5432),
            protocol: Protocol::Tcp,
        }],
        ..Service::default()
    };
    let container = json!({"name": "a", "env": [{"name": "MY_DB_SERVICE_PORT", "value": "mine"}]});
    let found = values(&container, &Objects::default(), &[service]).unwrap();
    let get = |name: &str| found.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    assert_eq!(get("MY_DB_SERVICE_HOST"), Some("10.96.0.20"));
    assert_eq!(get("MY_DB_SERVICE_PORT"), Some("mine"));
    assert_eq!(get("MY_DB_SERVICE_PORT_SQL"), Some("5432"));
    assert_eq!(get("MY_DB_PORT_5432_TCP"), Some("tcp://10.96.0.20:5432"));
}

#[test]
fn command_and_arguments_against_the_image() {
    let image = (vec!["/entry".to_owned()], vec!["--image".to_owned()]);
    let line = |container: Value| {
        command_line(
            &container,
            &[("A".to_owned(), "b".to_owned())],
            &image.0,
            &image.1,
        )
    };
    assert_eq!(line(json!({})), ["/entry", "--image"]);
    assert_eq!(line(json!({"args": ["$(A)"]})), ["/entry", "b"]);
    assert_eq!(line(json!({"command": ["/c"]})), ["/c"]);
    assert_eq!(line(json!({"command": ["/c"], "args": ["x"]})), ["/c", "x"]);
}
