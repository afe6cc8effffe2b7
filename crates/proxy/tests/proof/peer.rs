//! Peers of the test's own: clients and servers of tunnels that behave as no proxy should.

use crate::scene::PROXY;
use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request, StatusCode, Version};
use remora_mtls::{AlpnProfile, Identity, SpiffeId};
use remora_net::{Namespace, privilege};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Runs in a namespace, as the proxy's user so that nothing is captured.
pub(crate) fn inside<T: Send>(namespace: &Namespace, work: impl AsyncFnOnce() -> T + Send) -> T {
    as_user(namespace, PROXY, work)
}

/// Runs in a namespace, as a user.
pub(crate) fn as_user<T: Send>(namespace: &Namespace, user: u32, work: impl AsyncFnOnce() -> T + Send) -> T {
    let run = || {
        namespace.enter().unwrap();
        privilege::become_user(user, user).unwrap();
        runtime().block_on(work())
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// A server in a namespace, on a thread of its own; ends with the value.
pub(crate) struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Gives every connection to `behaviour`, each on a task of its own.
    pub(crate) fn start<F: Future<Output = ()> + 'static>(
        namespace: &Namespace,
        at: SocketAddr,
        behaviour: impl Fn(TcpStream) -> F + Send + 'static,
    ) -> Self {
        let listener = remora_testkit::Actor::new(namespace, PROXY, PROXY).run(move || {
            let options = remora_net::socket::TcpOptions::default();
            options.listen(at).unwrap()
        });
        listener.set_nonblocking(true).unwrap();
        let (stop, told) = oneshot::channel();
        let inside = namespace.clone();
        let thread = std::thread::spawn(move || {
            inside.enter().unwrap();
            privilege::become_user(PROXY, PROXY).unwrap();
            let tasks = tokio::task::LocalSet::new();
            tasks.block_on(&runtime(), async move {
                let listener = TcpListener::from_std(listener).unwrap();
                let serving = async {
                    while let Ok((stream, _)) = listener.accept().await {
                        tokio::task::spawn_local(behaviour(stream));
                    }
                };
                tokio::select! {
                    () = serving => {}
                    _ = told => {}
                }
            });
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A tunnel to a proxy, as `identity`.
pub(crate) async fn tunnel(
    identity: &Identity,
    proxy: SocketAddr,
    peer: &SpiffeId,
) -> std::io::Result<SendRequest<Bytes>> {
    let config = identity
        .client(std::slice::from_ref(peer), AlpnProfile::Hbone)
        .unwrap();
    let stream = TcpStream::connect(proxy).await?;
    let name = rustls::pki_types::ServerName::IpAddress(proxy.ip().into());
    let tls = TlsConnector::from(config).connect(name, stream).await?;
    let (requests, connection) = h2::client::handshake(tls).await.map_err(std::io::Error::other)?;
    tokio::spawn(connection);
    Ok(requests)
}

/// The request for a connection to an address.
pub(crate) fn connect(target: impl std::fmt::Display) -> Request<()> {
    Request::builder()
        .method(Method::CONNECT)
        .version(Version::HTTP_2)
        .uri(target.to_string())
        .body(())
        .unwrap()
}

/// The status a request is answered with.
pub(crate) async fn ask(requests: &mut SendRequest<Bytes>, request: Request<()>) -> StatusCode {
    let (response, _send) = requests.send_request(request, false).unwrap();
    response.await.unwrap().status()
}

/// Serves a tunnel that allows so many streams at once and repeats what it hears.
pub(crate) async fn echo_tunnel(stream: TcpStream, identity: Arc<Identity>, streams: u32) {
    let acceptor = TlsAcceptor::from(identity.server(AlpnProfile::Hbone));
    let tls = acceptor.accept(stream).await.unwrap();
    let mut connection = h2::server::Builder::new()
        .max_concurrent_streams(streams)
        .handshake::<_, Bytes>(tls)
        .await
        .unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        tokio::spawn(async move {
            let Ok(mut send) = respond.send_response(http::Response::new(()), false) else {
                return;
            };
            let mut body = request.into_body();
            while let Some(Ok(data)) = body.data().await {
                let _ = body.flow_control().release_capacity(data.len());
                if send.send_data(data, false).is_err() {
                    return;
                }
            }
            let _ = send.send_data(Bytes::new(), true);
        });
    }
}

pub(crate) fn cart() -> SpiffeId {
    "spiffe://td/ns/shop/sa/cart".parse().unwrap()
}

/// An application that repeats what it hears, without a thread for each connection.
pub(crate) async fn echo(mut stream: TcpStream) {
    let (mut read, mut write) = stream.split();
    if tokio::io::copy(&mut read, &mut write).await.is_ok() {
        let _ = write.shutdown().await;
    }
}

/// Says a word and hears the same.
pub(crate) async fn exchange(stream: &mut TcpStream, word: &[u8]) -> std::io::Result<()> {
    stream.write_all(word).await?;
    let mut heard = vec![0; word.len()];
    tokio::time::timeout(crate::scene::PATIENCE, stream.read_exact(&mut heard)).await??;
    assert_eq!(heard, word);
    Ok(())
}
