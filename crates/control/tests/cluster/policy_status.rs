//! What the status of a policy says about its enforcement.

use crate::api::{Api, Crds};
use crate::{copy, installed, replica, trusted, until};
use serde_json::{Value, json};

const PLURAL: &str = "authorizationpolicies";

fn policy(name: &str, generation: i64, spec: &Value) -> Value {
    json!({"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"name": name, "namespace": "shop", "generation": generation}, "spec": spec})
}

fn misspelt() -> Value {
    json!({"action": "ALLOW", "rulez": []})
}

fn right() -> Value {
    json!({"action": "ALLOW", "rules": [{"to": [{"operation": {"ports": ["80"]}}]}]})
}

fn conditions(api: &Api, plural: &str, name: &str) -> Vec<Value> {
    let object = api.get(plural, "shop", name).unwrap();
    let conditions = object["status"]["conditions"].as_array();
    conditions.cloned().unwrap_or_default()
}

/// Waits for the condition of a generation.
async fn condition(api: &Api, plural: &str, name: &str, generation: i64) -> Value {
    until(api, "the condition", || {
        conditions(api, plural, name).into_iter().find(|condition| {
            condition["type"] == "remora.dev/Enforced" && condition["observedGeneration"] == generation
        })
    })
    .await
}

/// Results of the writes to a policy.
fn codes(api: &Api, name: &str) -> Vec<String> {
    let place = format!("PATCH {PLURAL} shop/{name} ");
    let writes = api.writes();
    let codes = writes.iter().filter_map(|line| line.strip_prefix(&place));
    codes.map(str::to_owned).collect()
}

/// Another client writes the policy. What the status says stays.
fn edit(api: &Api, name: &str, change: impl FnOnce(&mut Value)) {
    let mut object = api.get(PLURAL, "shop", name).unwrap();
    change(&mut object);
    api.put(PLURAL, object);
}

#[tokio::test]
async fn the_status_of_a_policy_says_whether_it_is_enforced_as_written() {
    let api = installed();
    api.define_policies(Crds::WithStatus);
    api.put(PLURAL, policy("a", 1, &misspelt()));
    api.put(
        "peerauthentications",
        json!({"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
            "metadata": {"name": "p", "namespace": "shop", "generation": 4}, "spec": {"mtls": {"mode": "STRICT"}}}),
    );
    let _replica = replica(&api).await;
    let wrong = condition(&api, PLURAL, "a", 1).await;
    assert_eq!(wrong["status"], "False");
    assert_eq!(wrong["reason"], "NotEnforcedAsWritten");
    assert_eq!(
        wrong["message"],
        "spec.rulez: unknown field; the policy allows nothing"
    );
    let peer = condition(&api, "peerauthentications", "p", 4).await;
    assert_eq!(peer["status"], "True", "{peer}");

    edit(&api, "a", |object| {
        object["metadata"]["generation"] = json!(2);
        object["spec"] = right();
    });
    let corrected = condition(&api, PLURAL, "a", 2).await;
    assert_eq!(corrected["status"], "True", "{corrected}");
    assert_eq!(corrected["reason"], "Enforced");

    // The status is written by another controller, so there is an event, and nothing to write.
    let writes = codes(&api, "a");
    let other = json!({"type": "Reconciled", "status": "True"});
    edit(&api, "a", |object| {
        object["status"]["conditions"]
            .as_array_mut()
            .unwrap()
            .push(other.clone());
    });
    // Writes are made in order: with that of a later event, all earlier ones are made.
    api.put(PLURAL, policy("z", 1, &right()));
    condition(&api, PLURAL, "z", 1).await;
    assert_eq!(codes(&api, "a"), writes);
    assert_eq!(conditions(&api, PLURAL, "a"), [corrected, other]);
}

#[tokio::test]
async fn of_two_replicas_one_writes_the_status() {
    let api = installed();
    api.define_policies(Crds::WithStatus);
    let _replicas = tokio::join!(replica(&api), replica(&api));
    for number in 0..20 {
        api.put(PLURAL, policy(&format!("p{number}"), 1, &misspelt()));
    }
    for number in 0..20 {
        condition(&api, PLURAL, &format!("p{number}"), 1).await;
    }
    for number in 0..20 {
        let codes = codes(&api, &format!("p{number}"));
        let written = codes.iter().filter(|code| *code == "200").count();
        assert_eq!(written, 1, "{codes:?}");
        assert!(
            codes.iter().all(|code| code == "200" || code == "409"),
            "{codes:?}"
        );
    }
}

#[tokio::test]
async fn a_missing_permission_is_logged_once_and_a_conflict_not_at_all() {
    let api = installed();
    api.define_policies(Crds::WithStatus);
    let mut replica = replica(&api).await;
    trusted(&api, &replica).await;
    until(&api, "copies", || {
        copy(&api, "istio-system").and(copy(&api, "shop"))
    })
    .await;
    // Taken from the end: two writes are forbidden, then one comes too late.
    api.trouble(&[409, 403, 403]);
    for (name, code) in [("a", "403"), ("b", "403"), ("c", "409")] {
        api.put(PLURAL, policy(name, 1, &misspelt()));
        until(&api, "the refusal", || {
            (codes(&api, name) == [code]).then_some(())
        })
        .await;
    }
    api.put(PLURAL, policy("d", 1, &misspelt()));
    condition(&api, PLURAL, "d", 1).await;
    // A conflict means that another version follows.
    edit(&api, "c", |object| {
        object["metadata"]["labels"] = json!({"a": "b"});
    });
    condition(&api, PLURAL, "c", 1).await;
    let mut logged = Vec::new();
    while let Ok(notice) = replica.notices.try_recv() {
        if notice.contains("cannot write the status of authorization policies") {
            logged.push(notice);
        }
    }
    assert_eq!(logged.len(), 1, "{logged:?}");
}

#[tokio::test]
async fn a_status_that_an_api_server_in_trouble_did_not_take_is_written_later() {
    let api = installed();
    api.define_policies(Crds::WithStatus);
    let replica = replica(&api).await;
    trusted(&api, &replica).await;
    until(&api, "copies", || {
        copy(&api, "istio-system").and(copy(&api, "shop"))
    })
    .await;
    api.trouble(&[500]);
    // No event follows.
    api.put(PLURAL, policy("a", 1, &misspelt()));
    condition(&api, PLURAL, "a", 1).await;
    assert_eq!(codes(&api, "a"), ["500", "200"]);
}

#[tokio::test]
async fn policies_without_a_status_subresource_are_followed_all_the_same() {
    let api = installed();
    api.define_policies(Crds::WithoutStatus);
    let mut replica = replica(&api).await;
    api.put(PLURAL, policy("a", 1, &misspelt()));
    replica
        .said("AuthorizationPolicy shop/a is not enforced as written")
        .await;
    replica.said("has no status subresource").await;
    assert_eq!(conditions(&api, PLURAL, "a"), Vec::<Value>::new());
}
