//! A pod's way through the mutating webhook.

use super::review::{Answer, Review};
use super::{Rules, variables};
use crate::chain::Chain;
use remora_inject::{Skip, Subject, Workload, inject_pod, patch};
use std::borrow::Cow;

/// What came of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It got a sidecar, or its sidecar was put right.
    Injected,
    /// It is left alone by the mesh, for this reason. It may be instrumented all the same.
    Skipped(Skip),
    /// It is refused.
    Failed,
}

/// Answers a question that came to a path below `/inject`.
pub fn mutate(review: &Review, path: &str, rules: &Rules) -> (Answer, Outcome) {
    let pod = &review.object;
    let namespace = namespace_of(review);
    let mut workload = Workload::of_pod(pod);
    if workload.namespace.is_empty() {
        namespace.clone_into(&mut workload.namespace);
    }
    let mut settings = Cow::Borrowed(&rules.settings);
    let extra = variables::of_path(path);
    // Settings are large: only a question with variables gets its own.
    if !extra.is_empty() {
        settings.to_mut().extra_env.extend(extra);
    }
    let subject = Subject {
        pod,
        workload: &workload,
        namespace,
        native: Some(rules.native.decide(pod)),
    };
    match inject_pod(subject, &settings, &rules.inventory) {
        Ok(injected) => {
            let answer = Answer {
                patch: injected.changed.then(|| patch(pod, &injected.pod)),
                warnings: injected.warnings.iter().map(|w| format!("remora: {w}")).collect(),
                ..Answer::allow()
            };
            let outcome = injected.skipped.map_or(Outcome::Injected, Outcome::Skipped);
            (answer, outcome)
        }
        Err(errors) => {
            let all: Vec<String> = errors.iter().map(|error| Chain(error).to_string()).collect();
            let message = format!(
                "{}: cannot inject the sidecar: {}",
                workload.display(),
                all.join("; ")
            );
            (Answer::refuse(message), Outcome::Failed)
        }
    }
}

/// Where the pod will be: the API server knows, the pod may not say.
pub(super) fn namespace_of(review: &Review) -> &str {
    if review.namespace.is_empty() {
        remora_pod::object::namespace(&review.object)
    } else {
        &review.namespace
    }
}

#[cfg(test)]
mod tests {
    use super::{Outcome, mutate};
    use crate::webhook::Rules;
    use crate::webhook::review::Review;
    use remora_inject::Skip;
    use serde_json::{Value, json};

