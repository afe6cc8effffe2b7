//! The end of a proxy, and the life of its tunnels.

use crate::scene::{MESH, PATIENCE, Scene, echo, exchange, identity, service};
use remora_mtls::{Chain, Credentials, PrivateKey, Roots};
use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, SystemTime};

#[test]
fn open_connections_finish_after_the_drain_began_and_new_ones_are_refused() {
    let mut scene = Scene::new();
    scene.serve(8080, echo);
    let mut open = scene.connect(service(false));
    exchange(&mut open, b"before").unwrap();
    scene.server.stop();
    // The peer is told, so its next connection does not find a tunnel with room.
    let refused = loop {
        if let Err(error) = scene.attempt(service(false)) {
            break error;
        }
    };
    assert_eq!(refused.kind(), ErrorKind::ConnectionReset);
    exchange(&mut open, b"still served").unwrap();
    open.shutdown(Shutdown::Write).unwrap();
    assert_eq!(open.read(&mut [0; 1]).unwrap(), 0);
    let started = std::time::Instant::now();
    scene.server.finish();
    assert!(
        started.elapsed() < Duration::from_secs(15),
        "it does not wait for the deadline without need"
    );
}

#[test]
fn the_application_can_call_others_while_its_proxy_drains() {
    let mut scene = Scene::new();
    scene.serve(8080, echo);
    let mut open = scene.connect(service(false));
    exchange(&mut open, b"before").unwrap();
    scene.client.stop();
    scene.client.draining();
    scene.attempt(service(false)).unwrap();
    drop(open);
    scene.client.finish();
}

#[test]
fn a_crowd_that_cannot_reach_a_pod_fails_together() {
    let scene = Scene::new();
    // A pod that is gone: nobody answers there, not even with a refusal.
    let gone = MESH.replace("addresses: [10.1.0.1, 'fd00:1::1']", "addresses: [10.1.0.77]");
    scene.client.learn(&gone);
    let started = std::time::Instant::now();
    let to = service(false);
    let streams: Vec<TcpStream> = (0..20).map(|_| scene.connect(to)).collect();
    for mut stream in streams {
        assert_eq!(
            stream.read(&mut [0; 1]).unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
    }
    assert!(
        started.elapsed() < Duration::from_secs(30),
        "twenty waited one after the other"
    );
}

#[test]
fn connections_share_a_tunnel_and_tunnels_follow_the_mesh() {
    let scene = Scene::new();
    scene.serve(8080, echo);
    let mut streams: Vec<TcpStream> = (0..50).map(|_| scene.connect(service(false))).collect();
    for stream in &mut streams {
        exchange(stream, b"shared").unwrap();
    }
    assert_eq!(scene.client.ctx.tunnels(), 1);
    // The pod is replaced: same address, same account, another uid.
    scene.learn(&MESH.replace("name: cart-0", "name: cart-1"));
    let started = std::time::Instant::now();
    while scene.client.ctx.tunnels() != 0 {
        assert!(started.elapsed() < PATIENCE, "the old tunnel still gets work");
        std::thread::yield_now();
    }
    for stream in &mut streams {
        exchange(stream, b"open ones go on").unwrap();
    }
    exchange(&mut scene.connect(service(false)), b"fresh").unwrap();
    assert_eq!(scene.client.ctx.tunnels(), 1);
}

#[test]
fn more_connections_than_a_tunnel_carries_all_work() {
    let scene = Scene::new();
    scene.serve(8080, echo);
    let mut streams: Vec<TcpStream> = (0..250).map(|_| scene.connect(service(false))).collect();
    for stream in &mut streams {
        exchange(stream, b"one of many").unwrap();
    }
}

#[test]
fn certificates_change_under_open_connections() {
    let scene = Scene::new();
    scene.serve(8080, echo);
    let mut open = scene.connect(service(false));
    exchange(&mut open, b"first certificate").unwrap();
    let server = identity(&scene.authority, "cart");
    let key = PrivateKey::generate().unwrap();
    let now = SystemTime::now();
    let request = key.request(&server.id()).unwrap();
    let issued = scene
        .authority
        .issue(&request, &server.id(), Duration::from_hours(2), now)
        .unwrap();
    let chain = Chain::from_pem(&issued.leaf).unwrap();
    let roots = Roots::from_pem(&issued.roots).unwrap();
    let renewed = Credentials::new(&key, chain, roots, &server.id(), now).unwrap();
    assert_eq!(scene.server.ctx.identity().install(renewed, now).unwrap(), 2);
    exchange(&mut open, b"second certificate").unwrap();
    exchange(&mut scene.connect(service(true)), b"a new tunnel, another family").unwrap();
}
