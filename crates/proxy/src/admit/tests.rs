use super::{Arrival, Entry, Mode, Refused, Speech, Treatment, inbound, requested, treatment};
use crate::mesh::Mesh;
use crate::policy::Verdict;
use crate::route::RESERVED;
use http::StatusCode;
use remora_xds::Message as _;
use remora_xds::delta::{Change, Received};
use remora_xds::proto::security::{Action, Authorization, Scope};
use remora_xds::proto::workload::address::Type;
use remora_xds::proto::workload::{Address, ApplicationTunnel, Port, PortList, Service, Workload};
use remora_xds::types::{ADDRESS, AUTHORIZATION};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const HOSTNAME: &str = "cart.shop.svc.cluster.local";
const CART_0: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CART_1: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const HEADER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const CLOSED: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 4);

fn tell(mesh: &Mesh, type_url: &str, name: &str, bytes: Vec<u8>) {
    let name = name.to_owned();
    let refused = mesh.apply(&Received::of(type_url, vec![Change::Update { name, bytes }]));
    assert!(refused.is_empty(), "{refused:?}");
}

fn ports(pairs: &[(u32, u32)]) -> PortList {
    let port = |(service_port, target_port): &(u32, u32)| Port {
        service_port: *service_port,
        target_port: *target_port,
        ..Port::default()
    };
    PortList {
        ports: pairs.iter().map(port).collect(),
    }
}

