//! Who runs beside whom: what a proxy of a node may ask for.
//!
//! Such a proxy speaks for every workload of its node, and for no other: a node that was taken over must not get
//! identities of the rest of the cluster. Its token says which pod it is, the pod says which node, and a pod of that
//! node must have the account that is asked for. Without IO.

use remora_pod::{object, view};
use serde_json::Value;

/// The pod a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) name: String,
    uid: String,
}

/// The pod that a review of a token names.
pub(super) fn bound(extra: &Value) -> Option<Bound> {
    // k8s: every value of `extra` is a list.
    let first = |key: &str| extra[key][0].as_str().map(str::to_owned);
    Some(Bound {
        name: first("authentication.kubernetes.io/pod-name")?,
        uid: first("authentication.kubernetes.io/pod-uid")?,
    })
}

/// The node of the caller's own pod, of pods with its name.
pub(super) fn node_of(own: &[Value], pod: &Bound, account: &str) -> Result<String, String> {
    let same = own
        .iter()
        .find(|there| object::name(there) == pod.name && there["metadata"]["uid"] == *pod.uid);
    let Some(there) = same else {
        return Err(format!("its pod {} is gone", pod.name));
    };
    if account_of(there) != account {
        return Err(format!("its pod {} has another account", pod.name));
    }
    match view::text(there, &["spec", "nodeName"]).filter(|node| !node.is_empty()) {
        Some(node) => Ok(node.to_owned()),
        None => Err(format!("its pod {} is on no node", pod.name)),
    }
}

/// Whether a pod of these, which are a node's, has the account.
pub(super) fn has(pods: &[Value], (namespace, account): (&str, &str), node: &str) -> Result<(), String> {
    // A pod that is over may still stand there, and nobody speaks for it.
    let over = |pod: &Value| {
        matches!(
            view::text(pod, &["status", "phase"]),
            Some("Succeeded" | "Failed")
        )
    };
    let found = pods.iter().any(|pod| {
        view::text(pod, &["spec", "nodeName"]) == Some(node)
            && object::namespace(pod) == namespace
            && account_of(pod) == account
            && !over(pod)
    });
    if found {
        return Ok(());
    }
    Err(format!("no pod with that account runs on its node {node}"))
}

fn account_of(pod: &Value) -> &str {
    view::text(pod, &["spec", "serviceAccountName"])
        .filter(|name| !name.is_empty())
        .unwrap_or("default")
}

#[cfg(test)]
mod tests {
    use super::{bound, has, node_of};
    use serde_json::{Value, json};

    fn pod(namespace: &str, name: &str, account: &str, node: &str) -> Value {
        json!({"metadata": {"namespace": namespace, "name": name, "uid": format!("uid-{name}")},
            "spec": {"serviceAccountName": account, "nodeName": node}, "status": {"phase": "Running"}})
    }

    #[test]
    fn a_token_that_is_bound_says_which_pod_and_the_pod_which_node() {
        let extra = json!({"authentication.kubernetes.io/pod-name": ["zt-1"],
            "authentication.kubernetes.io/pod-uid": ["uid-zt-1"]});
        let known = bound(&extra).unwrap();
        assert_eq!(bound(&json!({})), None);
        let there = pod("istio-system", "zt-1", "ztunnel", "n1");
        assert_eq!(
            node_of(std::slice::from_ref(&there), &known, "ztunnel").unwrap(),
            "n1"
        );
        assert!(node_of(&[], &known, "ztunnel").unwrap_err().contains("gone"));
        let mut later = there.clone();
        later["metadata"]["uid"] = json!("another");
        assert!(node_of(&[later], &known, "ztunnel").unwrap_err().contains("gone"));
        assert!(
            node_of(&[there], &known, "other")
                .unwrap_err()
                .contains("account")
        );
        let waiting = pod("istio-system", "zt-1", "ztunnel", "");
        assert!(
            node_of(&[waiting], &known, "ztunnel")
                .unwrap_err()
                .contains("no node")
        );
    }

    #[test]
    fn only_accounts_of_pods_on_the_same_node_count() {
        let mut over = pod("bank", "job", "batch", "n1");
        over["status"]["phase"] = json!("Succeeded");
        let pods = [
            pod("shop", "cart-0", "cart", "n1"),
            pod("shop", "web-0", "web", "n2"),
            over,
        ];
        assert_eq!(has(&pods, ("shop", "cart"), "n1"), Ok(()));
        for other in [("shop", "web"), ("bank", "cart"), ("bank", "batch")] {
            assert!(has(&pods, other, "n1").unwrap_err().contains("n1"), "{other:?}");
        }
    }
}
