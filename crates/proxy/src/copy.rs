//! Moves bytes between two ends until both are done.
//!
//! Each direction ends on its own (half-close). An error on either side ends both, and the caller makes it a reset on
//! the other: a stream that broke must never look complete. A buffer or a pipe is held only while bytes are on their
//! way; a peer that does not read stops the other side from being read. A byte is counted when the other side's
//! kernel, or its tunnel, has taken it.
//!
//! Between two sockets large flows go through a pipe ([`splice`]), everything else through a buffer ([`bytes`]).

mod bytes;
mod splice;
#[cfg(test)]
mod tests;
mod tunnel;

pub(crate) use tunnel::{Counters, tunnel};

use self::bytes::Copying;
use self::splice::Splicing;
use crate::access::Traffic;
use ::bytes::Bytes;
use h2::Reason;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

/// Portions that one direction moves before others have their turn.
const ROUNDS: usize = 8;

/// Who reads and who writes, for messages.
struct Names {
    reader: &'static str,
    writer: &'static str,
}

static FORWARD: &Names = &Names {
    reader: "the client",
    writer: "the server",
};
static BACKWARD: &Names = &Names {
    reader: "the server",
    writer: "the client",
};

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

/// Between two sockets; `near` is the one who opened the connection, and `prefix` was read from it already.
pub(crate) async fn sockets(
    prefix: Bytes,
    near: &mut TcpStream,
    far: &mut TcpStream,
    traffic: &Traffic,
) -> Result<(), CopyError> {
    let (near_read, near_write) = near.split();
    let (far_read, far_write) = far.split();
    let mut forward = Half::new(near_read, far_write, FORWARD);
    forward.copying = Copying::starting_with(prefix);
    let mut backward = Half::new(far_read, near_write, BACKWARD);
    poll_fn(|cx| {
        let there = forward.poll(cx, traffic.forward(), Half::poll_sockets)?;
        let back = backward.poll(cx, traffic.backward(), Half::poll_sockets)?;
        both(there, back)
    })
    .await
}

/// Between two streams; `near` is the one who opened the connection.
pub(crate) async fn streams(
    near: &mut (impl AsyncRead + AsyncWrite + Unpin),
    far: &mut (impl AsyncRead + AsyncWrite + Unpin),
    traffic: &Traffic,
) -> Result<(), CopyError> {
    let (near_read, near_write) = tokio::io::split(near);
    let (far_read, far_write) = tokio::io::split(far);
    let mut forward = Half::new(near_read, far_write, FORWARD);
    let mut backward = Half::new(far_read, near_write, BACKWARD);
    poll_fn(|cx| {
        let there = forward.poll(cx, traffic.forward(), Half::poll_copy)?;
        let back = backward.poll(cx, traffic.backward(), Half::poll_copy)?;
        both(there, back)
    })
    .await
}

fn both(one: Poll<()>, other: Poll<()>) -> Poll<Result<(), CopyError>> {
    if one.is_ready() && other.is_ready() {
        Poll::Ready(Ok(()))
    } else {
        Poll::Pending
    }
}

/// One direction.
struct Half<R, W> {
    read: R,
    write: W,
    names: &'static Names,
    copying: Copying,
    splicing: Option<Splicing>,
    can_splice: bool,
    phase: Phase,
}

#[derive(PartialEq, Eq)]
enum Phase {
    Open,
    /// Everything was read and written; the writer is to be told.
    Closing,
    Closed,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Half<R, W> {
    fn new(read: R, write: W, names: &'static Names) -> Self {
        Self {
            read,
            write,
            names,
            copying: Copying::default(),
            splicing: None,
            can_splice: true,
            phase: Phase::Open,
        }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        count: &AtomicU64,
        portion: impl Fn(&mut Self, &mut Context<'_>, &AtomicU64) -> Poll<Result<(), CopyError>>,
    ) -> Poll<Result<(), CopyError>> {
        if self.phase == Phase::Open {
            ready!(portion(self, cx, count))?;
            self.phase = Phase::Closing;
        }
        if self.phase == Phase::Closing {
            let closed = ready!(Pin::new(&mut self.write).poll_shutdown(cx));
            closed.map_err(|error| CopyError::Socket(self.names.writer, error))?;
            self.phase = Phase::Closed;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>, count: &AtomicU64) -> Poll<Result<bytes::End, CopyError>> {
        let (read, write) = (Pin::new(&mut self.read), Pin::new(&mut self.write));
        self.copying.poll(cx, read, write, count, self.names)
    }

    /// Until the end of the reader's stream.
    fn poll_copy(&mut self, cx: &mut Context<'_>, count: &AtomicU64) -> Poll<Result<(), CopyError>> {
        while ready!(self.poll_bytes(cx, count))? == bytes::End::Flow {}
        Poll::Ready(Ok(()))
    }
}

impl Half<ReadHalf<'_>, WriteHalf<'_>> {
    /// Copies while little flows and splices while much does, until the end of the reader's stream.
    fn poll_sockets(&mut self, cx: &mut Context<'_>, count: &AtomicU64) -> Poll<Result<(), CopyError>> {
        loop {
            let Some(splicing) = &mut self.splicing else {
                match ready!(self.poll_bytes(cx, count))? {
                    bytes::End::Over => return Poll::Ready(Ok(())),
                    bytes::End::Flow => self.splicing = self.can_splice.then(Splicing::default),
                }
                continue;
            };
            let (read, write) = (self.read.as_ref(), self.write.as_ref());
            match ready!(splicing.poll(cx, read, write, count, self.names))? {
                splice::End::Over => return Poll::Ready(Ok(())),
                splice::End::Trickle => {}
                splice::End::Never => self.can_splice = false,
            }
            self.splicing = None;
        }
    }
}
