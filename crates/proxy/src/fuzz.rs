//! Entry points for fuzzing: whatever strangers, discovery or resolvers send, nothing panics, what is decided holds
//! together, and nonsense opens nothing.

use crate::admit::{self, Arrival, Entry};
use crate::dns::decide::{Decision, Transport, decide};
use crate::dns::names::Client as Asker;
use crate::dns::packet::{Code, LARGEST, LARGEST_DATAGRAM, Query, is_failure, is_truncated, name_exists};
use crate::hbone;
use crate::mesh::{Destination, Mesh};
use crate::policy::{self, Connection, Policy, Verdict};
use crate::route::RESERVED;
use crate::sniff;
use http::{Method, Request};
use remora_xds::Message;
use remora_xds::delta::{Change, Client, Interest, Received};
use remora_xds::proto::discovery::{DeltaDiscoveryResponse, Node};
use remora_xds::proto::security::{Authorization, Scope};
use remora_xds::proto::workload as proto;
use remora_xds::types::{ADDRESS, AUTHORIZATION};
use std::net::{IpAddr, Ipv4Addr};

const OWN: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const HOSTNAME: &str = "cart.shop.svc.cluster.local";

/// The first bytes of a connection. However they are portioned, they mean the same.
///
/// # Panics
///
/// If more bytes change what was decided, or too many decide nothing.
pub fn hello(bytes: &[u8]) {
    let whole = sniff::judge(bytes);
    assert!(
        whole.is_some() || bytes.len() < sniff::LONGEST,
        "waits for more than {} bytes",
        bytes.len()
    );
    assert!(
        bytes.first().is_none_or(|first| *first == 22) || whole == Some(sniff::Speech::Plain),
        "the first byte is none of TLS"
    );
    // What is longer is decided by its length.
    let bytes = &bytes[..bytes.len().min(sniff::LONGEST - 1)];
    let whole = sniff::judge(bytes);
    for part in [1, bytes.len() / 3, bytes.len() / 2, bytes.len().saturating_sub(1)] {
        if let Some(early) = bytes.get(..part).and_then(sniff::judge) {
            assert_eq!(
                Some(early),
                whole,
                "decided after {part} of {} bytes",
                bytes.len()
            );
        }
    }
}

/// What a caller in a tunnel wants: a method, a space, a target. Only what is here can be reached.
///
/// # Panics
///
/// If something else than a port of this workload is accepted.
pub fn request(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == b' ');
    let (method, target) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let Ok(request) = Request::builder().method(method).uri(target).body(()) else {
        return;
    };
    let mesh = shop();
    let Ok(destination) = hbone::authority(&request, &mesh, OWN.into()) else {
        return;
    };
    assert_eq!(request.method(), Method::CONNECT);
    assert_eq!(destination.ip(), OWN, "for {:?}", request.uri());
    assert_ne!(destination.port(), 0, "for {:?}", request.uri());
    let arrival = Arrival {
        source: OWN.into(),
        id: None,
        destination,
        entry: Entry::Tunnel,
    };
    let refused = admit::inbound(&mesh, arrival).refused;
    assert_eq!(
        refused.is_some(),
        RESERVED.contains(&destination.port()),
        "{refused:?}"
    );
}

/// A response of discovery's, or a single resource of one.
///
/// # Panics
///
/// If an answer does not fit what was refused, tables contradict each other, or a policy that cannot be read lets
/// somebody in.
pub fn discovery(bytes: &[u8]) {
    let mesh = Mesh::default();
    let mut client = Client::new(Node::default());
    client.want(ADDRESS, Interest::Everything);
    client.want(AUTHORIZATION, Interest::Everything);
    drop(client.connected());
    if let Ok(response) = DeltaDiscoveryResponse::decode(bytes) {
        let nonce = response.nonce.clone();
        if let Some(received) = client.receive(response) {
            let refused = mesh.apply(&received);
            let answer = client.answer(&received, &refused);
            assert_eq!(answer.response_nonce, nonce);
            assert_eq!(answer.error_detail.is_some(), !refused.is_empty());
        }
    }
    look_around(&mesh);
    mesh.apply(&update(ADDRESS, "it", bytes.to_vec()));
    look_around(&mesh);

    let mesh = shop();
    let refused = mesh.apply(&update(AUTHORIZATION, "it", bytes.to_vec()));
    assert_eq!(mesh.broken_policies().len(), refused.len());
    // One whose scope says so is about others.
    let elsewhere = Authorization::decode(bytes).is_ok_and(|message| match Scope::try_from(message.scope) {
        Ok(Scope::Global) => false,
        Ok(Scope::Namespace) => !["", "shop"].contains(&message.namespace.as_str()),
        Ok(Scope::WorkloadSelector) => true,
        Err(_) => !["", "shop", "istio-system"].contains(&message.namespace.as_str()),
    });
    if !refused.is_empty() && !elsewhere {
        assert_ne!(mesh.verdict(&connection()), Verdict::Allow, "{refused:?}");
    }
    look_around(&mesh);
}

