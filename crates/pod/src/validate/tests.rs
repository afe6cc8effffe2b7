use super::*;
use serde_json::json;

fn valid() -> Value {
    json!({
        "initContainers": [
            {"name": "setup", "image": "a"},
            {"name": "proxy", "image": "a", "restartPolicy": "Always",
             "startupProbe": {"httpGet": {"port": 15021, "path": "/ready"}},
             "lifecycle": {"preStop": {"exec": {"command": ["drain"]}}}},
        ],
        "containers": [{
            "name": "app", "image": "a:1",
            "ports": [{"name": "http", "containerPort": 80}, {"name": "metrics", "containerPort": 80, "protocol": "UDP"}],
            "env": [{"name": "A", "value": "b"}, {"name": "A"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
            "livenessProbe": {"grpc": {"port": 1}, "periodSeconds": 0},
            "readinessProbe": {"tcpSocket": {"port": "http"}, "successThreshold": 2},
            "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1024Mi"}},
            "volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b", "subPath": "x/y"}],
        }],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w"}],
        "restartPolicy": "Always",
        "securityContext": {"runAsUser": 1337},
    })
}

fn metadata() -> Value {
    json!({"labels": {"app": "a", "x.y/z": ""}, "annotations": {"Example.com/A": "b\n", "c": ""}})
}

/// Problems of the valid pod after `value` was put at `path`.
fn with(path: &str, value: Value) -> Vec<String> {
    let mut pod = json!({"metadata": metadata(), "spec": valid()});
    let path: Path = path.parse().unwrap();
    let Some(crate::Segment::Key(key)) = path.last() else {
        panic!("{path} must end with a field")
    };
    path.parent().unwrap().get_mut(&mut pod).unwrap()[key.as_str()] = value;
    super::pod(&pod["metadata"], &pod["spec"])
        .iter()
        .map(Problem::to_string)
        .collect()
}

#[test]
fn a_valid_pod_has_no_problems() {
    assert_eq!(pod(&metadata(), &valid()), []);
    assert_eq!(pod(&Value::Null, &valid()), []);
}

/// A path of the valid pod, what is put there, and how the problem then starts.
const CASES: &str = r#"
spec.containers = [] => spec.containers: is required
spec.containers = {} => spec.containers: must be a list
spec.containers[0].name = "App" => spec.containers[0].name: "App" must consist of lower case
spec.containers[0].name = "proxy" => spec.containers[0].name: duplicate container "proxy" (first at spec.initContainers[1])
spec.containers[0].name = null => spec.containers[0].name: is required
spec.containers[0].image = "" => spec.containers[0].image: is required
spec.containers[0].image = "a\n" => spec.containers[0].image: must not have blanks at its ends
spec.initContainers[1].restartPolicy = "Sometimes" => spec.initContainers[1].restartPolicy: must be one of
spec.initContainers[1].restartPolicy = null => spec.initContainers[1].startupProbe: must not be set for an init container that runs to its end
spec.initContainers[0].lifecycle = {"preStop": {"sleep": {"seconds": 1}}} => spec.initContainers[0].lifecycle: must not be set
spec.initContainers[0].readinessProbe = {"grpc": {"port": 1}} => spec.initContainers[0].readinessProbe: must not be set
spec.containers[0].livenessProbe = {} => spec.containers[0].livenessProbe: must have one of exec, httpGet, tcpSocket, grpc
spec.containers[0].livenessProbe.tcpSocket = {"port": 1} => spec.containers[0].livenessProbe: must have one handler, not tcpSocket and grpc
spec.containers[0].livenessProbe.periodSeconds = -1 => spec.containers[0].livenessProbe.periodSeconds: must be an integer from 0
spec.containers[0].livenessProbe.periodSeconds = "1" => spec.containers[0].livenessProbe.periodSeconds: must be an integer
spec.containers[0].livenessProbe.successThreshold = 2 => spec.containers[0].livenessProbe.successThreshold: must be 1 for a livenessProbe
spec.containers[0].livenessProbe.grpc.port = "http" => spec.containers[0].livenessProbe.grpc.port: must be a port from 1 to 65535, not "http"
spec.containers[0].readinessProbe.tcpSocket.port = 0 => spec.containers[0].readinessProbe.tcpSocket.port: must be a port
spec.containers[0].readinessProbe.tcpSocket.port = "8080" => spec.containers[0].readinessProbe.tcpSocket.port: port name "8080" must contain a letter
spec.containers[0].readinessProbe.terminationGracePeriodSeconds = 1 => spec.containers[0].readinessProbe.terminationGracePeriodSeconds: must not be set
spec.containers[0].lifecycle = {"postStart": {"exec": {}}} => spec.containers[0].lifecycle.postStart.exec.command: is required
spec.containers[0].lifecycle = {"preStop": {"grpc": {"port": 1}}} => spec.containers[0].lifecycle.preStop: must have one of exec, httpGet, tcpSocket, sleep
spec.containers[0].startupProbe = {"httpGet": {"port": 1, "scheme": "http"}} => spec.containers[0].startupProbe.httpGet.scheme: must be one of HTTP, HTTPS
spec.containers[0].ports[1].name = "http" => spec.containers[0].ports[1].name: duplicate port name "http"
spec.containers[0].ports[1].containerPort = 70000 => spec.containers[0].ports[1].containerPort: must be an integer from 1 to 65535
spec.containers[0].ports[1].containerPort = null => spec.containers[0].ports[1].containerPort: is required
spec.containers[0].ports[1].protocol = "tcp" => spec.containers[0].ports[1].protocol: must be one of TCP, UDP, SCTP
spec.containers[0].env[0].name = "A=B" => spec.containers[0].env[0].name: "A=B" must consist of printable
spec.containers[0].env[0].value = 1 => spec.containers[0].env[0].value: must be a string, not 1; put it in quotes
spec.containers[0].env[2].value = "x" => spec.containers[0].env[2].valueFrom: must not be set together with value
spec.containers[0].env[2].valueFrom = {} => spec.containers[0].env[2].valueFrom: must have one of
spec.volumes[1].name = "v" => spec.volumes[1].name: duplicate volume "v"
spec.volumes[0].secret = {"secretName": "x"} => spec.volumes[0]: must have one source, not emptyDir and secret
spec.containers[0].volumeMounts[0].name = "x" => spec.containers[0].volumeMounts[0].name: there is no volume "x"
spec.containers[0].volumeMounts[1].mountPath = "/a" => spec.containers[0].volumeMounts[1].mountPath: "/a" is mounted twice
spec.containers[0].volumeMounts[1].subPath = "../x" => spec.containers[0].volumeMounts[1].subPath: must be a relative path
spec.containers[0].resources.requests.cpu = "2" => spec.containers[0].resources.requests.cpu: must not be more than the limit of 1
spec.containers[0].resources.limits.memory = "1Gb" => spec.containers[0].resources.limits.memory: "1Gb" is not a quantity
spec.containers[0].resources.limits.cpu = "-1" => spec.containers[0].resources.limits.cpu: must not be negative
spec.containers[0].securityContext = {"runAsUser": -1} => spec.containers[0].securityContext.runAsUser: must be an integer
spec.containers[0].securityContext = {"privileged": true, "allowPrivilegeEscalation": false} => spec.containers[0].securityContext: allowPrivilegeEscalation must not be false
spec.restartPolicy = "never" => spec.restartPolicy: must be one of Always, OnFailure, Never, not "never"
spec.terminationGracePeriodSeconds = -1 => spec.terminationGracePeriodSeconds: must be at least 0
metadata.labels = {"a": "b c"} => metadata.labels.a: label value "b c" must consist
metadata.labels = {"a b": "c"} => metadata.labels["a b"]: label key "a b" must consist
metadata.annotations = {"a": true} => metadata.annotations.a: must be a string, not true; put it in quotes
metadata.annotations = {"a b": ""} => metadata.annotations["a b"]: annotation key
"#;

