//! How connections end: resets in both directions, peers that vanish, come back as somebody else, or never speak;
//! and a pod that calls itself.

use crate::peer::{as_user, exchange as say};
use crate::scene::{APP, MESH, PATIENCE, Proxy, Scene, echo, exchange, identity, limits, service};
use remora_proxy::Limits;
use remora_proxy::inbound::{Mode, Modes};
use remora_testkit::Actor;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

/// By tunnel, as between Istio's sidecars, and plainly.
fn ways() -> [String; 3] {
    ["hbone", "istio-mtls", "none"]
        .map(|way| MESH.replace("tunnel: hbone\nservices", &format!("tunnel: {way}\nservices")))
}

#[test]
fn a_reset_arrives_as_a_reset_on_every_way_in_both_directions() {
    for mesh in ways() {
        let scene = Scene::with(&mesh);
        let (tell, heard) = channel();
        scene.serve(8080, move |mut stream: TcpStream| {
            let mut word = [0; 5];
            stream.read_exact(&mut word).unwrap();
            // One byte too many, by which the other side can make its end a reset: it closes with that unread.
            stream.write_all(&[&word[..], b"!"].concat()).unwrap();
            if &word == b"reset" {
                stream.peek(&mut [0]).unwrap();
                return;
            }
            let _ = tell.send(stream.read(&mut word).map_err(|error| error.kind()));
        });
        for ipv6 in [false, true] {
            let mut stream = scene.connect(service(ipv6));
            stream.write_all(b"reset!").unwrap();
            let end = stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
            assert_eq!(end, Err(ErrorKind::ConnectionReset), "from the server: {mesh}");
            let mut stream = scene.connect(service(ipv6));
            exchange(&mut stream, b"hello").unwrap();
            stream.peek(&mut [0]).unwrap();
            drop(stream);
            let end = heard.recv_timeout(PATIENCE).unwrap();
            assert_eq!(end, Err(ErrorKind::ConnectionReset), "from the client: {mesh}");
            let mut stream = scene.connect(service(ipv6));
            exchange(&mut stream, b"hello").unwrap();
            stream.read_exact(&mut [0]).unwrap();
            drop(stream);
            assert_eq!(
                heard.recv_timeout(PATIENCE).unwrap(),
                Ok(0),
                "an end is no reset: {mesh}"
            );
        }
    }
}

#[test]
fn a_pod_reaches_itself_by_its_service_and_by_its_address() {
    for mesh in ways() {
        let scene = Scene::with(&mesh);
        scene.serve(8080, echo);
        as_user(&scene.lab.peer, APP, async || {
            for ipv6 in [false, true] {
                for to in [service(ipv6), SocketAddr::new(scene.lab.eth0.peer(ipv6), 8080)] {
                    let mut stream = tokio::net::TcpStream::connect(to).await.unwrap();
                    say(&mut stream, b"is it me?")
                        .await
                        .unwrap_or_else(|error| panic!("{to}: {error} {mesh}"));
                }
            }
        });
    }
}

/// The address is used again, by a pod of another account, before discovery knows.
#[test]
fn a_pod_that_comes_back_as_somebody_else_is_not_taken_for_the_old_one() {
    for mesh in &ways()[..2] {
        let mut scene = Scene::with(mesh);
        scene.serve(8080, echo);
        exchange(&mut scene.connect(service(false)), b"the old one").unwrap();
        let sockets = scene.server.sockets.share();
        scene.server.stop();
        scene.server.finish();
        let vault = identity(&scene.authority, "vault");
        scene.server = Proxy::start(&scene.lab.peer, sockets, vault, Modes::default(), limits());
        let news = mesh
            .replace("serviceAccount: cart", "serviceAccount: vault")
            .replace("cart-0", "vault-0");
        scene.server.learn(&news);
        assert_eq!(scene.failure(service(false)), ErrorKind::ConnectionReset);
        scene.client.learn(&news);
        exchange(&mut scene.connect(service(false)), b"the new one").unwrap();
    }
}

#[test]
fn a_peer_that_vanishes_without_a_word_is_given_up() {
    let scene = Scene::new();
    scene.serve(8080, echo);
    let mut open = scene.connect(service(false));
    exchange(&mut open, b"here").unwrap();
    Actor::root(&scene.lab.peer).run(|| {
        let index = remora_net::link::index("pod0").unwrap();
        remora_net::link::set_down(&mut remora_net::link::socket().unwrap(), index).unwrap();
    });
    // The tunnel asks every ten seconds and waits for twenty.
    let end = open.read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
}

#[test]
fn who_says_nothing_is_not_waited_for_and_who_moves_nothing_is_cut() {
    let mut scene = Scene::new();
    scene.serve(8080, echo);
    let sockets = scene.server.sockets.share();
    scene.server.stop();
    scene.server.finish();
    let hasty = Limits {
        handshake: Duration::from_millis(200),
        idle: Duration::from_millis(200),
        ..limits()
    };
    let modes = Modes {
        default: Mode::Strict,
        ..Modes::default()
    };
    let cart = identity(&scene.authority, "cart");
    scene.server = Proxy::start(&scene.lab.peer, sockets, cart, modes, hasty);
    scene.server.learn(MESH);
    for (port, start, expected) in [
        (8080, &b""[..], "in time"),
        (8080, &[22, 3, 1, 2, 0, 1, 0], "in time"),
        (15008, b"", "the handshake took too long"),
        (15008, &[22, 3, 1, 2, 0, 1, 0], "the handshake took too long"),
    ] {
        let to = SocketAddr::new(scene.lab.eth0.peer(false), port);
        let mut stream = scene.outsider(to).unwrap();
        stream.write_all(start).unwrap();
        let _ = stream.read(&mut [0; 1]);
        let error = scene.server.record().error.unwrap();
        assert!(error.contains(expected), "{port}: {error}");
    }
    let mut open = scene.connect(service(false));
    exchange(&mut open, b"and then nothing").unwrap();
    let end = open.read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    assert!(scene.server.record().error.unwrap().contains("nothing moved"));
}
