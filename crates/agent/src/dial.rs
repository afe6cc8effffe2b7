//! Connections to the control plane: name to address, TCP, TLS, token.
//!
//! Roots and token are read for every connection, so that exchanged files are picked up without being watched.

use crate::resolve;
use crate::settings::{RootSource, Server, Upstream};
use remora_mtls::{Roots, bootstrap_client};
use remora_xds::client::{Bytes, ControlPlane, Dial};
use rustls::pki_types::ServerName;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Where systems keep the roots they believe.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// A client of a server of the control plane.
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
    Ok(ControlPlane::new(uri, dial, Arc::new(move || read_token(&token))))
}

// istio: without a token the call is made all the same, and the control plane says what it thinks of it.
fn read_token(path: &PathBuf) -> io::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(token) => Ok(Some(token).filter(|token| !token.trim().is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

async fn connect(upstream: Upstream) -> io::Result<Box<dyn Bytes>> {
    // Before the network is touched: a missing root is the first thing to say.
    let config = upstream.roots.as_ref().map(client_config).transpose()?;
    let stream = tcp(&upstream.server).await?;
    let Some(config) = config else {
        return Ok(Box::new(stream));
    };
    let name = ServerName::try_from(upstream.name).map_err(io::Error::other)?;
    let tls = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    Ok(Box::new(tls))
}

fn client_config(source: &RootSource) -> io::Result<rustls::ClientConfig> {
    let pem = match source {
        RootSource::File(path) => read(path)?,
        RootSource::System => SYSTEM_ROOTS
            .iter()
            .find_map(|path| std::fs::read_to_string(path).ok())
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the system has no bundle of roots"))?,
    };
    let roots = Roots::from_pem(&pem).map_err(io::Error::other)?;
    bootstrap_client(&roots).map_err(io::Error::other)
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
    // No name, no DNS.
    if let Ok(address) = server.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, server.port)]);
    }
    let found = resolve::lookup(&server.host)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("look up {}: {error}", server.host)))?;
    Ok(found
        .into_iter()
        .map(|address| SocketAddr::new(address, server.port))
        .collect())
}
