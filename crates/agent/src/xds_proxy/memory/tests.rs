use super::envelope::NamedVersion;
use super::*;
use remora_xds::types::{CLUSTER, NAME_TABLE};
use std::collections::BTreeMap;

const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";

fn bytes(message: &impl prost::Message) -> Bytes {
    message.encode_to_vec().into()
}

fn ask(type_url: &str, names: &[&str]) -> DeltaRequest {
    DeltaRequest {
        type_url: type_url.to_owned(),
        subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DeltaRequest::default()
    }
}

fn answer(type_url: &str, nonce: &str, error: Option<&str>) -> DeltaRequest {
    DeltaRequest {
        type_url: type_url.to_owned(),
        response_nonce: nonce.to_owned(),
        error_detail: error.map(|why| Status::internal(why).encode_to_vec()),
        ..DeltaRequest::default()
    }
}

fn response(type_url: &str, nonce: &str, resources: &[(&str, &str)], removed: &[&str]) -> Bytes {
    let named = resources.iter().map(|(name, version)| NamedVersion {
        name: (*name).to_owned(),
        version: (*version).to_owned(),
    });
    bytes(&DeltaResponse {
        resources: named.collect(),
        type_url: type_url.to_owned(),
        nonce: nonce.to_owned(),
        removed: removed.iter().map(|name| (*name).to_owned()).collect(),
    })
}

fn versions(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(name, version)| ((*name).to_owned(), (*version).to_owned()))
        .collect()
}

/// A stream on which Envoy subscribed to clusters, endpoints of one cluster and listeners, and accepted two clusters.
fn used() -> Memory {
    let mut memory = Memory::new(Protocol::Delta, Vec::new());
    memory.connected();
    let mut first = ask(CLUSTER, &[]);
    first.node = b"who".to_vec();
    memory.on_envoy_message(&bytes(&first));
    memory.on_envoy_message(&bytes(&ask(ENDPOINTS, &["a"])));
    memory.on_envoy_message(&bytes(&ask(LISTENER, &[])));
    let sent = response(CLUSTER, "1", &[("a", "v1"), ("b", "v1")], &[]);
    assert_eq!(
        memory.on_control_plane_message(sent.clone()),
        FromControlPlane::Forward(sent)
    );
    memory.on_envoy_message(&bytes(&answer(CLUSTER, "1", None)));
    memory
}

fn replay(memory: &mut Memory) -> Vec<DeltaRequest> {
    let messages = memory.connected();
    messages
        .into_iter()
        .map(|message| DeltaRequest::decode(message).unwrap())
        .collect()
}

#[test]
fn a_new_connection_repeats_what_is_wanted_and_what_was_accepted() {
    let mut memory = used();
    let said = replay(&mut memory);
    let urls: Vec<&str> = said.iter().map(|request| request.type_url.as_str()).collect();
    assert_eq!(
        urls,
        [CLUSTER, ENDPOINTS, LISTENER],
        "in the order of the first wishes"
    );
    assert_eq!(said[0].node, b"who", "the node is in the first message");
    assert!(said[1..].iter().all(|request| request.node.is_empty()));
    assert_eq!(said[0].initial_versions, versions(&[("a", "v1"), ("b", "v1")]));
    assert!(said[0].subscribe.is_empty(), "everything, as Envoy asked");
    assert_eq!(said[1].subscribe, ["a"]);
}

#[test]
fn what_envoy_refused_or_never_answered_is_not_claimed() {
    let mut memory = used();
    memory.on_control_plane_message(response(CLUSTER, "2", &[("a", "bad")], &[]));
    let refused = memory.on_envoy_message(&bytes(&answer(CLUSTER, "2", Some("no such filter"))));
    assert_eq!(
        refused.answer,
        Some(Answer::Refused(CLUSTER.to_owned(), "no such filter".to_owned()))
    );
    memory.on_control_plane_message(response(CLUSTER, "3", &[("c", "v1")], &["b"]));
    let said = replay(&mut memory);
    assert_eq!(said[0].initial_versions, versions(&[("a", "v1"), ("b", "v1")]));
}

#[test]
fn a_late_answer_counts_but_is_not_passed_on() {
    let mut memory = used();
    memory.on_control_plane_message(response(CLUSTER, "7", &[("c", "v1")], &["b"]));
    replay(&mut memory);
    let late = memory.on_envoy_message(&bytes(&answer(CLUSTER, "7", None)));
    assert_eq!(late.forward, None);
    assert_eq!(late.answer, Some(Answer::Accepted(CLUSTER.to_owned())));
    assert_eq!(
        replay(&mut memory)[0].initial_versions,
        versions(&[("a", "v1"), ("c", "v1")])
    );
    // An answer that also wants something is passed on for what it wants.
    let mut wanting = answer(ENDPOINTS, "7", None);
    wanting.subscribe = vec!["b".to_owned()];
    let passed = memory.on_envoy_message(&bytes(&wanting)).forward.unwrap();
    assert_eq!(DeltaRequest::decode(passed).unwrap(), ask(ENDPOINTS, &["b"]));
}

/// Control planes that count from 1 on every connection made a late answer look like one to something new.
#[test]
fn nonces_of_different_connections_are_told_apart() {
    let mut memory = used();
    memory.on_control_plane_message(response(CLUSTER, "2", &[("c", "old")], &[]));
    replay(&mut memory);
    let FromControlPlane::Forward(seen) =
        memory.on_control_plane_message(response(CLUSTER, "2", &[("d", "new")], &[]))
    else {
        panic!("not for Envoy");
    };
    let marked = DeltaResponse::decode(seen).unwrap();
    assert_ne!(marked.nonce, "2");
    assert_eq!(marked.resources[0].name, "d", "the rest is as it came");
    assert_eq!(
        memory
            .on_envoy_message(&bytes(&answer(CLUSTER, "2", None)))
            .forward,
        None
    );
    let passed = memory
        .on_envoy_message(&bytes(&answer(CLUSTER, &marked.nonce, None)))
        .forward;
    assert_eq!(
        DeltaRequest::decode(passed.unwrap()).unwrap(),
        answer(CLUSTER, "2", None),
        "the control plane sees its own nonce"
    );
    let all = versions(&[("a", "v1"), ("b", "v1"), ("c", "old"), ("d", "new")]);
    assert_eq!(replay(&mut memory)[0].initial_versions, all);
}