/// Two workloads of a service that listen on different ports, one that expects the PROXY protocol, and one that a policy
/// closes to all callers.
fn mesh() -> Mesh {
    let mesh = Mesh::default();
    let known = |kind| Address { r#type: Some(kind) }.encode_to_vec();
    for (name, address, targets) in [
        ("cart-0", CART_0, &[(80, 8080), (81, 0)][..]),
        ("cart-1", CART_1, &[(80, 9090), (82, 9092)]),
        ("header", HEADER, &[]),
        ("closed", CLOSED, &[]),
    ] {
        let mut workload = Workload {
            uid: name.to_owned(),
            name: name.to_owned(),
            namespace: "shop".to_owned(),
            addresses: vec![address.octets().to_vec()],
            ..Workload::default()
        };
        if !targets.is_empty() {
            workload.services = [(format!("shop/{HOSTNAME}"), ports(targets))].into();
        }
        if name == "header" {
            workload.application_tunnel = Some(ApplicationTunnel { protocol: 1, port: 0 });
        }
        if name == "closed" {
            workload.authorization_policies = vec!["shop/closed".to_owned()];
        }
        tell(&mesh, ADDRESS, name, known(Type::Workload(workload)));
    }
    let service = Service {
        name: "cart".to_owned(),
        namespace: "shop".to_owned(),
        hostname: HOSTNAME.to_owned(),
        ports: ports(&[(80, 0), (81, 0), (82, 0)]).ports,
        ..Service::default()
    };
    tell(
        &mesh,
        ADDRESS,
        &format!("shop/{HOSTNAME}"),
        known(Type::Service(service)),
    );
    // It allows nothing.
    let policy = Authorization {
        name: "closed".to_owned(),
        namespace: "shop".to_owned(),
        scope: Scope::WorkloadSelector.into(),
        action: Action::Allow.into(),
        ..Authorization::default()
    };
    tell(&mesh, AUTHORIZATION, "shop/closed", policy.encode_to_vec());
    mesh
}

#[test]
fn a_tunnel_that_names_a_service_reaches_the_port_of_this_pod_and_no_other_pods() {
    let mesh = mesh();
    let named = |port: u16, local: Ipv4Addr| requested(&mesh, &format!("{HOSTNAME}:{port}"), local.into());
    assert_eq!(named(80, CART_0), Ok((CART_0, 8080).into()));
    assert_eq!(named(80, CART_1), Ok((CART_1, 9090).into()));
    assert_eq!(named(82, CART_1), Ok((CART_1, 9092).into()));
    for (port, local, why) in [
        (82, CART_0, "another pod has that port"),
        (81, CART_0, "the port leads to none of this pod"),
        (83, CART_0, "the service does not have it"),
        (80, HEADER, "the pod is not of the service"),
    ] {
        let refused = named(port, local);
        assert!(matches!(refused, Err(Refused::NotOurs(_))), "{why}: {refused:?}");
    }
    let unknown = Ipv4Addr::new(10, 0, 0, 9);
    assert_eq!(named(80, unknown), Err(Refused::Unknown(unknown.into())));
}

#[test]
fn a_tunnel_that_names_an_address_reaches_this_pod_only() {
    let mesh = mesh();
    let named = |authority: &str| requested(&mesh, authority, CART_0.into());
    assert_eq!(named("10.0.0.1:9000"), Ok((CART_0, 9000).into()));
    for other in ["10.0.0.2:9000", "127.0.0.1:9000", "[::1]:9000"] {
        let refused = named(other);
        assert!(
            matches!(refused, Err(Refused::NotOurs(_))),
            "{other}: {refused:?}"
        );
    }
    for nonsense in [
        "",
        ":80",
        "10.0.0.1:0",
        "10.0.0.1",
        HOSTNAME,
        &format!("{HOSTNAME}:0"),
        &format!("{HOSTNAME}:65536"),
        &format!("a@{HOSTNAME}:80"),
        &format!("[{HOSTNAME}]:80"),
        &format!("a:{HOSTNAME}:80"),
    ] {
        let refused = named(nonsense);
        assert!(
            matches!(refused, Err(Refused::BadRequest(_))),
            "{nonsense}: {refused:?}"
        );
    }
}

fn arrival(destination: Ipv4Addr, port: u16) -> Arrival {
    Arrival {
        source: IpAddr::from([10, 9, 9, 9]),
        id: None,
        destination: SocketAddr::new(destination.into(), port),
        entry: Entry::Captured,
    }
}

#[test]
fn a_connection_is_refused_before_policy_where_it_cannot_be_meant() {
    let mesh = mesh();
    let unknown = Ipv4Addr::new(10, 0, 0, 9);
    for port in RESERVED {
        let decided = inbound(&mesh, arrival(CART_0, port));
        assert_eq!(decided.refused, Some(Refused::Reserved((CART_0, port).into())));
        assert_eq!(decided.judgement, None);
    }
    let decided = inbound(&mesh, arrival(unknown, 80));
    assert_eq!(decided.refused, Some(Refused::Unknown(unknown.into())));
    let decided = inbound(&mesh, arrival(HEADER, 80));
    assert_eq!(decided.refused, Some(Refused::ProxyProtocol("header".to_owned())));
}

#[test]
fn policy_decides_about_the_rest() {
    let mesh = mesh();
    let decided = inbound(&mesh, arrival(CART_0, 80));
    assert_eq!(decided.refused, None);
    assert_eq!(decided.judgement.unwrap().verdict, Verdict::Allow);
    let decided = inbound(&mesh, arrival(CLOSED, 80));
    assert!(
        matches!(decided.refused, Some(Refused::Denied(_))),
        "{:?}",
        decided.refused
    );
    assert!(matches!(decided.judgement.unwrap().verdict, Verdict::Deny(_)));
}

#[test]
fn the_mode_of_a_port_decides_what_becomes_of_bytes() {
    let [mesh, foreign, plain] = [Speech::Mesh, Speech::Foreign, Speech::Plain];
    let [end, pass, refuse] = [Treatment::EndTls, Treatment::PassOn, Treatment::Refuse];
    for (mode, expected) in [
        (Mode::Strict, [end, end, refuse]),
        (Mode::Permissive, [end, pass, pass]),
        (Mode::Disable, [pass, pass, pass]),
    ] {
        let found = [mesh, foreign, plain].map(|speech| treatment(mode, speech));
        assert_eq!(found, expected, "{mode:?}");
    }
}

#[test]
fn the_status_of_a_tunnel_says_whether_to_try_again() {
    let text = String::new;
    let address = SocketAddr::new(CART_0.into(), 80);
    for (refused, status) in [
        (Refused::BadRequest(text()), StatusCode::BAD_REQUEST),
        (Refused::NotOurs(text()), StatusCode::BAD_REQUEST),
        (Refused::Denied(text()), StatusCode::UNAUTHORIZED),
        (Refused::Plaintext, StatusCode::UNAUTHORIZED),
        (Refused::Reserved(address), StatusCode::SERVICE_UNAVAILABLE),
        (Refused::Unknown(address.ip()), StatusCode::SERVICE_UNAVAILABLE),
        (Refused::ProxyProtocol(text()), StatusCode::SERVICE_UNAVAILABLE),
    ] {
        assert_eq!(refused.status(), status, "{refused:?}");
    }
}
