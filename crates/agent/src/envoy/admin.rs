//! Client of Envoy's admin interface, on loopback. Every request has a timeout.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;

/// A healthy Envoy answers within milliseconds, a busy one within a second.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Size limit of a response: filtered statistics of a large mesh.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// A request to the admin interface failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminError {
    /// The connection failed.
    #[error("ask Envoy for {path}")]
    Ask {
        /// Path of the request.
        path: String,
        /// Error of the connection.
        #[source]
        source: io::Error,
    },
    /// The status is not 200.
    #[error("Envoy answered {status} to {path}: {body}")]
    Status {
        /// Path of the request.
        path: String,
        /// Status of the response.
        status: u16,
        /// Body of the response.
        body: String,
    },
}

/// The admin interface of one Envoy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Admin(pub(super) SocketAddr);

impl Admin {
    /// Whether Envoy serves: its state is `LIVE` and its workers run.
    pub(super) async fn is_live(self) -> bool {
        self.ask(Method::GET, "/ready").await.is_ok()
    }

    /// Starts a graceful drain of the inbound listeners: open connections may finish. Outbound connections of the
    /// application still work.
    pub(super) async fn drain(self) -> Result<(), AdminError> {
        let path = "/drain_listeners?inboundonly&graceful";
        self.ask(Method::POST, path).await.map(drop)
    }

    /// The same, but Envoy keeps listening: for the drain hook, after which the application may still run for long.
    pub(super) async fn drain_gently(self) -> Result<(), AdminError> {
        let path = "/drain_listeners?inboundonly&graceful&skip_exit";
        self.ask(Method::POST, path).await.map(drop)
    }

    /// Connections that are open now, on listeners that carry traffic.
    pub(super) async fn active_connections(self) -> Result<u64, AdminError> {
        let text = self
            .ask(Method::GET, "/stats?usedonly&filter=downstream_cx_active$")
            .await?;
        Ok(count(&text))
    }

    async fn ask(self, method: Method, path: &str) -> Result<String, AdminError> {
        let failed = |source| AdminError::Ask {
            path: path.to_owned(),
            source,
        };
        let asked = tokio::time::timeout(REQUEST_TIMEOUT, exchange(self.0, method, path)).await;
        let (status, body) = asked
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(failed)?;
        if status == 200 {
            return Ok(body);
        }
        Err(AdminError::Status {
            path: path.to_owned(),
            status,
            body: body.trim().to_owned(),
        })
    }
}

async fn exchange(at: SocketAddr, method: Method, path: &str) -> io::Result<(u16, String)> {
    let stream = TcpStream::connect(at).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, at.to_string())
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let talk = async {
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
            .collect()
            .await;
        let body = body.map_err(io::Error::other)?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    tokio::pin!(connection);
    tokio::select! {
        done = talk => done,
        // The connection task runs only until the response has arrived.
        ended = &mut connection => match ended {
            Err(error) => Err(io::Error::other(error)),
            Ok(()) => Err(io::ErrorKind::UnexpectedEof.into()),
        },
    }
}

/// Adds up `listener.*.downstream_cx_active` lines.
// istio: neither workers' own counts, nor Envoy's internal listeners, administration, readiness and metrics.
fn count(text: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines
        .filter(|(name, _)| name.starts_with("listener.") && !name.contains(".worker_"))
        .filter(|(name, _)| {
            let own = ["listener.admin", "listener.envoy_internal_"];
            let ports = ["_15021", "_15090", "_15006.worker"];
            !own.iter().any(|own| name.starts_with(own)) && !ports.iter().any(|port| name.contains(port))
        })
        .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn only_connections_that_carry_traffic_are_counted() {
        let text = "listener.0.0.0.0_15006.downstream_cx_active: 3\n\
                    listener.0.0.0.0_15001.downstream_cx_active: 2\n\
                    listener.0.0.0.0_15006.worker_0.downstream_cx_active: 3\n\
                    listener.0.0.0.0_15021.downstream_cx_active: 1\n\
                    listener.0.0.0.0_15090.downstream_cx_active: 1\n\
                    listener.admin.downstream_cx_active: 1\n\
                    listener.envoy_internal_x.downstream_cx_active: 4\n\
                    http.inbound.downstream_cx_active: 9\n\
                    nonsense\n";
        assert_eq!(count(text), 5);
        assert_eq!(count(""), 0);
    }
}