#[test]
fn each_broken_rule_is_named_with_its_place() {
    for case in CASES.lines().filter(|line| !line.is_empty()) {
        let (change, expected) = case.split_once(" => ").unwrap();
        let (path, value) = change.split_once(" = ").unwrap();
        let problems = with(path, serde_json::from_str(value).unwrap());
        assert!(
            problems.iter().any(|problem| problem.starts_with(expected)),
            "{case}: {problems:?}"
        );
    }
}

#[test]
fn annotations_together_have_a_limit() {
    let problems = with("metadata.annotations", json!({"a": "x".repeat(256 << 10)}));
    assert_eq!(
        problems,
        ["metadata.annotations: all annotations together must have at most 262144 bytes, not 262145"]
    );
}

#[test]
fn host_ports_of_one_pod_must_differ() {
    let mut spec = valid();
    let ports = json!([{"containerPort": 80, "hostPort": 80}]);
    spec["containers"] =
        json!([{"name": "a", "image": "a", "ports": ports}, {"name": "b", "image": "a", "ports": ports}]);
    let problems = pod(&Value::Null, &spec);
    assert_eq!(problems.len(), 1, "{problems:?}");
    spec["hostNetwork"] = json!(true);
    spec["containers"] =
        json!([{"name": "a", "image": "a", "ports": [{"containerPort": 80, "hostPort": 81}]}]);
    assert_eq!(pod(&Value::Null, &spec).len(), 1);
}

#[test]
fn options_relax() {
    let mut spec = valid();
    spec["containers"][0]["image"] = Value::Null;
    spec["volumes"] = Value::Null;
    assert_eq!(pod(&Value::Null, &spec).len(), 3);
    let options = Options {
        require_image: false,
        extra_volumes: &["v"],
    };
    assert_eq!(pod_with(&Value::Null, &spec, options), []);
}

#[test]
fn long_values_do_not_flood_messages() {
    let problems = with("spec.containers[0].name", json!("x".repeat(1 << 20)));
    assert!(problems[0].len() < 300, "{}", problems[0].len());
}

#[test]
fn values_of_any_type_anywhere_do_not_panic() {
    let odd = [
        json!(null),
        json!(1),
        json!("x"),
        json!([]),
        json!([1]),
        json!({}),
        json!(true),
        json!([{"name": 1}]),
    ];
    for value in &odd {
        for field in [
            "containers",
            "initContainers",
            "volumes",
            "securityContext",
            "restartPolicy",
        ] {
            let mut spec = valid();
            spec[field] = value.clone();
            let _ = pod(value, &spec);
        }
        for field in [
            "ports",
            "env",
            "resources",
            "lifecycle",
            "livenessProbe",
            "volumeMounts",
            "securityContext",
        ] {
            let mut spec = valid();
            spec["containers"][0][field] = value.clone();
            let _ = pod(&Value::Null, &spec);
        }
        let _ = pod(&json!({"labels": value, "annotations": value}), value);
    }
}
