//! The validating webhook: runs the start-up model on the pod that came out of all mutations.
//!
//! A pod that will not start is told so when it is created, in the words of `remora check`; where enforcement is
//! asked for it is refused.

use super::Rules;
use super::mutate::namespace_of;
use super::review::{Answer, Review};
use remora_startup::findings::{Finding, Options, Severity, check};
use serde_json::{Map, Value};

/// The label of a namespace whose pods must be right.
pub const ENFORCE: &str = "remora.dev/enforce";

/// Whether a pod that will not start is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enforcement {
    /// In namespaces that say so.
    #[default]
    Labelled,
    /// Everywhere, except in namespaces that say `false`.
    Everywhere,
}

impl Enforcement {
    fn applies(self, namespace_labels: &Map<String, Value>) -> bool {
        match namespace_labels.get(ENFORCE).and_then(Value::as_str) {
            Some("true") => true,
            Some("false") => false,
            _ => self == Self::Everywhere,
        }
    }
}

/// Answers a question that came to `/check`. The second value tells how many errors were found.
pub fn judge(review: &Review, rules: &Rules) -> (Answer, usize) {
    let options = Options {
        kubelet: rules.native.oldest_kubelet(&review.object),
        ..Options::default()
    };
    let report = check(&review.object, &options);
    let worth_telling: Vec<&Finding> = report
        .findings
        .iter()
        .filter(|finding| finding.severity != Severity::Note)
        .collect();
    let errors: Vec<&&Finding> = worth_telling
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .collect();
    let labels = rules.inventory.namespace_labels(namespace_of(review));
    if !errors.is_empty() && rules.enforcement.applies(labels) {
        let all: Vec<String> = errors.iter().map(|finding| line(finding)).collect();
        let message = format!(
            "the pod will not start or stop as it should: {}. `remora check --fix` mends it; the label {ENFORCE} \
             of the namespace decides whether such pods are refused",
            all.join("; ")
        );
        return (Answer::refuse(message), errors.len());
    }
    let answer = Answer {
        warnings: worth_telling.iter().map(|finding| line(finding)).collect(),
        ..Answer::allow()
    };
    (answer, errors.len())
}

fn line(finding: &Finding) -> String {
    let container = if finding.container.is_empty() {
        String::new()
    } else {
        format!("container {:?}: ", finding.container)
    };
    format!("remora {}: {container}{}", finding.rule.code, finding.cause)
}

#[cfg(test)]
mod tests {
    use super::judge;
    use crate::webhook::review::Review;
    use crate::webhook::{Enforcement, Rules};
    use serde_json::{Value, json};

    /// Istio's order as another webhook leaves it: captured, then an init container that needs the network.
    fn broken() -> Value {
        json!({"metadata": {"name": "web"}, "spec": {
            "initContainers": [
                {"name": "istio-init", "image": "proxyv2", "args": ["istio-iptables", "-p", "15001", "-z", "15006", "-i", "*", "-b", "*"]},
                {"name": "migrate", "image": "curlimages/curl", "command": ["curl", "http://db:80/"]}],
            "containers": [
                {"name": "web", "image": "web:1"},
                {"name": "istio-proxy", "image": "proxyv2", "args": ["proxy", "sidecar"]}]}})
    }

    fn review(pod: &Value) -> Review {
        let body = json!({"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "namespace": "shop",
            "operation": "CREATE", "object": pod}});
        Review::parse(body.to_string().as_bytes()).unwrap()
    }

    fn labelled(value: &str) -> Rules {
        let mut rules = Rules::default();
        rules
            .inventory
            .add(&json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "shop", "labels": {"remora.dev/enforce": value}}}));
        rules
    }

    #[test]
    fn a_pod_that_will_not_start_is_told_so() {
        let (answer, errors) = judge(&review(&broken()), &Rules::default());
        assert!(answer.allowed && errors > 0);
        assert!(
            answer
                .warnings
                .iter()
                .any(|w| w.contains("RM") && w.contains("\"migrate\"")),
            "{:?}",
            answer.warnings
        );
    }

    #[test]
    fn where_enforcement_is_asked_for_it_is_refused() {
        let (answer, _) = judge(&review(&broken()), &labelled("true"));
        let message = answer.message.unwrap();
        assert!(!answer.allowed && message.contains("migrate"), "{message}");
    }

    #[test]
    fn a_namespace_can_be_let_off() {
        let mut rules = labelled("false");
        rules.enforcement = Enforcement::Everywhere;
        assert!(judge(&review(&broken()), &rules).0.allowed);
        rules.inventory = remora_inject::otel::Inventory::default();
        assert!(!judge(&review(&broken()), &rules).0.allowed);
    }

    #[test]
    fn a_sound_pod_passes_without_a_word() {
        let plain =
            json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}});
        let (answer, errors) = judge(&review(&plain), &labelled("true"));
        assert_eq!((answer.allowed, answer.warnings.len(), errors), (true, 0, 0));
    }
}
