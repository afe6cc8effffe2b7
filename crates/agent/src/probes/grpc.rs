//! One call of the gRPC health protocol, without a full gRPC client.

use super::fetch;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::Request;
use std::io;
use std::net::SocketAddr;

/// `grpc.health.v1.HealthCheckResponse.ServingStatus`.
const SERVING: u64 = 1;
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Succeeds if the service reports `SERVING`.
pub(super) async fn check(to: SocketAddr, service: &str) -> io::Result<()> {
    let stream = fetch::connect(to).await?;
    let (sender, connection) = h2::client::handshake(stream).await.map_err(io::Error::other)?;
    let driving = tokio::spawn(connection);
    let result = ask(sender, to, service).await;
    driving.abort();
    match result? {
        SERVING => Ok(()),
        other => Err(io::Error::other(format!(
            "the service is not serving, but {other}"
        ))),
    }
}

async fn ask(sender: h2::client::SendRequest<Bytes>, to: SocketAddr, service: &str) -> io::Result<u64> {
    let request = Request::post(format!("http://{to}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(io::Error::other)?;
    let mut sender = sender.ready().await.map_err(io::Error::other)?;
    let (answer, mut body) = sender.send_request(request, false).map_err(io::Error::other)?;
    body.send_data(question(service), true)
        .map_err(io::Error::other)?;
    let mut answer = answer.await.map_err(io::Error::other)?;
    status(answer.headers())?;
    let mut bytes = BytesMut::new();
    while let Some(data) = answer.body_mut().data().await {
        let data = data.map_err(io::Error::other)?;
        let _ = answer.body_mut().flow_control().release_capacity(data.len());
        bytes.extend_from_slice(&data);
        if bytes.len() > MAX_RESPONSE_BYTES {
            return Err(io::Error::other("the answer is too large"));
        }
    }
    if let Some(trailers) = answer.body_mut().trailers().await.map_err(io::Error::other)? {
        status(&trailers)?;
    }
    serving_status(&bytes).ok_or_else(|| io::Error::other("the answer is not one of the health protocol"))
}

fn status(headers: &http::HeaderMap) -> io::Result<()> {
    match headers.get("grpc-status").map(http::HeaderValue::as_bytes) {
        None | Some(b"0") => Ok(()),
        Some(code) => {
            let code = String::from_utf8_lossy(code);
            Err(io::Error::other(format!(
                "the health check ended with gRPC status {code}"
            )))
        }
    }
}

/// A message with one string in field 1, after the gRPC length prefix.
fn question(service: &str) -> Bytes {
    let mut message = BytesMut::new();
    if !service.is_empty() {
        message.put_u8(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.put_u8(low_bits(length) | 0x80);
            length >>= 7;
        }
        message.put_u8(low_bits(length));
        message.put_slice(service.as_bytes());
    }
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(&message);
    framed.freeze()
}

fn low_bits(number: usize) -> u8 {
    number.to_le_bytes()[0] & 0x7f
}

/// Field 1 of the first message; an absent field is 0.
fn serving_status(bytes: &[u8]) -> Option<u64> {
    let (prefix, rest) = bytes.split_at_checked(5)?;
    let length = u32::from_be_bytes(prefix[1..].try_into().ok()?) as usize;
    let mut message = rest.get(..length)?;
    if prefix[0] != 0 {
        return None;
    }
    let mut found = 0;
    while !message.is_empty() {
        let (key, value) = (varint(&mut message)?, message);
        if key & 7 != 0 {
            return None;
        }
        message = value;
        let value = varint(&mut message)?;
        if key >> 3 == 1 {
            found = value;
        }
    }
    Some(found)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{question, serving_status};

    #[test]
    fn messages_of_the_health_protocol() {
        assert_eq!(&question("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&question("ab")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let long = question(&"x".repeat(300));
        assert_eq!(&long[..8], [0, 0, 0, 1, 47, 0x0a, 0xac, 2]);
        assert_eq!(serving_status(&[0, 0, 0, 0, 2, 8, 1]), Some(1));
        assert_eq!(serving_status(&[0, 0, 0, 0, 0]), Some(0));
        for wrong in [
            &[][..],
            &[0, 0, 0, 0, 2, 8],
            &[1, 0, 0, 0, 0],
            &[0, 0, 0, 0, 2, 0x0a, 1],
        ] {
            assert_eq!(serving_status(wrong), None, "{wrong:?}");
        }
    }
}
