//! What a proxy answers to requests in a tunnel, asked by a client of the test's own.

use crate::scene::{MESH, Scene, echo, identity};
use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request, StatusCode, Version};
use remora_mtls::{AlpnProfile, Identity, SpiffeId};
use remora_net::Namespace;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// Runs in the client's pod, as the proxy's user so that nothing is captured.
pub(crate) fn inside<T: Send>(namespace: &Namespace, work: impl AsyncFnOnce() -> T + Send) -> T {
    let run = || {
        namespace.enter().unwrap();
        remora_net::privilege::become_user(1337, 1337).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(work())
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

pub(crate) async fn tunnel(
    identity: &Identity,
    proxy: SocketAddr,
    peer: &SpiffeId,
) -> std::io::Result<(SendRequest<Bytes>, Connection)> {
    let config = identity
        .client(std::slice::from_ref(peer), AlpnProfile::Hbone)
        .unwrap();
    let stream = tokio::net::TcpStream::connect(proxy).await?;
    let name = rustls::pki_types::ServerName::IpAddress(proxy.ip().into());
    let tls = TlsConnector::from(config).connect(name, stream).await?;
    h2::client::handshake(tls).await.map_err(std::io::Error::other)
}

/// To be driven by somebody.
type Connection = h2::client::Connection<tokio_rustls::client::TlsStream<tokio::net::TcpStream>, Bytes>;

async fn ask(requests: &mut SendRequest<Bytes>, method: Method, target: &str) -> StatusCode {
    let request = Request::builder()
        .method(method)
        .version(Version::HTTP_2)
        .uri(target)
        .body(())
        .unwrap();
    let (response, _send) = requests.send_request(request, false).unwrap();
    response.await.unwrap().status()
}

#[test]
fn answers_say_what_was_wrong() {
    let policy =
        "---\nkind: Policy\nname: p\nnamespace: shop\naction: DENY\nrules: [{to: [{ports: [6666]}]}]\n";
    let scene = Scene::with(&format!("{MESH}{policy}"));
    scene.serve(8080, echo);
    let own = scene.lab.eth0.peer(false);
    let proxy = SocketAddr::new(own, 15008);
    let web = identity(&scene.authority, "web");
    let cart: SpiffeId = "spiffe://td/ns/shop/sa/cart".parse().unwrap();
    let answers = inside(&scene.lab.pod, async || {
        let (mut requests, connection) = tunnel(&web, proxy, &cart).await.unwrap();
        tokio::spawn(connection);
        let mut answers = Vec::new();
        for (method, target) in [
            (Method::CONNECT, format!("{own}:8080")),
            (Method::GET, format!("https://{own}:8080/")),
            (Method::CONNECT, "10.9.9.9:8080".to_owned()),
            (Method::CONNECT, "127.0.0.1:8080".to_owned()),
            (Method::CONNECT, "cart.shop:8080".to_owned()),
            (Method::CONNECT, "cart.shop.svc.cluster.local:80".to_owned()),
            (Method::CONNECT, format!("{own}:15006")),
            (Method::CONNECT, format!("{own}:6666")),
            (Method::CONNECT, format!("{own}:7777")),
        ] {
            answers.push(ask(&mut requests, method, &target).await.as_u16());
        }
        answers
    });
    assert_eq!(answers, [200, 400, 400, 400, 400, 200, 503, 401, 503]);
}

#[test]
fn a_stranger_gets_no_tunnel() {
    let scene = Scene::new();
    let proxy = SocketAddr::new(scene.lab.eth0.peer(false), 15008);
    let now = std::time::SystemTime::now();
    let theirs = remora_mtls::Authority::generate("test", now, std::time::Duration::from_hours(1)).unwrap();
    let stranger: Arc<Identity> = identity(&theirs, "web");
    let cart: SpiffeId = "spiffe://td/ns/shop/sa/cart".parse().unwrap();
    let refused = inside(&scene.lab.pod, async || {
        tunnel(&stranger, proxy, &cart).await.is_err()
    });
    assert!(refused);
    assert!(scene.server.record().error.unwrap().contains("TLS handshake"));
}
