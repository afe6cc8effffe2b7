//! An API server of a few lines: it knows how to list nodes, page by page, and remembers what it was asked.

use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Status and body for the head of a request.
pub(crate) type Answer = dyn Fn(&str) -> (u16, String) + Send + Sync;

/// Runs until dropped.
pub(crate) struct ApiServer {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ApiServer {
    pub(crate) fn plain(answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> Self {
        Self::start(None, Box::new(answer))
    }

    pub(crate) fn tls(
        authority: &Authority,
        answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        Self::start(Some(authority.server()), Box::new(answer))
    }

    fn start(tls: Option<Arc<ServerConfig>>, answer: Box<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let stopping = Arc::new(AtomicBool::new(false));
        let (seen, stop) = (Arc::clone(&heads), Arc::clone(&stopping));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                // A client that leaves in the middle is its own affair.
                let _ = serve(stream.unwrap(), tls.as_ref(), &answer, &seen);
            }
        });
        Self {
            address,
            heads,
            stopping,
            thread: Some(thread),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The heads of the requests so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Wakes the thread up.
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().unwrap().join();
    }
}

fn serve(
    stream: TcpStream,
    tls: Option<&Arc<ServerConfig>>,
    answer: &Answer,
    seen: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    match tls {
        None => exchange(stream, answer, seen),
        Some(config) => {
            let connection = ServerConnection::new(Arc::clone(config)).map_err(std::io::Error::other)?;
            let mut stream = StreamOwned::new(connection, stream);
            exchange(&mut stream, answer, seen)?;
            stream.conn.send_close_notify();
            stream.flush()
        }
    }
}

fn exchange(
    mut stream: impl Read + Write,
    answer: &Answer,
    seen: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte)? == 0 {
            return Ok(());
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let (status, body) = answer(&head);
    seen.lock().unwrap().push(head);
    write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )?;
    stream.flush()
}

/// A list of nodes, with the token of the page after it if there is one.
pub(crate) fn nodes(nodes: &[(&str, &str)], next: &str) -> String {
    let items: Vec<_> = nodes
        .iter()
        .map(|(name, version)| {
            json!({"metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": version}}})
        })
        .collect();
    json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"continue": next}, "items": items})
        .to_string()
}

/// A certificate authority that lives as long as a test.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { issuer }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for a name, with its key.
    pub(crate) fn issue(&self, name: &str) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// A server that wants to see a certificate of this authority.
    fn server(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .unwrap();
        let (certificate, key) = self.issue("127.0.0.1");
        let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .unwrap();
        Arc::new(config)
    }
}
