//! TLS for probes, which believes everybody.

use rustls::pki_types::ServerName;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Speaks TLS over a connection.
pub(super) async fn over(stream: TcpStream, address: IpAddr) -> io::Result<TlsStream<TcpStream>> {
    let config = remora_mtls::probe_client(&[]).map_err(io::Error::other)?;
    let name = ServerName::IpAddress(address.into());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

#[cfg(test)]
mod tests {
    use crate::pod::Attempt;
    use remora_net::Namespace;
    use rustls::pki_types::PrivateKeyDer;
    use serde_json::json;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// Answers every request over TLS with a certificate nobody knows.
    async fn serve(listener: TcpListener) {
        let made = rcgen::generate_simple_self_signed(["somebody.else".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let config = rustls::ServerConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // Somebody who does not speak TLS is turned away.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut buffer = [0; 4096];
            let _ = stream.read(&mut buffer).await.unwrap();
            stream
                .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                .await
                .unwrap();
            stream.shutdown().await.unwrap();
        }
    }

    #[test]
    fn a_probe_by_https_believes_everybody() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            tokio::spawn(serve(listener));
            let patience = Duration::from_secs(20);
            for (scheme, works) in [("HTTPS", true), ("HTTP", false)] {
                let raw = json!({"httpGet": {"path": "/", "scheme": scheme}});
                let here = Namespace::current().unwrap();
                let attempt = Attempt::new(
                    here,
                    &raw,
                    Some([127, 0, 0, 1].into()),
                    Some(port),
                    "kube-probe/1.38",
                );
                assert_eq!(attempt.http_succeeds(patience).await, works, "{scheme}");
            }
        });
    }
}
