//! Every kind of caller against every mode, in both families.

use crate::peer::{ask, cart, connect, inside, tunnel};
use crate::scene::{MESH, PATIENCE, Scene, identity, identity_files};
use remora_mtls::{Authority, NoVerifier};
use remora_proxy::inbound::{Mode, Modes};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn certificate(directory: &Path) -> Pair {
    let chain = CertificateDer::pem_file_iter(directory.join("chain.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(directory.join("key.pem")).unwrap();
    (chain.collect::<Result<_, _>>().unwrap(), key)
}

/// An application that says first how it was spoken to, then repeats a word of four.
fn application((chain, key): Pair) -> impl Fn(TcpStream) + Send + Sync + Clone + 'static {
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let answer = |stream: &mut dyn ReadWrite, how: &[u8]| {
        let mut word = [0; 4];
        if stream.read_exact(&mut word).is_ok() {
            let _ = stream.write_all(&[how, &word].concat());
        }
    };
    move |mut stream: TcpStream| {
        let mut first = [0];
        if stream.peek(&mut first).is_ok_and(|count| count == 1) && first == [22] {
            let server = ServerConnection::new(Arc::clone(&config)).unwrap();
            answer(&mut StreamOwned::new(server, stream), b"own tls: ");
        } else {
            answer(&mut stream, b"plainly: ");
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

#[derive(Debug, Clone, Copy)]
enum Caller {
    Plaintext,
    /// The application's own TLS, without a certificate of the mesh.
    AppTls,
    /// A sidecar's TLS, offering these.
    Sidecar(&'static [&'static str]),
}

/// What the application said, if anything came.
fn call(caller: Caller, mut stream: TcpStream, mesh: &Pair) -> Option<String> {
    let mut heard = vec![0; 13];
    let mut talk = |stream: &mut dyn ReadWrite| {
        stream
            .write_all(b"word")
            .and_then(|()| stream.read_exact(&mut heard))
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(NoVerifier));
    let (mut config, protocols) = match caller {
        Caller::Plaintext => {
            return talk(&mut stream).ok().map(|()| String::from_utf8(heard).unwrap());
        }
        Caller::AppTls => (builder.with_no_client_auth(), &["h2", "http/1.1"][..]),
        Caller::Sidecar(protocols) => {
            let own = builder.with_client_auth_cert(mesh.0.clone(), mesh.1.clone_key());
            (own.unwrap(), protocols)
        }
    };
    config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("outbound_.80_._.cart.shop.svc.cluster.local").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let result = talk(&mut StreamOwned::new(client, stream));
    result.ok().map(|()| String::from_utf8(heard).unwrap())
}

#[test]
fn every_caller_in_every_mode_gets_what_the_mode_says() {
    const PLAIN: Option<&str> = Some("plainly: word");
    const OWN: Option<&str> = Some("own tls: word");
    let sidecar = Caller::Sidecar;
    // Permissive, strict, disable.
    let rows: [(Caller, [Option<&str>; 3]); 6] = [
        (Caller::Plaintext, [PLAIN, None, PLAIN]),
        (Caller::AppTls, [OWN, None, OWN]),
        (sidecar(&["istio"]), [PLAIN, PLAIN, OWN]),
        (sidecar(&["istio-peer-exchange", "istio"]), [PLAIN, PLAIN, OWN]),
        (
            sidecar(&["istio-http/1.1", "istio", "http/1.1"]),
            [PLAIN, PLAIN, OWN],
        ),
        (sidecar(&["istio-h2", "istio", "h2"]), [PLAIN, PLAIN, OWN]),
    ];
    let own = Authority::generate("app", SystemTime::now(), Duration::from_hours(1)).unwrap();
    let app = identity_files(&own, "app");
    for (place, mode) in [Mode::Permissive, Mode::Strict, Mode::Disable]
        .into_iter()
        .enumerate()
    {
        let modes = Modes {
            default: mode,
            ..Modes::default()
        };
        let scene = Scene::strictness(MESH, modes);
        scene.serve(8080, application(certificate(app.path())));
        let web = identity_files(&scene.authority, "web");
        let mesh = certificate(web.path());
        for ipv6 in [false, true] {
            let to = SocketAddr::new(scene.lab.eth0.peer(ipv6), 8080);
            for (caller, expected) in &rows {
                let stream = scene.outsider(to).unwrap();
                stream.set_write_timeout(Some(PATIENCE)).unwrap();
                let heard = call(*caller, stream, &mesh);
                assert_eq!(
                    heard.as_deref(),
                    expected[place],
                    "{caller:?} in {mode:?}, to {to}"
                );
                let record = scene.server.record();
                let known = record.source_id.is_some();
                let ended_here = expected[place] == PLAIN && !matches!(caller, Caller::Plaintext);
                assert_eq!(known, ended_here, "{caller:?} in {mode:?}: {record}");
            }
            // A tunnel is mutual TLS whatever the mode of the port.
            let identity = identity(&scene.authority, "web");
            let proxy = SocketAddr::new(to.ip(), 15008);
            let status = inside(&scene.lab.pod, async || {
                let mut requests = tunnel(&identity, proxy, &cart()).await.unwrap();
                ask(&mut requests, connect(to)).await
            });
            assert_eq!(status, 200, "{mode:?}");
            scene.server.record();
        }
    }
}
