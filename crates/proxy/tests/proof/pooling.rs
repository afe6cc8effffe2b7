//! Tunnels: how many, whose, and what becomes of those that close.

use crate::peer::{Server, cart, connect, echo_tunnel, inside, tunnel};
use crate::scene::{MESH, Scene, echo, exchange, identity, service};
use remora_testkit::Actor;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The mesh with the service's workload in another place.
fn elsewhere(address: std::net::IpAddr) -> String {
    MESH.replace(
        "addresses: [10.1.0.1, 'fd00:1::1']",
        &format!("addresses: [{address}]"),
    )
}

#[test]
fn a_peer_that_allows_few_streams_gets_more_tunnels() {
    let scene = Scene::new();
    let (namespace, addresses) = scene.lab.attach("eth1", 3);
    let cart = identity(&scene.authority, "cart");
    let tunnels = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tunnels);
    let at = SocketAddr::new(addresses.peer(false), 15008);
    let _peer = Server::start(&namespace, at, move |stream| {
        count.fetch_add(1, Ordering::Relaxed);
        echo_tunnel(stream, Arc::clone(&cart), 5)
    });
    scene.client.learn(&elsewhere(addresses.peer(false)));
    let mut open: Vec<TcpStream> = Vec::new();
    for _ in 0..23 {
        let mut stream = scene.connect(service(false));
        exchange(&mut stream, b"one of five").unwrap();
        open.push(stream);
    }
    for stream in &mut open {
        exchange(stream, b"all at once").unwrap();
    }
    assert_eq!(tunnels.load(Ordering::Relaxed), 5, "five for each");
}

#[test]
fn a_thousand_dials_at_once_share_as_few_tunnels_as_can_carry_them() {
    let scene = Scene::new();
    let (namespace, addresses) = scene.lab.attach("eth1", 3);
    let cart = identity(&scene.authority, "cart");
    let tunnels = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tunnels);
    let at = SocketAddr::new(addresses.peer(false), 15008);
    let _peer = Server::start(&namespace, at, move |stream| {
        count.fetch_add(1, Ordering::Relaxed);
        echo_tunnel(stream, Arc::clone(&cart), 200)
    });
    scene.client.learn(&elsewhere(addresses.peer(false)));
    let to = service(false);
    // Opened in a row without waiting for anything: the proxy sees them together.
    let mut streams: Vec<TcpStream> = scene.app.run(move || {
        let dial = |_| TcpStream::connect(to).unwrap();
        (0..1000).map(dial).collect()
    });
    for stream in &mut streams {
        stream.set_read_timeout(Some(crate::scene::PATIENCE)).unwrap();
        exchange(stream, b"one of a thousand").unwrap();
    }
    let made = tunnels.load(Ordering::Relaxed);
    assert!((5..=10).contains(&made), "{made} tunnels for 1000 connections");
}

#[test]
fn ports_towards_the_application_do_not_run_out() {
    let scene = Scene::new();
    Actor::root(&scene.lab.peer).run(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40039").unwrap();
    });
    // Each connection keeps its port for a minute after it ended, but only towards one port of the application.
    let ports = 9000..9010;
    for port in ports.clone() {
        scene.serve(port, echo);
    }
    for port in ports {
        for number in 0..20 {
            let to = SocketAddr::new(scene.lab.eth0.peer(false), port);
            scene
                .attempt(to)
                .unwrap_or_else(|error| panic!("connection {number} to {port}: {error}"));
        }
    }
}

#[test]
fn a_caller_that_gives_up_leaves_nothing_behind() {
    let scene = Scene::new();
    // An application that does not answer: its queue is full.
    let deaf = scene.server_app.run(|| {
        let socket = std::net::TcpListener::bind("10.1.0.1:9999").unwrap();
        remora_net::socket::set_backlog(&socket, 0).unwrap();
        let waiting: Vec<_> = (0..4)
            .filter_map(|_| {
                let to = "10.1.0.1:9999".parse().unwrap();
                TcpStream::connect_timeout(&to, std::time::Duration::from_millis(200)).ok()
            })
            .collect();
        (socket, waiting)
    });
    let web = identity(&scene.authority, "web");
    let proxy = SocketAddr::new(scene.lab.eth0.peer(false), 15008);
    inside(&scene.lab.pod, async || {
        let mut requests = tunnel(&web, proxy, &cart()).await.unwrap();
        let (response, mut send) = requests.send_request(connect("10.1.0.1:9999"), false).unwrap();
        let early = tokio::time::timeout(std::time::Duration::from_millis(100), response).await;
        assert!(early.is_err(), "the application does not answer");
        send.send_reset(h2::Reason::CANCEL);
        // The tunnel must live until the reset has been sent.
        crate::peer::ask(&mut requests, connect("10.9.9.9:80")).await;
    });
    let errors: Vec<_> = (0..2).map(|_| scene.server.record().error.unwrap()).collect();
    assert!(
        errors.iter().any(|e| e.contains("the caller gave up")),
        "{errors:?}"
    );
    drop(deaf);
}