#[test]
fn wishes_that_ended_are_not_repeated() {
    let mut memory = used();
    memory.on_envoy_message(&bytes(&ask(ENDPOINTS, &["b"])));
    let mut less = ask(ENDPOINTS, &[]);
    less.unsubscribe = vec!["a".to_owned()];
    memory.on_envoy_message(&bytes(&less));
    assert_eq!(replay(&mut memory)[1].subscribe, ["b"]);
}

#[test]
fn the_agents_own_types_stay_with_the_agent() {
    let mut memory = Memory::new(Protocol::Delta, vec![NAME_TABLE.to_owned()]);
    assert!(
        replay(&mut memory).is_empty(),
        "nothing before Envoy asked for listeners"
    );
    memory.on_envoy_message(&bytes(&ask(LISTENER, &[])));
    assert!(memory.introduced());
    let said = replay(&mut memory);
    assert_eq!(said[1].type_url, NAME_TABLE);
    let heard = memory.on_control_plane_message(response(NAME_TABLE, "9", &[("t", "1")], &[]));
    assert!(matches!(heard, FromControlPlane::Own { type_url, .. } if type_url == NAME_TABLE));
    let taken = DeltaRequest::decode(memory.answer_own(NAME_TABLE, None).unwrap()).unwrap();
    assert_eq!(taken, answer(NAME_TABLE, "9", None));
    let refused = DeltaRequest::decode(memory.answer_own(NAME_TABLE, Some("odd")).unwrap()).unwrap();
    assert_eq!(refused, answer(NAME_TABLE, "9", Some("odd")));
}

fn world(type_url: &str, version: &str, nonce: &str, names: &[&str]) -> SotwRequest {
    SotwRequest {
        version_info: version.to_owned(),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        type_url: type_url.to_owned(),
        response_nonce: nonce.to_owned(),
        ..SotwRequest::default()
    }
}

#[test]
fn state_of_the_world_is_repeated_with_the_last_accepted_version() {
    let mut memory = Memory::new(Protocol::Sotw, Vec::new());
    memory.on_envoy_message(&bytes(&world(CLUSTER, "", "", &[])));
    memory.on_control_plane_message(bytes(&SotwResponse {
        version_info: "5".to_owned(),
        type_url: CLUSTER.to_owned(),
        nonce: "n".to_owned(),
    }));
    let accepted = memory.on_envoy_message(&bytes(&world(CLUSTER, "5", "n", &[])));
    assert_eq!(accepted.answer, Some(Answer::Accepted(CLUSTER.to_owned())));
    let again = memory.on_envoy_message(&bytes(&world(CLUSTER, "5", "n", &["x"])));
    assert_eq!(again.answer, None, "a change of wishes is no second answer");
    let said: Vec<SotwRequest> = memory
        .connected()
        .into_iter()
        .map(|message| SotwRequest::decode(message).unwrap())
        .collect();
    assert_eq!(said, [world(CLUSTER, "5", "", &["x"])]);
    // Late, and about a connection that is gone.
    assert_eq!(
        memory
            .on_envoy_message(&bytes(&world(CLUSTER, "5", "n", &["x"])))
            .forward,
        None
    );
    let changed = memory
        .on_envoy_message(&bytes(&world(CLUSTER, "5", "n", &["y"])))
        .forward;
    assert_eq!(
        SotwRequest::decode(changed.unwrap()).unwrap(),
        world(CLUSTER, "5", "", &["y"])
    );
}

#[test]
fn health_is_a_request_without_resources() {
    let memory = Memory::new(Protocol::Delta, Vec::new());
    let well = DeltaRequest::decode(memory.health(&Health::Healthy)).unwrap();
    assert_eq!(well, ask(HEALTH, &[]));
    let sick = memory.health(&Health::Unhealthy("connection refused".to_owned()));
    assert_eq!(
        DeltaRequest::decode(sick).unwrap(),
        answer(HEALTH, "", Some("connection refused"))
    );
}

#[test]
fn what_was_kept_is_claimed_at_once_until_envoy_refuses_it() {
    let mut memory = used();
    let kept = response(LISTENER, "kept-1", &[("x", "v1"), ("y", "v1")], &[]);
    memory.on_kept_response(&kept);
    // A connection is tried before Envoy has answered; the answer comes on it.
    let said = replay(&mut memory);
    assert_eq!(said[2].initial_versions, versions(&[("x", "v1"), ("y", "v1")]));
    replay(&mut memory);
    let heard = memory.on_envoy_message(&bytes(&answer(LISTENER, "kept-1", None)));
    assert_eq!(heard.forward, None, "nobody else's business");
    assert_eq!(heard.answer, Some(Answer::Accepted(LISTENER.to_owned())));
    assert_eq!(replay(&mut memory)[2].initial_versions.len(), 2);
    memory.on_kept_response(&response(LISTENER, "kept-2", &[("x", "v1")], &[]));
    memory.on_envoy_message(&bytes(&answer(LISTENER, "kept-2", Some("no"))));
    assert_eq!(replay(&mut memory)[2].initial_versions, versions(&[("y", "v1")]));
}
