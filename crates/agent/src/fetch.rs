//! HTTP requests of the agent to the application, for probes and metrics.
//!
//! One request per connection, as the kubelet does, so that no idle connection delays an application that stops. Every
//! response body is truncated at a size that the caller chooses.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

/// A GET request.
#[derive(Debug, Clone)]
pub(crate) struct Get {
    pub(crate) to: SocketAddr,
    pub(crate) tls: bool,
    /// Value of the `Host` header.
    pub(crate) host: String,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    /// Size limit of the body, in bytes.
    pub(crate) most: usize,
}

/// The response.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Whether the body was truncated.
    pub(crate) cut: bool,
}

/// Connects to the pod's own application.
// istio: from 127.0.0.6 or ::6; the capture rules exempt these source addresses.
pub(crate) async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let (socket, from): (_, IpAddr) = match to {
        SocketAddr::V4(_) => (TcpSocket::new_v4()?, Ipv4Addr::new(127, 0, 0, 6).into()),
        SocketAddr::V6(_) => (TcpSocket::new_v6()?, Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6).into()),
    };
    // ::6 exists only where it was added to the interface; otherwise the kernel chooses the source.
    let _ = socket.bind(SocketAddr::new(from, 0));
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Get {
    /// Sends the request and reads the response.
    pub(crate) async fn send(self) -> io::Result<Got> {
        let stream = connect(self.to).await?;
        if !self.tls {
            return match self.clone().http1(stream).await {
                // An application that supports only HTTP/2 sends its preface first, which is not an HTTP/1 response.
                Err(error) if is_no_http1(&error) => {
                    let again = connect(self.to).await?;
                    self.http2(again).await
                }
                answer => answer,
            };
        }
        let config = remora_mtls::probe_client(&[b"h2", b"http/1.1"]).map_err(io::Error::other)?;
        let name = ServerName::from(self.to.ip());
        let tls = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        if tls.get_ref().1.alpn_protocol() == Some(b"h2") {
            return self.http2(tls).await;
        }
        self.http1(tls).await
    }

    async fn http1(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> io::Result<Got> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let driving = tokio::spawn(connection);
        let mut request = self.request(self.path.parse().map_err(io::Error::other)?);
        request
            .headers_mut()
            .insert("connection", http::HeaderValue::from_static("close"));
        request
            .headers_mut()
            .insert("host", self.host.parse().map_err(io::Error::other)?);
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        let got = self.receive(answer).await;
        driving.abort();
        got
    }

    async fn http2(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> io::Result<Got> {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .map_err(io::Error::other)?;
        let driving = tokio::spawn(connection);
        let scheme = if self.tls { "https" } else { "http" };
        let uri = format!("{scheme}://{}{}", self.host, self.path);
        let request = self.request(uri.parse().map_err(io::Error::other)?);
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        let got = self.receive(answer).await;
        driving.abort();
        got
    }

    fn request(&self, uri: Uri) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::default());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        // These headers belong to one connection or body, not to the request; the HTTP library sets its own.
        for name in [
            "connection",
            "host",
            "content-length",
            "transfer-encoding",
            "upgrade",
        ] {
            request.headers_mut().remove(name);
        }
        request
    }

    async fn receive(&self, answer: http::Response<Incoming>) -> io::Result<Got> {
        let (head, mut body) = answer.into_parts();
        let mut bytes = BytesMut::new();
        let mut cut = false;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(io::Error::other)?.into_data() else {
                continue;
            };
            let room = self.most - bytes.len();
            bytes.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                cut = true;
                break;
            }
        }
        Ok(Got {
            status: head.status,
            headers: head.headers,
            body: bytes.freeze(),
            cut,
        })
    }
}

fn is_no_http1(error: &io::Error) -> bool {
    let cause = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<hyper::Error>());
    cause.is_some_and(hyper::Error::is_parse)
}