/// Asks about everything that is known.
fn look_around(mesh: &Mesh) {
    for workload in mesh.workloads() {
        for address in &workload.addresses {
            // Addresses are shared and used again: whoever has it now says so too.
            let owner = mesh.workload(*address);
            assert!(owner.iter().all(|owner| owner.addresses.contains(address)));
            let known = !matches!(mesh.destination(*address, 80), Destination::Unknown);
            assert!(known || owner.is_none(), "{address} is somebody's");
            let verdict = mesh.verdict(&Connection {
                source: Some(workload.id.clone()),
                destination_ip: *address,
                ..connection()
            });
            assert!(
                owner.is_some() || verdict != Verdict::Allow,
                "{address} is nobody's"
            );
        }
        for (service, ports) in &workload.services {
            for endpoint in ports.iter().flat_map(|p| mesh.endpoints(service, p.0).to_vec()) {
                assert!(endpoint.workload.services.contains_key(service), "{service}");
            }
        }
    }
    for service in mesh.services() {
        for address in &service.addresses {
            let found = mesh.destination(*address, 80);
            assert!(
                !matches!(found, Destination::Workload(_)),
                "{address} is a service's"
            );
        }
    }
}

/// A policy. What it says depends on nothing but its words.
///
/// # Panics
///
/// If an ALLOW policy matches what the same DENY policy does not, a further DENY policy opens something, or one on
/// trial decides.
pub fn policy(bytes: &[u8]) {
    let Ok(message) = Authorization::decode(bytes) else {
        return;
    };
    let with = |action, dry_run| {
        let (again, mut message) = (message.encode_to_vec(), message.clone());
        assert_eq!(
            Authorization::decode(again.as_slice()).ok().as_ref(),
            Some(&message)
        );
        (message.action, message.dry_run) = (action, dry_run);
        Policy::new(message)
    };
    let all = [with(0, false), with(1, false), with(1, true)];
    let [Ok(allow), Ok(deny), Ok(trial)] = all else {
        return;
    };
    let named = "spiffe://td/ns/shop/sa/web".parse().ok();
    for source in [named, None] {
        let connection = Connection {
            source,
            ..connection()
        };
        let decide = |policies: &[&Policy]| {
            let judgement = policy::judge(policies.iter().copied(), &connection);
            judgement.verdict == Verdict::Allow
        };
        let (allowed, denied) = (decide(&[&allow]), !decide(&[&deny]));
        assert!(denied || !allowed, "allowed and not denied by the same words");
        assert_eq!(decide(&[&allow, &deny]), allowed && !denied);
        assert_eq!(decide(&[&allow, &trial]), allowed);
        assert!(decide(&[&trial]));
    }
}

