//! What one caller can do to a proxy, and what others notice of it.

use crate::scene::{PATIENCE, Scene, echo, exchange, identity, limits, service};
use crate::tunnel::{inside, tunnel};
use http::{Method, Request, Version};
use remora_mtls::SpiffeId;
use remora_proxy::Limits;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

fn cart() -> SpiffeId {
    "spiffe://td/ns/shop/sa/cart".parse().unwrap()
}

#[test]
fn a_source_that_proves_nothing_is_refused_and_disturbs_nobody_else() {
    let scene = Scene::guarded(Limits {
        judged: 4,
        ..limits()
    });
    scene.serve(8080, echo);
    let proxy = SocketAddr::new(scene.lab.eth0.peer(false), 15008);
    let silent: Vec<TcpStream> = (0..4).map(|_| scene.outsider(proxy).unwrap()).collect();
    let refused = scene
        .outsider(proxy)
        .and_then(|mut stream| exchange(&mut stream, b"fifth"));
    assert!(refused.is_err());
    let record = scene.server.record();
    assert_eq!(record.source.ip(), scene.lab.eth0.pod(false));
    assert!(record.error.unwrap().contains("wait to be judged"));
    // Another source: the same pod by its other address.
    exchange(&mut scene.connect(service(true)), b"not disturbed").unwrap();
    drop(silent);
    // There is room again as soon as the proxy has noticed.
    let started = Instant::now();
    while scene.attempt(service(false)).is_err() {
        assert!(started.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

/// The proxy cannot see that a request is only half sent: the connections are open, and stay open.
#[test]
fn one_plaintext_source_cannot_take_the_connections_of_mesh_peers() {
    let scene = Scene::guarded(Limits {
        connections: 40,
        ..limits()
    });
    scene.serve(8080, echo);
    let application = SocketAddr::new(scene.lab.eth0.peer(false), 8080);
    let mut held = Vec::new();
    for _ in 0..150 {
        let Ok(mut stream) = scene.outsider(application) else {
            continue;
        };
        if exchange(&mut stream, b"GET / HTTP/1.1\r\n").is_ok() {
            held.push(stream);
        }
    }
    assert!(
        held.len() >= 30,
        "an idle proxy gives one source nearly everything: {}",
        held.len()
    );
    // A mesh client with another address, then one that shares the address of the flood.
    for ipv6 in [true, false] {
        for request in 0..20 {
            let answered = scene.attempt(service(ipv6));
            assert!(answered.is_ok(), "request {request}, IPv6 {ipv6}: {answered:?}");
        }
    }
}

/// More connections of mesh peers than the reserve holds: connections without an identity make room.
#[test]
fn plaintext_connections_make_room_for_mesh_peers() {
    let scene = Scene::guarded(Limits {
        connections: 40,
        ..limits()
    });
    scene.serve(8080, echo);
    let application = SocketAddr::new(scene.lab.eth0.peer(false), 8080);
    let mut plaintext = Vec::new();
    for _ in 0..34 {
        let mut stream = scene.outsider(application).unwrap();
        exchange(&mut stream, b"GET / HTTP/1.1\r\n").unwrap();
        plaintext.push(stream);
    }
    let mut kept = Vec::new();
    for _ in 0..20 {
        let mut stream = scene.connect(service(false));
        exchange(&mut stream, b"with an identity").unwrap();
        kept.push(stream);
    }
    for stream in &mut kept {
        exchange(stream, b"still there").unwrap();
    }
    let closed = plaintext
        .iter_mut()
        .filter_map(|stream| exchange(stream, b"rest").err());
    assert!(closed.count() >= 14, "they made room");
    let errors: Vec<String> = scene
        .server
        .records
        .try_iter()
        .filter_map(|record| record.error)
        .collect();
    assert!(
        errors.iter().any(|error| error.contains("make room")),
        "{errors:?}"
    );
}

#[test]
fn requests_that_are_taken_back_too_fast_end_their_tunnel() {
    let scene = Scene::guarded(Limits {
        // Nobody is answered before the test is over.
        discovery: PATIENCE,
        ..limits()
    });
    // The workload is not known: every request waits for discovery.
    scene.server.learn("kind: Policy\nname: p\nnamespace: x\n");
    let own = scene.lab.eth0.peer(false);
    let proxy = SocketAddr::new(own, 15008);
    let web = identity(&scene.authority, "web");
    let error = inside(&scene.lab.pod, async || {
        let (mut requests, connection) = tunnel(&web, proxy, &cart()).await.unwrap();
        let ended = tokio::spawn(connection);
        // Far more than it takes.
        for _ in 0..50_000 {
            let request = Request::builder()
                .method(Method::CONNECT)
                .version(Version::HTTP_2)
                .uri(format!("{own}:8080"))
                .body(())
                .unwrap();
            let Ok(ready) = requests.ready().await else { break };
            requests = ready;
            let Ok((answer, mut send)) = requests.send_request(request, false) else {
                break;
            };
            // Sent before it is taken back.
            tokio::task::yield_now().await;
            send.send_reset(h2::Reason::CANCEL);
            drop(answer);
            if ended.is_finished() {
                break;
            }
        }
        tokio::time::timeout(PATIENCE, ended)
            .await
            .unwrap()
            .unwrap()
            .unwrap_err()
    });
    // The last words may be overtaken by the end of the connection.
    assert!(
        error.is_io() || error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM),
        "{error}"
    );
}

#[test]
fn a_tunnel_that_nobody_uses_is_closed() {
    let scene = Scene::guarded(Limits {
        pool_idle: Duration::from_millis(50),
        ..limits()
    });
    scene.serve(8080, echo);
    // One that is used stays open, however little moves in it.
    let mut stream = scene.connect(service(false));
    exchange(&mut stream, b"before").unwrap();
    let proxy = SocketAddr::new(scene.lab.eth0.peer(false), 15008);
    let web = identity(&scene.authority, "web");
    for _ in 0..3 {
        inside(&scene.lab.pod, async || {
            let (_requests, connection) = tunnel(&web, proxy, &cart()).await.unwrap();
            let _ = tokio::time::timeout(PATIENCE, connection).await.unwrap();
        });
    }
    exchange(&mut stream, b"after").unwrap();
}
