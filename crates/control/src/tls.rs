//! Accepts TLS connections, with limits: a caller that does not finish its handshake costs little and not for long.

use rustls::ServerConfig;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const HANDSHAKES_AT_ONCE: usize = 256;
/// After an error of accept (no descriptors left, say) the next attempt waits.
const PAUSE: Duration = Duration::from_millis(50);

/// The configuration for new connections.
pub(crate) type Current = Arc<RwLock<Arc<ServerConfig>>>;

/// Passes on connections whose handshake is done, until the receiver goes away.
pub(crate) async fn accept(
    listener: TcpListener,
    config: Current,
    ready: mpsc::Sender<io::Result<TlsStream<TcpStream>>>,
) {
    let permits = Arc::new(Semaphore::new(HANDSHAKES_AT_ONCE));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ready.closed() => return,
        };
        let Ok((stream, _)) = stream else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let acceptor = TlsAcceptor::from(Arc::clone(&config.read().unwrap_or_else(PoisonError::into_inner)));
        let ready = ready.clone();
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
            drop(permit);
            if let Ok(Ok(stream)) = shaken {
                let _ = ready.send(Ok(stream)).await;
            }
        });
    }
}
