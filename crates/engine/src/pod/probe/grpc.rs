//! `grpc.health.v1.Health/Check` over plaintext HTTP/2.

use std::io;

use bytes::Bytes;
use http::{HeaderValue, Request};
use tokio::net::TcpStream;

const PATH: &str = "/grpc.health.v1.Health/Check";
/// Field 1 of the answer, as a varint: serving.
const SERVING: [u8; 2] = [0x08, 1];

/// Asks whether a service (the whole server if the name is empty) serves.
pub(super) async fn serves(stream: TcpStream, service: &str) -> io::Result<bool> {
    let broken = |error: h2::Error| io::Error::other(error);
    let (client, connection) = h2::client::handshake(stream).await.map_err(broken)?;
    let driver = tokio::spawn(connection);
    let mut client = client.ready().await.map_err(broken)?;
    let request = Request::post(format!("http://pod{PATH}"))
        .header("content-type", HeaderValue::from_static("application/grpc"))
        .header("te", HeaderValue::from_static("trailers"))
        .header("user-agent", HeaderValue::from_static("kube-probe/1.38"))
        .body(())
        .map_err(io::Error::other)?;
    let (response, mut body) = client.send_request(request, false).map_err(broken)?;
    body.send_data(message(service), true).map_err(broken)?;
    let mut answer = response.await.map_err(broken)?.into_body();
    let mut bytes = Vec::new();
    while let Some(part) = answer.data().await {
        let part = part.map_err(broken)?;
        bytes.extend_from_slice(&part);
        answer
            .flow_control()
            .release_capacity(part.len())
            .map_err(broken)?;
        if bytes.len() > 1024 {
            break;
        }
    }
    driver.abort();
    Ok(bytes.get(5..) == Some(&SERVING[..]))
}

/// A request with its length in front: not compressed, field 1 is the name.
fn message(service: &str) -> Bytes {
    let name = &service.as_bytes()[..service.len().min(120)];
    let length = u8::try_from(name.len()).unwrap_or(0);
    let mut body = Vec::new();
    if length > 0 {
        body.extend_from_slice(&[0x0a, length]);
        body.extend_from_slice(name);
    }
    let mut whole = vec![0, 0, 0, 0, u8::try_from(body.len()).unwrap_or(0)];
    whole.extend_from_slice(&body);
    Bytes::from(whole)
}
