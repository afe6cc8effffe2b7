use super::{Options, objects};
use serde_json::{Value, json};

fn find<'a>(all: &'a [Value], kind: &str) -> &'a Value {
    all.iter().find(|object| object["kind"] == kind).unwrap()
}

#[test]
fn the_webhook_is_called_last_and_again() {
    let all = objects(&Options::default());
    let configuration = find(&all, "MutatingWebhookConfiguration");
    let name = configuration["metadata"]["name"].as_str().unwrap();
    for other in [
        "istio-sidecar-injector",
        "opentelemetry-operator-mutating-webhook-configuration",
        "vault-agent-injector-cfg",
    ] {
        assert!(name > other, "{name} is called before {other}");
    }
    for entry in configuration["webhooks"].as_array().unwrap() {
        assert_eq!(entry["reinvocationPolicy"], "IfNeeded");
        let outside = &entry["namespaceSelector"]["matchExpressions"][2]["values"];
        assert!(
            outside.as_array().unwrap().contains(&json!("istio-system")),
            "never its own: {entry}"
        );
    }
    assert_eq!(all.last().unwrap()["kind"], "ValidatingWebhookConfiguration");
}

#[test]
fn a_revision_has_names_of_its_own_and_leaves_the_default_labels_alone() {
    let options = Options {
        revision: "canary".to_owned(),
        ..Options::default()
    };
    let all = objects(&options);
    assert_eq!(find(&all, "Deployment")["metadata"]["name"], "istiod-canary");
    let entries = find(&all, "MutatingWebhookConfiguration")["webhooks"]
        .as_array()
        .unwrap();
    assert_eq!(
        entries.len(),
        2,
        "istio-injection=enabled belongs to the default revision"
    );
    assert!(entries[0].to_string().contains("canary"));
}

#[test]
fn sidecars_run_the_same_image() {
    let options = Options {
        image: "registry.example:5000/mesh/remora:1.2".to_owned(),
        values: json!({"global": {"proxy": {"logLevel": "debug"}}}),
        ..Options::default()
    };
    let all = objects(&options);
    let maps: Vec<&Value> = all.iter().filter(|o| o["kind"] == "ConfigMap").collect();
    let values: Value = serde_json::from_str(maps[1]["data"]["values"].as_str().unwrap()).unwrap();
    assert_eq!(values["global"]["hub"], "registry.example:5000/mesh");
    assert_eq!(values["global"]["tag"], "1.2");
    assert_eq!(
        values["global"]["proxy"],
        json!({"image": "remora", "logLevel": "debug"})
    );
}

#[test]
fn nobody_may_do_more_than_the_work_needs() {
    for object in objects(&Options::default()) {
        for rule in object["rules"].as_array().into_iter().flatten() {
            let text = rule.to_string();
            assert!(!text.contains('*'), "{text}");
            let secrets = rule["resources"].as_array().unwrap().contains(&json!("secrets"));
            assert!(
                !secrets || object["kind"] == "Role",
                "secrets of the whole cluster: {text}"
            );
        }
    }
}

#[test]
fn the_control_plane_may_write_the_status_of_policies_and_nothing_else_of_them() {
    let all = objects(&Options::default());
    let rules = find(&all, "ClusterRole")["rules"].as_array().unwrap().clone();
    let verbs = |resource: &str| -> Vec<Value> {
        let about = |rule: &&Value| {
            rule["apiGroups"] == json!(["security.istio.io"])
                && rule["resources"].as_array().unwrap().contains(&json!(resource))
        };
        let rules = rules.iter().filter(about);
        rules
            .flat_map(|rule| rule["verbs"].as_array().unwrap().clone())
            .collect()
    };
    for policy in ["authorizationpolicies", "peerauthentications"] {
        assert_eq!(verbs(policy), ["get", "list", "watch"]);
        assert_eq!(verbs(&format!("{policy}/status")), ["patch"]);
    }
}

/// The control plane must not be the first to be evicted, nor take a node's memory.
#[test]
fn the_control_plane_is_bounded_protected_and_given_time_to_start() {
    let all = objects(&Options::default());
    let pod = &find(&all, "Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["resources"]["limits"]["memory"], "1Gi");
    assert!(container["startupProbe"]["httpGet"].is_object());
    assert_eq!(pod["priorityClassName"], "system-cluster-critical");
    let quota = &find(&all, "ResourceQuota")["spec"]["scopeSelector"]["matchExpressions"][0];
    assert_eq!(
        quota["values"],
        json!(["system-cluster-critical"]),
        "providers that need a quota admit it"
    );
    let env = container["env"].as_array().unwrap();
    let life = env
        .iter()
        .find(|variable| variable["name"] == "MAX_WORKLOAD_CERT_TTL")
        .unwrap();
    assert_eq!(life["value"], "24h");
}

/// The API server may be anywhere; metrics are for the cluster; nothing else is open.
#[test]
fn a_network_policy_opens_only_the_ports_that_are_served() {
    let all = objects(&Options::default());
    let spec = &find(&all, "NetworkPolicy")["spec"];
    assert_eq!(spec["policyTypes"], json!(["Ingress"]));
    assert_eq!(spec["podSelector"], find(&all, "Deployment")["spec"]["selector"]);
    let from = |port: u16| {
        let rules = spec["ingress"].as_array().unwrap();
        rules
            .iter()
            .find(|rule| rule["ports"][0]["port"] == port)
            .unwrap()["from"]
            .clone()
    };
    assert_eq!(
        [from(15012), from(15017)],
        [json!([]), json!([])],
        "from everywhere"
    );
    assert_eq!(from(15014), json!([{"namespaceSelector": {}}]));
    assert_eq!(spec["ingress"].as_array().unwrap().len(), 3);
    let without = Options {
        pilot: json!({"networkPolicy": {"enabled": false}}),
        ..Options::default()
    };
    assert!(
        objects(&without)
            .iter()
            .all(|object| object["kind"] != "NetworkPolicy")
    );
}

#[test]
fn the_failure_policy_is_chosen_for_injection_and_never_for_advice() {
    let options = Options {
        pilot: json!({"failurePolicy": "Ignore"}),
        ..Options::default()
    };
    for (options, expected) in [(Options::default(), "Fail"), (options, "Ignore")] {
        let all = objects(&options);
        let policies = |kind| {
            let entries = find(&all, kind)["webhooks"].as_array().unwrap().iter();
            entries
                .map(|entry| entry["failurePolicy"].clone())
                .collect::<Vec<_>>()
        };
        assert!(
            policies("MutatingWebhookConfiguration")
                .iter()
                .all(|policy| policy == expected)
        );
        assert!(
            policies("ValidatingWebhookConfiguration")
                .iter()
                .all(|policy| policy == "Ignore")
        );
    }
}
