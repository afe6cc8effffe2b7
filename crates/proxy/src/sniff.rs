//! Finds out what a connection speaks from its first bytes, without losing them.
//!
//! Bounded in bytes here and in time by the caller. Whatever was read is given back.

use bytes::{Bytes, BytesMut};
use rustls::server::Acceptor;
use std::io;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// One TLS record: a first message that is longer is none of a proxy.
pub(crate) const LONGEST: usize = (16 << 10) + 5;
/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 22;

/// What a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speech {
    /// No TLS, or nothing at all before its end.
    Plain,
    /// TLS from a sidecar: it offers one of Istio's protocols.
    Mesh,
    /// TLS that is the application's own business.
    Foreign,
}

/// Protocols by which sidecars know each other.
// istio: filterchain_options.go, mtlsHTTPALPNs and mtlsTCPALPNs.
const MESH_PROTOCOLS: [&[u8]; 5] = [
    b"istio",
    b"istio-peer-exchange",
    b"istio-http/1.0",
    b"istio-http/1.1",
    b"istio-h2",
];

/// Judges the first bytes; `None` when there are too few.
pub fn judge(bytes: &[u8]) -> Option<Speech> {
    match bytes.first() {
        None => return None,
        Some(&HANDSHAKE) => {}
        Some(_) => return Some(Speech::Plain),
    }
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        match acceptor.read_tls(&mut rest) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                let mut offered = hello.alpn().into_iter().flatten();
                let mesh = offered.any(|protocol| MESH_PROTOCOLS.contains(&protocol));
                return Some(if mesh { Speech::Mesh } else { Speech::Foreign });
            }
            Ok(None) => {}
            // It starts like TLS and is not: the application may know what it is.
            Err(_) => return Some(Speech::Plain),
        }
    }
    (bytes.len() >= LONGEST).then_some(Speech::Foreign)
}

/// A connection whose first bytes are looked at.
#[derive(Debug)]
pub(crate) struct Sniffer {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Sniffer {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            buffer: BytesMut::new(),
        }
    }

    /// Reads until it is clear.
    ///
    /// Cancel safety: what was read stays in the buffer; may be called again.
    pub(crate) async fn speech(&mut self) -> io::Result<Speech> {
        loop {
            if let Some(speech) = judge(&self.buffer) {
                return Ok(speech);
            }
            self.buffer.reserve(2048);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(Speech::Plain);
            }
        }
    }

    /// What was read already, and the rest.
    pub(crate) fn into_parts(self) -> (Bytes, TcpStream) {
        (self.buffer.freeze(), self.stream)
    }

    pub(crate) fn get_ref(&self) -> &TcpStream {
        &self.stream
    }
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, Speech, judge};
    use rustls::pki_types::ServerName;
    use std::sync::Arc;

    /// The first flight of a client that offers these protocols.
    fn hello(protocols: &[&str]) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        let name = ServerName::try_from("outbound_.80_._.cart.shop.svc.cluster.local").unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_protocols_a_client_offers_decide() {
        for (offered, expected) in [
            (&["istio"][..], Speech::Mesh),
            (&["istio-peer-exchange", "istio"], Speech::Mesh),
            (&["istio-http/1.1", "istio", "http/1.1"], Speech::Mesh),
            (&["h2", "istio-h2"], Speech::Mesh),
            (&["h2", "http/1.1"], Speech::Foreign),
            (&["istio2"], Speech::Foreign),
            (&[], Speech::Foreign),
        ] {
            assert_eq!(judge(&hello(offered)), Some(expected), "{offered:?}");
        }
    }

    #[test]
    fn no_prefix_of_a_hello_decides_and_every_other_first_byte_does() {
        let hello = hello(&["istio"]);
        for length in 0..hello.len() {
            assert_eq!(judge(&hello[..length]), None, "{length} of {} bytes", hello.len());
        }
        for first in (0..=255).filter(|byte| *byte != 22) {
            assert_eq!(judge(&[first]), Some(Speech::Plain));
        }
    }

    #[test]
    fn what_only_starts_like_tls_is_the_applications() {
        assert_eq!(judge(&[22, 9, 9, 0, 4, 1, 2, 3, 4]), Some(Speech::Plain));
        assert_eq!(judge(&[22; 64]), Some(Speech::Plain));
        // A record that never ends is not waited for for ever.
        let mut endless = vec![22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];
        endless.resize(LONGEST, 0);
        assert!(judge(&endless).is_some());
    }
}
