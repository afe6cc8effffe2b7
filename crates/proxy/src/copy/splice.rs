//! One direction between two sockets, through a pipe: the bytes stay in the kernel.

use super::bytes::LARGE;
use super::{CopyError, Names, ROUNDS};
use crate::spare::Line;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes asked for at once. The pipe holds whole fragments of packets, so this may be more than its size.
const PORTION: usize = 1 << 20;
/// So many small portions, one after the other, are no flow any more.
const TRICKLE: u8 = 8;

/// Why splicing stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The reader's stream is over.
    Over,
    /// Little flows, or there is no pipe now: copy.
    Trickle,
    /// These sockets cannot be spliced.
    Never,
}

/// What went into the pipe and did not come out yet.
#[derive(Debug, Default)]
pub(super) struct Splicing {
    line: Option<Line>,
    small: u8,
}

impl Splicing {
    /// Moves bytes until the reader's end or until little flows. A pipe is kept only while it holds something or
    /// more is coming; whenever this ends without an error it is empty.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        read: &TcpStream,
        write: &TcpStream,
        count: &AtomicU64,
        names: &Names,
    ) -> Poll<Result<End, CopyError>> {
        for _ in 0..ROUNDS {
            ready!(self.poll_empty(cx, write, count))
                .map_err(|error| CopyError::Socket(names.writer, error))?;
            if self.small >= TRICKLE {
                return Poll::Ready(Ok(End::Trickle));
            }
            let failed = |error| CopyError::Socket(names.reader, error);
            if read.poll_read_ready(cx).map_err(failed)?.is_pending() {
                self.line = None;
                return Poll::Pending;
            }
            match self.fill(read) {
                Ok(None) => return Poll::Ready(Ok(End::Trickle)),
                Ok(Some(0)) => return Poll::Ready(Ok(End::Over)),
                Ok(Some(now)) => self.small = if now < LARGE { self.small + 1 } else { 0 },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if impossible(&error) => return Poll::Ready(Ok(End::Never)),
                Err(error) => return Poll::Ready(Err(failed(error))),
            }
        }
        // Others have their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_empty(
        &mut self,
        cx: &mut Context<'_>,
        write: &TcpStream,
        count: &AtomicU64,
    ) -> Poll<io::Result<()>> {
        let Some(line) = &mut self.line else {
            return Poll::Ready(Ok(()));
        };
        while line.held() > 0 {
            ready!(write.poll_write_ready(cx))?;
            let Some(pipe) = line.pipe() else { break };
            match write.try_io(Interest::WRITABLE, || pipe.empty(write)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(now) => drop(count.fetch_add(now as u64, Ordering::Relaxed)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Bytes that came, or nothing where no pipe could be had.
    fn fill(&mut self, read: &TcpStream) -> io::Result<Option<usize>> {
        let line = match &mut self.line {
            Some(line) => line,
            // No descriptors, or too many pipes of this user: copying needs neither.
            none => match Line::take() {
                Ok(line) => none.insert(line),
                Err(_) => return Ok(None),
            },
        };
        let Some(pipe) = line.pipe() else { return Ok(None) };
        read.try_io(Interest::READABLE, || pipe.fill(read, PORTION))
            .map(Some)
    }
}

/// Kernels and sandboxes without splice for sockets say one of these, before any byte moved.
fn impossible(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied
    )
}
