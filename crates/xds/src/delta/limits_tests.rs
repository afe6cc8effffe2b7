//! Limits for what a client can make the server remember.

use super::{Change, Client, Interest, LimitExceeded, Server, Snapshot};
use crate::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Resource};
use prost::Message as _;

const URL: &str = "type.googleapis.com/test";

fn names(from: usize, to: usize) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: URL.to_owned(),
        resource_names_subscribe: (from..to).map(|n| n.to_string()).collect(),
        ..DeltaDiscoveryRequest::default()
    }
}

#[test]
fn a_stream_names_a_bounded_number_of_resources() {
    let mut server = Server::new();
    assert_eq!(server.receive(names(0, 10_000)), Ok(None));
    assert_eq!(server.receive(names(0, 10_000)), Ok(None), "the same ones");
    let fewer = DeltaDiscoveryRequest {
        type_url: URL.to_owned(),
        resource_names_unsubscribe: vec!["0".to_owned()],
        ..DeltaDiscoveryRequest::default()
    };
    assert_eq!(server.receive(fewer), Ok(None));
    assert_eq!(
        server.receive(names(20_000, 20_001)),
        Ok(None),
        "one was given up"
    );
    assert_eq!(server.receive(names(20_001, 20_002)), Err(LimitExceeded::Names));
    let long = DeltaDiscoveryRequest {
        type_url: URL.to_owned(),
        resource_names_subscribe: vec!["x".repeat(2 << 20)],
        ..DeltaDiscoveryRequest::default()
    };
    assert_eq!(Server::new().receive(long), Err(LimitExceeded::Names));
}

#[test]
fn a_stream_subscribes_to_a_bounded_number_of_types() {
    let mut server = Server::new();
    let of = |n: usize| DeltaDiscoveryRequest {
        type_url: n.to_string(),
        ..DeltaDiscoveryRequest::default()
    };
    for n in 0..32 {
        assert_eq!(server.receive(of(n)), Ok(None));
    }
    assert_eq!(server.receive(of(32)), Err(LimitExceeded::Types));
}

#[test]
fn what_a_client_says_it_has_is_forgotten_when_it_was_compared() {
    let mut server = Server::new();
    let request = DeltaDiscoveryRequest {
        type_url: URL.to_owned(),
        initial_resource_versions: (0..1000).map(|n| (n.to_string(), "1".to_owned())).collect(),
        ..DeltaDiscoveryRequest::default()
    };
    assert_eq!(server.receive(request), Ok(None));
    assert!(server.remembered() > 1000);
    server.next(URL, &Snapshot::default()).unwrap();
    assert_eq!(server.remembered(), 0);
}

#[test]
fn of_a_long_refusal_the_beginning_is_kept() {
    let mut server = Server::new();
    let request = DeltaDiscoveryRequest {
        type_url: URL.to_owned(),
        error_detail: Some(crate::proto::discovery::Status {
            message: "ä".repeat(1 << 20),
            ..crate::proto::discovery::Status::default()
        }),
        ..DeltaDiscoveryRequest::default()
    };
    let said = server.receive(request).unwrap().unwrap();
    assert!(said.len() < 1100 && said.ends_with("ä ..."), "{}", said.len());
}

/// A server accepts requests of 4 MiB: a client in a mesh of 100,000 workloads must be able to reconnect.
#[test]
fn a_client_that_holds_much_gets_everything_again_and_drops_what_is_gone() {
    let mut client = Client::new(Node::default());
    client.want(URL, Interest::Everything);
    let name = |n: usize| format!("Kubernetes//Pod/some-namespace/some-deployment-7d4b9c-{n:06}");
    for n in 0..100_000 {
        client.hold(URL, &name(n), "0123456789abcdef");
    }
    let opening = client.connected().remove(0);
    assert!(opening.encoded_len() < 4 << 20, "{}", opening.encoded_len());
    let resource = |n: usize| Resource {
        name: name(n),
        version: "2".to_owned(),
        resource: Some(prost_types::Any::default()),
        ..Resource::default()
    };
    let everything = DeltaDiscoveryResponse {
        type_url: URL.to_owned(),
        resources: (1..100_000).map(resource).collect(),
        ..DeltaDiscoveryResponse::default()
    };
    let received = client.receive(everything).unwrap();
    let removed: Vec<&Change> = received
        .changes
        .iter()
        .filter(|change| matches!(change, Change::Remove { .. }))
        .collect();
    assert_eq!(removed, [&Change::Remove { name: name(0) }]);
    client.answer(&received, &[]);
    let later = DeltaDiscoveryResponse {
        type_url: URL.to_owned(),
        resources: vec![resource(5)],
        ..DeltaDiscoveryResponse::default()
    };
    assert_eq!(
        client.receive(later).unwrap().changes.len(),
        1,
        "an ordinary change"
    );
}
