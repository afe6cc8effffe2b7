//! HTTP requests of the agent: to the application, for its probes and its metrics.
//!
//! One request a connection, as the kubelet does, so that nothing is kept from an application that stops. Every answer
//! is cut at a size the caller chooses.

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

/// What to ask for.
#[derive(Debug, Clone)]
pub(crate) struct Get {
    pub(crate) to: SocketAddr,
    pub(crate) tls: bool,
    /// `Host`.
    pub(crate) host: String,
    /// With the query.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    /// Bytes of the body that are read.
    pub(crate) most: usize,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Whether there was more than was read.
    pub(crate) cut: bool,
}

/// Connects to the pod's own application.
// istio: from 127.0.0.6 or ::6, by which the capture rules know it and leave it alone.
pub(crate) async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let (socket, from): (_, IpAddr) = match to {
        SocketAddr::V4(_) => (TcpSocket::new_v4()?, Ipv4Addr::new(127, 0, 0, 6).into()),
        SocketAddr::V6(_) => (TcpSocket::new_v6()?, Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6).into()),
    };
    // ::6 is an address only where somebody added it; without it the kernel chooses.
    let _ = socket.bind(SocketAddr::new(from, 0));
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Get {
    /// Sends the request and reads the answer.
    pub(crate) async fn send(self) -> io::Result<Got> {
        let stream = connect(self.to).await?;
        if !self.tls {
            return match self.clone().http1(stream).await {
                // An application that speaks HTTP/2 only says so first, in bytes that are no answer of the older one.
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
        // These belong to one connection, not to the request.
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
