//! Connections to the pod's ports that come without a tunnel, in every mode.

use crate::scene::{MESH, PATIENCE, Scene, echo, exchange, identity, service};
use remora_mtls::{AlpnProfile, Identity, SpiffeId};
use remora_proxy::inbound::{Mode, Modes};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;

/// The server is reached as an Istio sidecar is.
fn istio() -> String {
    MESH.replace("tunnel: hbone\nservices", "tunnel: istio-mtls\nservices")
}

fn scene(mode: Mode) -> Scene {
    let modes = Modes {
        default: mode,
        ..Modes::default()
    };
    Scene::strictness(&istio(), modes)
}

fn port(scene: &Scene, port: u16) -> SocketAddr {
    SocketAddr::new(scene.lab.eth0.peer(false), port)
}

/// A TLS client with the protocols it offers, without the first byte sent.
fn tls(
    identity: &Identity,
    stream: TcpStream,
    protocols: &[&str],
) -> StreamOwned<ClientConnection, TcpStream> {
    let cart: SpiffeId = "spiffe://td/ns/shop/sa/cart".parse().unwrap();
    let mut config: ClientConfig = (*identity.client(&[cart], AlpnProfile::Istio).unwrap()).clone();
    config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
    let name = "outbound_.80_._.cart.shop.svc.cluster.local".try_into().unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
}

#[test]
fn a_sidecar_of_istios_kind_is_reached_and_known_in_both_families() {
    for mode in [Mode::Permissive, Mode::Strict] {
        let scene = scene(mode);
        scene.serve(8080, echo);
        for ipv6 in [false, true] {
            exchange(&mut scene.connect(service(ipv6)), b"mutual").unwrap();
            let record = scene.server.record();
            assert_eq!(
                record.source_id.unwrap().as_str(),
                "spiffe://td/ns/shop/sa/web",
                "{mode:?}"
            );
            assert_eq!(scene.client.record().error, None);
        }
    }
}

#[test]
fn plaintext_passes_where_it_is_allowed_and_only_there() {
    for mode in [Mode::Permissive, Mode::Disable] {
        let scene = scene(mode);
        let (seen, callers) = channel();
        scene.serve(8080, move |stream: TcpStream| {
            seen.send(stream.peer_addr().unwrap().ip().to_string()).unwrap();
            echo(stream);
        });
        exchange(
            &mut scene.outsider(port(&scene, 8080)).unwrap(),
            b"GET / HTTP/1.1\r\n",
        )
        .unwrap();
        assert_eq!(callers.recv_timeout(PATIENCE).unwrap(), "127.0.0.6");
        let record = scene.server.record();
        assert_eq!(
            (record.source_id, record.destination.port()),
            (None, 8080),
            "{mode:?}"
        );
    }
    let scene = scene(Mode::Strict);
    scene.serve(8080, echo);
    let refused = scene
        .outsider(port(&scene, 8080))
        .and_then(|mut stream| exchange(&mut stream, b"GET / HTTP/1.1\r\n"));
    assert!(refused.is_err());
    let error = scene.server.record().error.unwrap();
    assert!(
        error.contains("plaintext where mutual TLS is required"),
        "{error}"
    );
}

#[test]
fn a_server_that_speaks_first_is_never_kept_waiting() {
    for mode in [Mode::Permissive, Mode::Disable] {
        let scene = scene(mode);
        scene.serve(3306, |mut stream: TcpStream| {
            stream.write_all(b"greeting").unwrap();
            echo(stream);
        });
        let mut stream = scene.outsider(port(&scene, 3306)).unwrap();
        let mut greeting = [0; 8];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"greeting", "{mode:?}");
        exchange(&mut stream, b"login").unwrap();
    }
}

#[test]
fn a_hello_that_comes_late_is_still_understood() {
    let scene = scene(Mode::Permissive);
    let (accepted, arrivals) = channel();
    scene.serve(8080, move |stream: TcpStream| {
        accepted.send(()).unwrap();
        echo(stream);
    });
    let stream = scene.outsider(port(&scene, 8080)).unwrap();
    // The proxy has given up waiting and asked the application, which is silent.
    arrivals.recv_timeout(PATIENCE).unwrap();
    let web = identity(&scene.authority, "web");
    let mut tls = tls(&web, stream, &["istio"]);
    tls.write_all(b"late").unwrap();
    let mut heard = [0; 4];
    tls.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"late");
    drop(tls);
    assert!(scene.server.record().source_id.is_some());
}

#[test]
fn the_applications_own_tls_passes_untouched_unless_strict() {
    let scene = scene(Mode::Permissive);
    let (say, heard) = channel();
    scene.serve(8443, move |mut stream: TcpStream| {
        let mut start = [0; 3];
        stream.read_exact(&mut start).unwrap();
        say.send(start).unwrap();
    });
    let web = identity(&scene.authority, "web");
    let stream = scene.outsider(port(&scene, 8443)).unwrap();
    let mut hello = tls(&web, stream, &["h2", "http/1.1"]);
    // The application here answers nothing, so the handshake does not end.
    let _ = hello.flush();
    let start = heard.recv_timeout(PATIENCE).unwrap();
    assert_eq!(start, [22, 3, 1], "the application gets the hello itself");
    // All rows of Istio's table that offer a protocol of Istio's are ended here.
    scene.serve(8080, echo);
    for offered in [
        &["istio-peer-exchange", "istio"][..],
        &["istio-http/1.1", "istio", "http/1.1"],
        &["istio-h2", "istio", "h2"],
    ] {
        let mut mutual = tls(&web, scene.outsider(port(&scene, 8080)).unwrap(), offered);
        mutual.write_all(b"hi").unwrap();
        let mut heard = [0; 2];
        mutual.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hi", "{offered:?}");
    }
}

#[test]
fn a_policy_on_callers_holds_for_those_without_a_name() {
    let policy = "---\nkind: Policy\nname: p\nnamespace: shop\nrules: [{from: [{principals: ['*']}]}]\n";
    let scene = Scene::with(&format!("{}{policy}", istio()));
    scene.serve(8080, echo);
    exchange(&mut scene.connect(service(false)), b"with a name").unwrap();
    assert_eq!(scene.server.record().error, None);
    let refused = scene
        .outsider(port(&scene, 8080))
        .and_then(|mut stream| exchange(&mut stream, b"without"));
    assert!(refused.is_err());
    assert!(
        scene
            .server
            .record()
            .error
            .unwrap()
            .contains("no policy allows it")
    );
}

#[test]
fn a_stranger_of_istios_kind_is_refused() {
    let scene = scene(Mode::Permissive);
    scene.serve(8080, echo);
    let now = std::time::SystemTime::now();
    let theirs = remora_mtls::Authority::generate("test", now, std::time::Duration::from_hours(1)).unwrap();
    let stranger = identity(&theirs, "web");
    let mut tls = tls(&stranger, scene.outsider(port(&scene, 8080)).unwrap(), &["istio"]);
    assert!(
        tls.write_all(b"x")
            .and_then(|()| tls.read_exact(&mut [0; 1]))
            .is_err()
    );
    assert!(scene.server.record().error.unwrap().contains("TLS handshake"));
}
