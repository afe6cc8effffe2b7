//! Moves bytes between two ends until both are done.
//!
//! Each direction ends on its own (half-close). An error on either side ends both, and the caller makes it a reset on
//! the other: a stream that broke must never look complete. A buffer exists only while bytes are on their way; a
//! peer that does not read stops the other side from being read.

use crate::access::Traffic;
use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

/// Buffers grow and shrink between these with what is read.
const SMALLEST: usize = 4 << 10;
const LARGEST: usize = 64 << 10;

/// Why bytes stopped moving.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error("reset by {0}: {1}")]
    Socket(&'static str, io::Error),
    #[error("reset through the tunnel: {0}")]
    Tunnel(#[from] h2::Error),
    #[error("reset through the tunnel: {0}")]
    Reset(Reason),
    #[error("the tunnel closed")]
    Closed,
}

/// Which counter counts what the socket's side says, and which what it hears.
pub(crate) struct Counters<'a> {
    pub(crate) from_socket: &'a AtomicU64,
    pub(crate) to_socket: &'a AtomicU64,
}

/// Between a socket and a stream of a tunnel.
pub(crate) async fn tunnel(
    tcp: &mut TcpStream,
    send: &mut SendStream<Bytes>,
    receive: &mut RecvStream,
    counters: &Counters<'_>,
) -> Result<(), CopyError> {
    let (read, write) = tcp.split();
    let up = into_tunnel(read, send, counters.from_socket);
    let down = out_of_tunnel(receive, write, counters.to_socket);
    tokio::try_join!(up, down).map(drop)
}

async fn into_tunnel(
    read: ReadHalf<'_>,
    send: &mut SendStream<Bytes>,
    count: &AtomicU64,
) -> Result<(), CopyError> {
    let failed = |error| CopyError::Socket("the socket", error);
    let mut size = SMALLEST;
    loop {
        tokio::select! {
            ready = read.readable() => ready.map_err(failed)?,
            reason = poll_fn(|cx| send.poll_reset(cx)) => return Err(CopyError::Reset(reason?)),
        }
        let mut buffer = BytesMut::with_capacity(size);
        match read.try_read_buf(&mut buffer) {
            Ok(0) => {
                send.send_data(Bytes::new(), true)?;
                return Ok(());
            }
            Ok(count_now) => {
                size = next_size(size, count_now);
                count.fetch_add(count_now as u64, Ordering::Relaxed);
                push(send, buffer.freeze()).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// As much as the peer's window takes, waiting for more of it.
async fn push(send: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), CopyError> {
    while !data.is_empty() {
        send.reserve_capacity(data.len());
        while send.capacity() == 0 {
            match poll_fn(|cx| send.poll_capacity(cx)).await {
                Some(capacity) => drop(capacity?),
                None => return Err(CopyError::Closed),
            }
        }
        let now = send.capacity().min(data.len());
        send.send_data(data.split_to(now), false)?;
    }
    Ok(())
}

async fn out_of_tunnel(
    receive: &mut RecvStream,
    mut write: WriteHalf<'_>,
    count: &AtomicU64,
) -> Result<(), CopyError> {
    let failed = |error| CopyError::Socket("the socket", error);
    while let Some(data) = receive.data().await {
        let data = data?;
        write.write_all(&data).await.map_err(failed)?;
        count.fetch_add(data.len() as u64, Ordering::Relaxed);
        // Only now may the peer send as much again.
        receive.flow_control().release_capacity(data.len())?;
    }
    write.shutdown().await.map_err(failed)
}

/// Between two streams; `near` is the one who opened the connection.
pub(crate) async fn streams(
    near: &mut (impl AsyncRead + AsyncWrite + Unpin),
    far: &mut (impl AsyncRead + AsyncWrite + Unpin),
    traffic: &Traffic,
) -> Result<(), CopyError> {
    let (near_read, near_write) = tokio::io::split(near);
    let (far_read, far_write) = tokio::io::split(far);
    let forward = half(
        near_read,
        far_write,
        traffic.forward(),
        ["the client", "the server"],
    );
    let backward = half(
        far_read,
        near_write,
        traffic.backward(),
        ["the server", "the client"],
    );
    tokio::try_join!(forward, backward).map(drop)
}

async fn half(
    mut read: impl AsyncRead + Unpin,
    mut write: impl AsyncWrite + Unpin,
    count: &AtomicU64,
    [reader, writer]: [&'static str; 2],
) -> Result<(), CopyError> {
    let mut size = SMALLEST;
    let mut buffer = BytesMut::with_capacity(size);
    loop {
        buffer.clear();
        buffer.reserve(size);
        let now = read
            .read_buf(&mut buffer)
            .await
            .map_err(|error| CopyError::Socket(reader, error))?;
        let failed = |error| CopyError::Socket(writer, error);
        if now == 0 {
            return write.shutdown().await.map_err(failed);
        }
        size = next_size(size, now);
        count.fetch_add(now as u64, Ordering::Relaxed);
        write.write_all(&buffer).await.map_err(failed)?;
        // TLS keeps what it encrypted until it is told to send.
        write.flush().await.map_err(failed)?;
    }
}

fn next_size(size: usize, read: usize) -> usize {
    if read >= size {
        (size * 2).min(LARGEST)
    } else if read < size / 4 {
        (size / 2).max(SMALLEST)
    } else {
        size
    }
}
