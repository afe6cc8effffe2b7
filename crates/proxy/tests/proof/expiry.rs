//! Tunnels end with the certificates they rest on, and rotation loses nothing.

use crate::lossless::Load;
use crate::peer::{ask, cart, connect, inside, tunnel};
use crate::scene::{MESH, PATIENCE, Proxy, Scene, credentials, echo, exchange, identity, limits, service};
use crate::time::{HOUR, Moved, domains, renewed, replaced};
use remora_mtls::{Authority, Identity};
use remora_proxy::Limits;
use remora_proxy::inbound::Modes;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// A tunnel of a client of the test's own: the first request is answered, `change` happens, the next one is refused in a
/// way that tells the client to ask again elsewhere, and the stream that was open goes on.
fn refused_after(scene: &Scene, change: impl FnOnce() + Send) {
    let own = scene.lab.eth0.peer(false);
    let web = identity(&scene.authority, "web");
    inside(&scene.lab.pod, async || {
        let mut requests = tunnel(&web, SocketAddr::new(own, 15008), &cart()).await.unwrap();
        let target = format!("{own}:8080");
        assert_eq!(ask(&mut requests, connect(&target)).await, 200);
        let (response, mut send) = requests.send_request(connect(&target), false).unwrap();
        let mut open = response.await.unwrap().into_body();
        change();
        let mut ready = requests.ready().await.unwrap();
        let (response, _send) = ready.send_request(connect(&target), false).unwrap();
        let error = response.await.unwrap_err();
        let refused = error.reason() == Some(h2::Reason::REFUSED_STREAM) || error.is_go_away();
        assert!(refused, "{error}");
        send.send_data("still open".into(), false).unwrap();
        let heard = tokio::time::timeout(PATIENCE, open.data()).await.unwrap();
        assert_eq!(heard.unwrap().unwrap(), "still open");
    });
}

#[test]
fn no_stream_is_admitted_after_the_certificate_of_the_client_expired() {
    let moved = Moved::default();
    let scene = replaced(MESH, |authority| {
        let own = credentials(authority, "cart", SystemTime::now());
        Identity::with_clock(domains(), own, moved.clock()).unwrap()
    });
    scene.serve(8080, echo);
    refused_after(&scene, || moved.by(HOUR + 600));
}

#[test]
fn no_stream_is_admitted_after_the_root_of_the_client_was_removed() {
    let scene = Scene::new();
    scene.serve(8080, echo);
    let now = SystemTime::now();
    let other = Authority::generate("other", now, Duration::from_hours(10)).unwrap();
    let next = renewed(&other, &scene.server);
    let server = Arc::clone(&scene.server.ctx);
    refused_after(&scene, move || {
        server.identity().install(next, now).unwrap();
    });
}

/// Nobody uses the tunnel, and it would be kept for minutes.
#[test]
fn a_tunnel_is_closed_when_the_certificate_of_its_client_expires() {
    let scene = Scene::new();
    let proxy = SocketAddr::new(scene.lab.eth0.peer(false), 15008);
    let started = Instant::now();
    // A busy machine may need longer for the handshake than the certificate lives.
    while !expires(&scene, proxy) {
        assert!(started.elapsed() < PATIENCE, "no handshake in time");
    }
}

fn expires(scene: &Scene, proxy: SocketAddr) -> bool {
    let issued = SystemTime::now() - Duration::from_hours(1) + Duration::from_secs(4);
    let short = credentials(&scene.authority, "web", issued);
    let web = Identity::new(domains(), short).unwrap();
    inside(&scene.lab.pod, async || {
        let Ok(requests) = tunnel(&web, proxy, &cart()).await else {
            return false;
        };
        let mut closed = requests.clone();
        let closed = async {
            while let Ok(ready) = closed.ready().await {
                closed = ready;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, closed).await.unwrap();
        true
    })
}

#[test]
fn open_connections_end_when_the_grace_after_expiry_is_over() {
    let istio = MESH.replace("tunnel: hbone\nservices", "tunnel: istio-mtls\nservices");
    for mesh in [MESH, &istio] {
        let mut scene = Scene::guarded(Limits {
            certificate_grace: Duration::ZERO,
            ..limits()
        });
        scene.learn(mesh);
        scene.serve(8080, echo);
        let started = Instant::now();
        loop {
            let issued = SystemTime::now() - Duration::from_hours(1) + Duration::from_secs(4);
            let short = credentials(&scene.authority, "web", issued);
            let short = Arc::new(Identity::new(domains(), short).unwrap());
            let sockets = scene.client.sockets.share();
            scene.client.stop();
            scene.client.finish();
            scene.client = Proxy::start(&scene.lab.pod, sockets, short, Modes::default(), limits());
            scene.client.learn(mesh);
            let mut open = scene.connect(service(false));
            // A busy machine may need longer than the certificate lives.
            if exchange(&mut open, b"while it is valid").is_err() {
                assert!(started.elapsed() < PATIENCE, "no handshake in time");
                continue;
            }
            let ended = std::io::Read::read(&mut open, &mut [0; 8]);
            let closed = matches!(&ended, Ok(0))
                || ended
                    .as_ref()
                    .is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
            assert!(closed, "{ended:?}");
            break;
        }
    }
}

#[test]
fn a_client_opens_no_stream_to_a_server_whose_certificate_expired() {
    let moved = Moved::default();
    let mut scene = Scene::new();
    scene.serve(8080, echo);
    let own = credentials(&scene.authority, "web", SystemTime::now());
    let own = Identity::with_clock(domains(), own, moved.clock()).unwrap();
    let sockets = scene.client.sockets.share();
    scene.client.stop();
    scene.client.finish();
    scene.client = Proxy::start(&scene.lab.pod, sockets, Arc::new(own), Modes::default(), limits());
    scene.client.learn(MESH);
    let mut open = scene.connect(service(false));
    exchange(&mut open, b"a tunnel").unwrap();
    moved.by(HOUR + 600);
    assert_eq!(scene.failure(service(false)), ErrorKind::ConnectionReset);
    exchange(&mut open, b"a stream that was open goes on").unwrap();
    moved.by(0);
    exchange(&mut scene.connect(service(false)), b"right again").unwrap();
}

#[test]
fn certificates_rotate_under_load_and_nothing_is_lost() {
    let scene = Scene::new();
    scene.serve(8080, echo);
    let load = Load::start(&scene, 4);
    let mut open = scene.connect(service(false));
    load.more(20);
    for _ in 0..10 {
        for proxy in [&scene.client, &scene.server] {
            let next = renewed(&scene.authority, proxy);
            let _ = proxy.ctx.identity().install(next, SystemTime::now());
            load.more(10);
        }
        exchange(&mut open, b"from the first certificate on").unwrap();
    }
    load.end();
    assert!(scene.client.ctx.identity().generation_number() > 1);
}