/// A DNS message from a client, and the same bytes as another server's answer.
///
/// # Panics
///
/// If an answer does not fit its question, is too long, or what is passed on has changed its meaning.
pub fn dns(bytes: &[u8]) {
    let mesh = shop();
    let asker = Asker {
        namespace: "shop".to_owned(),
        domain: "cluster.local".to_owned(),
        search: vec!["corp.example".to_owned(), "shop.svc.cluster.local".to_owned()],
    };
    for transport in [Transport::Udp, Transport::Tcp] {
        mesh.names(|names| match decide(bytes, transport, &asker, names, 1) {
            Decision::Answer(answer) => {
                let query = Query::read(bytes);
                assert!(query.is_ok_and(|query| is_answer(&query, &answer, transport)));
            }
            Decision::Refuse(answer) => {
                assert!(Query::read(bytes).is_err(), "refused what can be read");
                assert_eq!(answer.get(..2), bytes.get(..2));
                assert!(answer.get(2).is_some_and(|flags| flags & 0x80 != 0));
            }
            Decision::Forward { query, .. } => forward(&query, bytes, transport),
            Decision::Silence => assert!(Query::read(bytes).is_err(), "silent to what can be read"),
        });
    }
    let mut answer = bytes.to_vec();
    name_exists(&mut answer);
    assert_eq!(is_truncated(&answer), is_truncated(bytes));
    assert_eq!(is_failure(&answer), is_failure(bytes));
}

fn forward(query: &Query<'_>, bytes: &[u8], transport: Transport) {
    let forwarded = query.forwarded(7);
    let again = Query::read(&forwarded);
    assert!(again.is_ok_and(|again| {
        (again.name(), again.kind, again.class, again.datagram())
            == (query.name(), query.kind, query.class, query.datagram())
    }));
    assert!(!query.is_answered_by(7, bytes), "a question is no answer");
    let addresses = [IpAddr::V4(OWN); 300];
    let limit = limit(query, transport);
    for answer in [
        query.addresses(query.name(), &addresses, limit),
        query.by_tcp_only(),
        query.code(Code::ServerFailure),
        query.code(Code::NoSuchName),
    ] {
        assert!(is_answer(query, &answer, transport), "{answer:?}");
    }
}

fn limit(query: &Query<'_>, transport: Transport) -> usize {
    match transport {
        Transport::Udp => query.datagram().min(LARGEST_DATAGRAM),
        Transport::Tcp => LARGEST,
    }
}

fn is_answer(query: &Query<'_>, answer: &[u8], transport: Transport) -> bool {
    let mut numbered = answer.to_vec();
    query.renumber(&mut numbered);
    let id = u16::from_be_bytes([numbered[0], numbered[1]]);
    numbered == answer && query.is_answered_by(id, answer) && answer.len() <= limit(query, transport)
}

fn connection() -> Connection {
    Connection {
        source: None,
        source_ip: OWN.into(),
        destination_ip: OWN.into(),
        destination_port: 8080,
    }
}

fn update(type_url: &str, name: &str, bytes: Vec<u8>) -> Received {
    let mut received = Received::default();
    type_url.clone_into(&mut received.type_url);
    received.changes.push(Change::Update {
        name: name.to_owned(),
        bytes,
    });
    received
}

/// A service, the workload behind it, and a domain with everything below it.
fn shop() -> Mesh {
    let mesh = Mesh::default();
    let key = format!("shop/{HOSTNAME}");
    let list = proto::PortList {
        ports: vec![proto::Port {
            service_port: 80,
            target_port: 8080,
            ..proto::Port::default()
        }],
    };
    let workload = proto::Workload {
        uid: "cart-0".to_owned(),
        name: "cart-0".to_owned(),
        namespace: "shop".to_owned(),
        addresses: vec![OWN.octets().to_vec()],
        services: [(key.clone(), list.clone())].into(),
        ..proto::Workload::default()
    };
    let known = |kind| proto::Address { r#type: Some(kind) }.encode_to_vec();
    let workload = known(proto::address::Type::Workload(workload));
    mesh.apply(&update(ADDRESS, "cart-0", workload));
    for (name, hosts) in [(HOSTNAME, 1..=60), ("*.example.com", 61..=62)] {
        let at = |last: u8| proto::NetworkAddress {
            address: vec![10, 2, 0, last],
            ..proto::NetworkAddress::default()
        };
        let service = proto::Service {
            name: "cart".to_owned(),
            namespace: "shop".to_owned(),
            hostname: name.to_owned(),
            addresses: hosts.map(at).collect(),
            ports: list.ports.clone(),
            ..proto::Service::default()
        };
        let service = known(proto::address::Type::Service(service));
        mesh.apply(&update(ADDRESS, &format!("shop/{name}"), service));
    }
    mesh
}
