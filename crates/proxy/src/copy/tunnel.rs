//! Between a socket and a stream of a tunnel.

use super::bytes::LARGE;
use super::{CopyError, ROUNDS};
use crate::spare::{Buffer, SIZE};
use bytes::{Buf, Bytes};
use h2::{RecvStream, SendStream};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

/// Up to this a portion is copied once more rather than left in a buffer that is mostly empty.
const SMALL: usize = 16 << 10;

/// Bytes read at once: with the head of a frame they fill whole records of TLS.
const PORTION: usize = SIZE - 9;
/// Bytes given to the socket at once. Every call may wake somebody on another CPU, which costs as much as copying half
/// of this.
const BATCH: usize = 256 << 10;
/// Pieces of these.
const PIECES: usize = 16;

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
    let mut up = Up {
        read,
        send,
        rest: Bytes::new(),
        over: false,
    };
    let mut down = Down {
        write,
        receive,
        rest: Bytes::new(),
        more: Vec::new(),
        taken: 0,
        over: false,
    };
    poll_fn(|cx| {
        let down_now = down.poll(cx, counters.to_socket)?;
        let up_now = up.poll(cx, counters.from_socket)?;
        if up_now.is_ready() && down_now.is_ready() {
            return Poll::Ready(Ok(()));
        }
        // While nothing is read from the tunnel a reset would not be noticed.
        if (down.over || !down.rest.is_empty())
            && let Poll::Ready(reason) = up.send.poll_reset(cx)?
        {
            return Poll::Ready(Err(CopyError::Reset(reason)));
        }
        Poll::Pending
    })
    .await
}

fn failed(error: io::Error) -> CopyError {
    CopyError::Socket("the socket", error)
}

/// From the socket into the tunnel.
struct Up<'a> {
    read: ReadHalf<'a>,
    send: &'a mut SendStream<Bytes>,
    /// Read, and the tunnel has no room for it yet.
    rest: Bytes,
    over: bool,
}

impl Up<'_> {
    fn poll(&mut self, cx: &mut Context<'_>, count: &AtomicU64) -> Poll<Result<(), CopyError>> {
        if self.over {
            return Poll::Ready(Ok(()));
        }
        let mut moved = 0;
        // Much at once would have left the processor's cache before the tunnel's turn comes to encrypt it.
        while moved < PORTION {
            ready!(self.poll_push(cx, count))?;
            self.rest = ready!(self.poll_read(cx)).map_err(failed)?;
            moved += self.rest.len();
            if self.rest.is_empty() {
                self.send.send_data(Bytes::new(), true)?;
                self.over = true;
                return Poll::Ready(Ok(()));
            }
        }
        ready!(self.poll_push(cx, count))?;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// As much as the peer's window takes.
    fn poll_push(&mut self, cx: &mut Context<'_>, count: &AtomicU64) -> Poll<Result<(), CopyError>> {
        while !self.rest.is_empty() {
            self.send.reserve_capacity(self.rest.len());
            while self.send.capacity() == 0 {
                match ready!(self.send.poll_capacity(cx)) {
                    Some(capacity) => drop(capacity?),
                    None => return Poll::Ready(Err(CopyError::Closed)),
                }
            }
            let now = self.send.capacity().min(self.rest.len());
            self.send.send_data(self.rest.split_to(now), false)?;
            count.fetch_add(now as u64, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }

    /// A short read says that there is no more for now, so the next one waits for the kernel's word.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        let mut buffer = Buffer::take();
        let mut space = ReadBuf::new(&mut buffer[..PORTION]);
        ready!(Pin::new(&mut self.read).poll_read(cx, &mut space))?;
        let count = space.filled().len();
        Poll::Ready(Ok(if count <= SMALL {
            Bytes::copy_from_slice(&buffer[..count])
        } else {
            buffer.into_bytes(count)
        }))
    }
}

/// Out of the tunnel into the socket.
struct Down<'a> {
    write: WriteHalf<'a>,
    receive: &'a mut RecvStream,
    /// Came, and the socket has no room for it yet.
    rest: Bytes,
    /// Came after that.
    more: Vec<Bytes>,
    /// Bytes the socket took and the peer was not told about.
    taken: usize,
    over: bool,
}

impl Down<'_> {
    fn poll(&mut self, cx: &mut Context<'_>, count: &AtomicU64) -> Poll<Result<(), CopyError>> {
        if self.over {
            return Poll::Ready(Ok(()));
        }
        for _ in 0..ROUNDS {
            ready!(self.poll_write(cx, count))?;
            let Some(data) = ready!(self.receive.poll_data(cx)) else {
                ready!(Pin::new(&mut self.write).poll_shutdown(cx)).map_err(failed)?;
                self.over = true;
                return Poll::Ready(Ok(()));
            };
            self.rest = data?;
            if self.rest.len() >= LARGE {
                self.gather(cx)?;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes what else has come, to write it at once.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<(), CopyError> {
        let mut held = self.rest.len();
        while held < BATCH && self.more.len() + 1 < PIECES {
            // An end is seen again by whoever looks next.
            let Poll::Ready(Some(data)) = self.receive.poll_data(cx) else {
                break;
            };
            let data = data?;
            held += data.len();
            self.more.push(data);
        }
        Ok(())
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, count: &AtomicU64) -> Poll<Result<(), CopyError>> {
        while !self.rest.is_empty() {
            let now = ready!(self.poll_write_held(cx)).map_err(failed)?;
            if now == 0 {
                return Poll::Ready(Err(failed(io::ErrorKind::WriteZero.into())));
            }
            count.fetch_add(now as u64, Ordering::Relaxed);
            self.taken += now;
            self.written(now);
        }
        // Only now may the peer send as much again.
        let taken = std::mem::take(&mut self.taken);
        if taken > 0 {
            self.receive.flow_control().release_capacity(taken)?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.write);
        if self.more.is_empty() {
            return write.poll_write(cx, &self.rest);
        }
        let mut pieces = [IoSlice::new(&self.rest); PIECES];
        for (place, data) in pieces[1..].iter_mut().zip(&self.more) {
            *place = IoSlice::new(data);
        }
        write.poll_write_vectored(cx, &pieces[..=self.more.len()])
    }

    /// Forgets so many bytes of what is held.
    fn written(&mut self, mut count: usize) {
        let mut done = 0;
        while count >= self.rest.len() {
            count -= self.rest.len();
            self.rest = Bytes::new();
            let Some(next) = self.more.get_mut(done) else {
                break;
            };
            self.rest = std::mem::take(next);
            done += 1;
        }
        self.rest.advance(count);
        self.more.drain(..done);
        if self.more.is_empty() {
            self.more = Vec::new();
        }
    }
}
