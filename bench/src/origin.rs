//! The application behind the proxies: answers every request with two bytes, or swallows whatever comes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Captured, with answers.
pub const HTTP: u16 = 8080;
/// Not captured, with answers.
pub const HTTP_DIRECT: u16 = 8081;
/// Captured, swallowing.
pub const SINK: u16 = 5201;
/// Not captured, swallowing.
pub const SINK_DIRECT: u16 = 5202;

/// What is asked.
pub const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: cart.shop\r\nUser-Agent: remora-bench\r\n\r\n";
/// What is answered.
pub const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok";

/// Serves for ever on the calling thread.
pub fn serve(swallowed: Arc<AtomicU64>, ready: impl FnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    runtime.block_on(async move {
        let mut tasks = Vec::new();
        for port in [HTTP, HTTP_DIRECT, SINK, SINK_DIRECT] {
            let at = SocketAddr::from(([0, 0, 0, 0], port));
            let listener = remora_net::socket::TcpOptions::default()
                .listen(at)
                .expect("listen");
            listener.set_nonblocking(true).expect("listener");
            let listener = TcpListener::from_std(listener).expect("listener");
            let swallowed = Arc::clone(&swallowed);
            let sink = port == SINK || port == SINK_DIRECT;
            tasks.push(tokio::spawn(accept(listener, sink, swallowed)));
        }
        ready();
        for task in tasks {
            let _ = task.await;
        }
    });
}

async fn accept(listener: TcpListener, sink: bool, swallowed: Arc<AtomicU64>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        let swallowed = Arc::clone(&swallowed);
        tokio::spawn(async move {
            // Whoever goes away is gone.
            if sink {
                let _ = swallow(stream, &swallowed).await;
            } else {
                let _ = answer(stream).await;
            }
        });
    }
}

async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; REQUEST.len()];
    loop {
        // Every request is the same, so its length is known.
        stream.read_exact(&mut buffer).await?;
        stream.write_all(ANSWER).await?;
    }
}

async fn swallow(mut stream: TcpStream, swallowed: &AtomicU64) -> std::io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            count => drop(swallowed.fetch_add(count as u64, Ordering::Relaxed)),
        }
    }
}