    fn review(pod: &Value) -> Review {
        let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "u", "namespace": "shop", "operation": "CREATE", "object": pod}});
        Review::parse(body.to_string().as_bytes()).unwrap()
    }

    fn pod(annotations: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"generateName": "web-", "annotations": annotations},
            "spec": {"containers": [{"name": "web", "image": "web:1"}]}})
    }

    fn applied(pod: &Value, path: &str, rules: &Rules) -> Value {
        let (answer, outcome) = mutate(&review(pod), path, rules);
        assert_eq!(outcome, Outcome::Injected, "{answer:?}");
        let mut after = pod.clone();
        if let Some(patch) = answer.patch {
            json_patch::patch(&mut after, &patch).unwrap();
        }
        after
    }

    fn sidecar(pod: &Value) -> &Value {
        let all = ["initContainers", "containers"];
        let mut found = all.iter().filter_map(|l| pod["spec"][l].as_array()).flatten();
        found.find(|c| c["name"] == "istio-proxy").unwrap()
    }

    #[test]
    fn the_patch_makes_the_injected_pod_and_names_no_namespace() {
        let after = applied(&pod(&json!({})), "/inject", &Rules::default());
        assert_eq!(sidecar(&after)["name"], "istio-proxy");
        assert_eq!(after["metadata"].get("namespace"), None);
        let again = applied(&after, "/inject", &Rules::default());
        assert_eq!(again, after, "asked again, nothing changes");
    }

    #[test]
    fn the_path_reaches_the_sidecar() {
        let after = applied(&pod(&json!({})), "/inject/cluster/east/net/n1", &Rules::default());
        let env = sidecar(&after)["env"].as_array().unwrap();
        let value = |name: &str| env.iter().find(|e| e["name"] == name).unwrap()["value"].clone();
        assert_eq!(value("ISTIO_META_CLUSTER_ID"), "east");
        assert_eq!(value("ISTIO_META_NETWORK"), "n1");
    }

    #[test]
    fn order_is_restored_after_others_appended_containers() {
        let mut after = applied(&pod(&json!({})), "/inject", &Rules::default());
        let late = json!({"name": "fetch", "image": "fetch:1"});
        match &mut after["spec"]["initContainers"] {
            Value::Array(list) => list.push(late),
            none => *none = json!([late]),
        }
        let settled = applied(&after, "/inject", &Rules::default());
        let names: Vec<&str> = settled["spec"]["initContainers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap())
            .collect();
        let at = |name| names.iter().position(|n| *n == name).unwrap();
        // Classic: it runs before traffic is captured.
        assert!(at("fetch") < at("istio-init"), "{names:?}");
    }

    #[test]
    fn a_native_sidecar_stays_before_what_others_put_first_and_their_probes_go_through_it() {
        let rules = Rules {
            native: crate::webhook::Native::Fixed(true),
            ..Rules::default()
        };
        let mut after = applied(&pod(&json!({})), "/inject", &rules);
        // One that insists on being first, one that copies files and comes last, and a sidecar with a probe.
        let list = after["spec"]["initContainers"].as_array_mut().unwrap();
        list.insert(0, json!({"name": "vault-agent-init", "image": "vault:1"}));
        list.push(
            json!({"name": "opentelemetry-auto-instrumentation-java", "image": "agent:1",
            "command": ["cp", "/javaagent.jar", "/otel"]}),
        );
        let late = json!({"name": "collector", "image": "c:1",
            "livenessProbe": {"httpGet": {"path": "/alive", "port": 13133}}});
        after["spec"]["containers"].as_array_mut().unwrap().push(late);
        let settled = applied(&after, "/inject", &rules);
        let names: Vec<&str> = settled["spec"]["initContainers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap())
            .collect();
        assert_eq!(names[..2], ["istio-init", "istio-proxy"], "{names:?}");
        assert_eq!(names.len(), 4, "nobody is lost: {names:?}");
        let text = settled["spec"]["containers"].to_string();
        assert!(text.contains("/app-health/collector/livez"), "{text}");
        assert_eq!(
            applied(&settled, "/inject", &rules),
            settled,
            "and a third time changes nothing"
        );
    }

    #[test]
    fn the_nodes_decide_whether_a_sidecar_is_native_whatever_the_settings_say() {
        for (native, settings) in [(true, false), (false, true)] {
            let mut rules = Rules {
                native: crate::webhook::Native::Fixed(native),
                ..Rules::default()
            };
            rules.settings.native = settings;
            let after = applied(&pod(&json!({})), "/inject/cluster/east", &rules);
            let first = &after["spec"]["initContainers"];
            let found = first
                .as_array()
                .unwrap()
                .iter()
                .any(|c| c["name"] == "istio-proxy");
            assert_eq!(found, native, "{first}");
        }
    }

    #[test]
    fn instrumentation_that_fails_keeps_nobody_from_the_mesh() {
        let asked = pod(&json!({"instrumentation.opentelemetry.io/inject-python": "nowhere/missing"}));
        let (answer, outcome) = mutate(&review(&asked), "/inject", &Rules::default());
        assert_eq!(outcome, Outcome::Injected);
        assert!(answer.allowed && answer.patch.is_some());
        assert!(
            answer.warnings.iter().any(|w| w.contains("missing")),
            "{:?}",
            answer.warnings
        );
    }

    #[test]
    fn a_pod_that_says_no_is_left_alone() {
        let (answer, outcome) = mutate(
            &review(&pod(&json!({"sidecar.istio.io/inject": "false"}))),
            "/inject",
            &Rules::default(),
        );
        assert_eq!(outcome, Outcome::Skipped(Skip::Disabled));
        assert!(answer.allowed && answer.patch.is_none());
    }

    #[test]
    fn a_mistake_refuses_the_pod_and_says_what_to_mend() {
        let bad = pod(&json!({"traffic.sidecar.istio.io/includeInboundPorts": "eighty"}));
        let (answer, outcome) = mutate(&review(&bad), "/inject", &Rules::default());
        assert_eq!(outcome, Outcome::Failed);
        let message = answer.message.unwrap();
        assert!(
            !answer.allowed && message.contains("includeInboundPorts"),
            "{message}"
        );
    }
}
