//! Connections that are taken as they are instead of being redirected: nobody's address changes.

use crate::scene::{
    MESH, PATIENCE, Proxy, Scene, Sockets, capture_by, echo, exchange, identity, limits, service,
};
use remora_proxy::inbound::Modes;
use remora_testkit::{Actor, Lab};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};

const TPROXY: &[&str] = &["-z", "15006", "-m", "TPROXY"];

fn scene(mesh: &str) -> Scene {
    let lab = Lab::new();
    capture_by(&lab.peer, TPROXY);
    let sockets = Sockets::transparent(&lab.peer);
    Scene::in_lab(lab, sockets, mesh, Modes::default(), [limits(), limits()])
}

/// The application of the server, which tells who called.
fn callers(scene: &Scene, port: u16) -> Receiver<IpAddr> {
    let (seen, callers) = channel();
    scene.serve(port, move |stream: TcpStream| {
        seen.send(stream.peer_addr().unwrap().ip()).unwrap();
        echo(stream);
    });
    callers
}

#[test]
fn the_application_sees_who_called_whatever_way_that_was() {
    let plain = MESH.replace("tunnel: hbone\nservices", "services");
    let istio = MESH.replace("tunnel: hbone\nservices", "tunnel: istio-mtls\nservices");
    for (mesh, proves) in [(MESH, true), (&istio, true), (&plain, false)] {
        let scene = scene(mesh);
        let callers = callers(&scene, 8080);
        for ipv6 in [false, true] {
            let mut stream = scene.connect(service(ipv6));
            let went = exchange(&mut stream, b"who am I?");
            drop(stream);
            assert!(went.is_ok(), "{}", scene.client.record());
            let caller = callers.recv_timeout(PATIENCE).unwrap();
            assert_eq!(caller, scene.lab.eth0.pod(ipv6), "ipv6 {ipv6}, proves {proves}");
            let record = scene.server.record();
            assert_eq!(record.error, None);
            assert_eq!(record.source_id.is_some(), proves);
            assert_eq!(
                record.destination,
                SocketAddr::new(scene.lab.eth0.peer(ipv6), 8080)
            );
        }
    }
}

/// Out of the pod's proxy and in again.
#[test]
fn a_pod_can_call_its_own_service_however_it_is_captured() {
    for scene in [scene(MESH), Scene::new()] {
        let callers = callers(&scene, 8080);
        for ipv6 in [false, true] {
            let mut stream = own_call(&scene, service(ipv6)).unwrap();
            exchange(&mut stream, b"myself").unwrap();
            let expected = if ipv6 { "::6" } else { "127.0.0.6" };
            assert_eq!(callers.recv_timeout(PATIENCE).unwrap().to_string(), expected);
            drop(stream);
            for _ in ["out", "in"] {
                let record = scene.server.record();
                assert_eq!(record.error, None, "{record}");
                assert_eq!(record.source_id.unwrap().as_str(), "spiffe://td/ns/shop/sa/cart");
            }
            // By its own address nobody is asked.
            let own = scene.lab.eth0.peer(ipv6);
            exchange(
                &mut own_call(&scene, SocketAddr::new(own, 8080)).unwrap(),
                b"direct",
            )
            .unwrap();
            assert_eq!(callers.recv_timeout(PATIENCE).unwrap(), own);
        }
    }
}

#[test]
fn a_pod_that_calls_a_port_of_its_proxy_gets_nothing_and_no_circle() {
    for scene in [scene(MESH), Scene::new()] {
        for port in [15001, 15006] {
            for address in [
                scene.lab.eth0.peer(false),
                "127.0.0.1".parse().unwrap(),
                service(false).ip(),
            ] {
                let to = SocketAddr::new(address, port);
                let failed = own_call(&scene, to).and_then(|mut stream| exchange(&mut stream, b"loop?"));
                assert!(failed.is_err(), "{to}");
            }
        }
        scene.serve(8080, echo);
        scene.attempt(service(false)).unwrap();
    }
}

fn own_call(scene: &Scene, to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = scene
        .server_app
        .run(move || TcpStream::connect_timeout(&to, PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

#[test]
fn who_dials_the_proxys_port_gets_nothing() {
    let scene = scene(MESH);
    for port in [15001, 15006] {
        let to = SocketAddr::new(scene.lab.eth0.peer(false), port);
        let failed = scene
            .outsider(to)
            .and_then(|mut stream| exchange(&mut stream, b"loop?"));
        assert!(failed.is_err(), "{port}");
    }
}

/// A machine through which others go out takes their connections, without redirecting any.
#[test]
fn connections_of_others_are_taken_on_their_way_out() {
    let lab = Lab::new();
    let (guest, link) = lab.attach("guest0", 7);
    capture_by(&lab.pod, &["-z", "15001", "-m", "TPROXY"]);
    let authority_scene = {
        let now = std::time::SystemTime::now();
        remora_mtls::Authority::generate("test", now, std::time::Duration::from_hours(1)).unwrap()
    };
    let gate = Proxy::start(
        &lab.pod,
        Sockets::transparent(&lab.pod),
        identity(&authority_scene, "web"),
        Modes::default(),
        limits(),
    );
    crate::scene::capture(&lab.peer);
    let server = Proxy::start(
        &lab.peer,
        Sockets::bind(&lab.peer),
        identity(&authority_scene, "cart"),
        Modes::default(),
        limits(),
    );
    for proxy in [&gate, &server] {
        proxy.learn(MESH);
    }
    let application = Actor::new(&lab.peer, crate::scene::APP, crate::scene::APP);
    crate::scene::serve_at(&application, 8080, echo);
    for ipv6 in [false, true] {
        let to = service(ipv6);
        let caller = Actor::root(&guest);
        let mut stream = caller
            .run(move || TcpStream::connect_timeout(&to, PATIENCE))
            .unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        exchange(&mut stream, b"through").unwrap();
        drop(stream);
        let (out, back) = (gate.record(), server.record());
        assert_eq!(out.source.ip(), link.peer(ipv6));
        assert_eq!((out.destination, out.error), (to, None));
        assert_eq!(out.service.as_deref(), Some("cart.shop.svc.cluster.local"));
        assert_eq!(back.source_id.unwrap().as_str(), "spiffe://td/ns/shop/sa/web");
    }
}
