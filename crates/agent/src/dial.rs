//! Connections to the control plane: name to address, TCP, TLS, token.
//!
//! Roots and token are read for every connection, so that rotated files are picked up without watching them.

use crate::settings::{RootSource, Server, Upstream};
use remora_mtls::{PrivateKey, Roots, bootstrap_client, bootstrap_client_as};
use remora_proxy::dns::lookup::lookup;
use remora_xds::client::{Bytes, ControlPlane, Dial};
use rustls::pki_types::ServerName;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::metadata::{MetadataKey, MetadataMap};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Paths of the system's root bundle on common distributions.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// A client of the control plane.
pub(crate) fn control_plane(upstream: &Upstream, token: &Path) -> io::Result<ControlPlane> {
    let Server { host, port } = &upstream.server;
    let authority = match host.parse() {
        Ok(IpAddr::V6(v6)) => format!("[{v6}]:{port}"),
        _ => format!("{host}:{port}"),
    };
    let uri = format!("http://{authority}").parse().map_err(io::Error::other)?;
    let token = token.to_owned();
    let dial: Dial = {
        let upstream = upstream.clone();
        Arc::new(move || Box::pin(connect(upstream.clone())))
    };
    let plane = ControlPlane::new(uri, dial, Arc::new(move || read_token(&token)));
    Ok(plane
        .with_headers(headers(&upstream.headers)?)
        .with_largest_message(upstream.largest_message)
        .with_signer(&upstream.signer))
}

fn headers(given: &[(String, String)]) -> io::Result<MetadataMap> {
    let mut headers = MetadataMap::new();
    for (name, value) in given {
        let wrong = || {
            let text = format!("send {name} as a header: it holds printable characters only");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        let key = MetadataKey::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        headers.insert(key, value.parse().map_err(|_| wrong())?);
    }
    Ok(headers)
}

// istio: without a token the call is made all the same, and the control plane decides.
fn read_token(path: &PathBuf) -> io::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(token) => Ok(Some(token).filter(|token| !token.trim().is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

async fn connect(upstream: Upstream) -> io::Result<Box<dyn Bytes>> {
    // Before the network is used: a missing root certificate is the more useful error.
    let shown = upstream.certificate.as_ref();
    let config = upstream
        .roots
        .as_ref()
        .map(|roots| client_config(roots, shown))
        .transpose()?;
    let stream = tcp(&upstream.server).await?;
    let Some(config) = config else {
        return Ok(Box::new(stream));
    };
    let name = ServerName::try_from(upstream.name).map_err(io::Error::other)?;
    let tls = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    Ok(Box::new(tls))
}

fn client_config(
    source: &RootSource,
    shown: Option<&(PathBuf, PathBuf)>,
) -> io::Result<rustls::ClientConfig> {
    let pem = match source {
        RootSource::File(path) => read(path)?,
        RootSource::System => SYSTEM_ROOTS
            .iter()
            .find_map(|path| std::fs::read_to_string(path).ok())
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the system has no bundle of roots"))?,
    };
    let roots = Roots::from_pem(&pem).map_err(io::Error::other)?;
    // Provisioned certificates serve for the first connection only; when they are gone the token is used.
    let Some((chain, key)) = shown.filter(|(chain, key)| chain.exists() && key.exists()) else {
        return bootstrap_client(&roots).map_err(io::Error::other);
    };
    let key = PrivateKey::from_pem(&read(key)?).map_err(io::Error::other)?;
    bootstrap_client_as(&roots, &read(chain)?, &key).map_err(io::Error::other)
}

fn read(path: &Path) -> io::Result<String> {
    std::fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), format!("read {}: {error}", path.display())))
}

/// Tries the addresses of a name one after the other.
async fn tcp(server: &Server) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{} has no address", server.host));
    for address in addresses(server).await? {
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(error)) => {
                last = io::Error::new(error.kind(), format!("connect to {address}: {error}"));
            }
            Err(_) => {
                last = io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("connect to {address}: no answer"),
                );
            }
        }
    }
    Err(last)
}

async fn addresses(server: &Server) -> io::Result<Vec<SocketAddr>> {
    // An IP address needs no DNS lookup.
    if let Ok(address) = server.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, server.port)]);
    }
    let found = lookup(&server.host)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("look up {}: {error}", server.host)))?;
    Ok(found
        .into_iter()
        .map(|address| SocketAddr::new(address, server.port))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::connect;
    use crate::settings::{RootSource, Server, Upstream};
    use remora_mtls::{Authority, PrivateKey, SpiffeId};
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::server::WebPkiClientVerifier;
    use rustls::{RootCertStore, ServerConfig};
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    /// The control plane's configuration, which additionally requests a client certificate.
    fn asking(authority: &Authority) -> ServerConfig {
        let key = PrivateKey::generate().unwrap();
        let (life, now) = (Duration::from_hours(1), SystemTime::now());
        let own = authority
            .issue_server(&key, &["istiod".to_owned()], life, now)
            .unwrap();
        let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(der(&authority.roots())).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.to_pem().as_bytes()).unwrap();
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![der(&own.leaf)], key)
            .unwrap()
    }

    #[tokio::test]
    async fn a_certificate_that_was_provisioned_is_shown_while_it_is_there() {
        let authority = Authority::generate("test", SystemTime::now(), Duration::from_hours(1)).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let id = SpiffeId::of_service_account("cluster.local", "vm", "web").unwrap();
        let key = PrivateKey::generate().unwrap();
        let (life, now) = (Duration::from_hours(1), SystemTime::now());
        let issued = authority
            .issue(&key.request(&id).unwrap(), &id, life, now)
            .unwrap();
        for (name, text) in [
            ("root.pem", &authority.roots()),
            ("chain.pem", &issued.leaf),
            ("key.pem", &key.to_pem()),
        ] {
            std::fs::write(path(name), text).unwrap();
        }
        let acceptor = TlsAcceptor::from(Arc::new(asking(&authority)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Upstream {
            server: Server {
                host: "127.0.0.1".to_owned(),
                port: listener.local_addr().unwrap().port(),
            },
            roots: Some(RootSource::File(path("root.pem"))),
            name: "istiod".to_owned(),
            certificate: Some((path("chain.pem"), path("key.pem"))),
            headers: Vec::new(),
            signer: String::new(),
            largest_message: remora_xds::client::LARGEST_MESSAGE,
        };
        for shown in [true, false] {
            if !shown {
                std::fs::remove_file(path("chain.pem")).unwrap();
            }
            let connecting = tokio::spawn(connect(upstream.clone()));
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(stream).await.unwrap();
            let connection = connecting.await.unwrap().unwrap();
            drop(connection);
            // The handshake is complete when the end of the stream arrives.
            let _ = stream.read_u8().await;
            let certificates = stream.get_ref().1.peer_certificates().map(<[_]>::len);
            assert_eq!(certificates, shown.then_some(1));
        }
    }
}
