//! One direction between two streams, through a buffer of this process.

use super::{CopyError, Names, ROUNDS};
use crate::spare::{Buffer, Held, SIZE};
use ::bytes::Bytes;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Portions of at least this size are many bytes on their way.
pub(super) const LARGE: usize = 16 << 10;
/// So many bytes in large portions, one after the other, are a flow that is worth a pipe.
const FLOW: usize = 256 << 10;

/// Why copying stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The reader's stream is over.
    Over,
    /// Many bytes flow; everything that was read has been written.
    Flow,
}

/// One direction, and what it holds.
#[derive(Debug)]
pub(super) struct Copying {
    held: Held,
    unsent: bool,
    flowed: usize,
}

impl Default for Copying {
    fn default() -> Self {
        Self::starting_with(Bytes::new())
    }
}

impl Copying {
    /// As if these had just been read.
    pub(super) fn starting_with(bytes: Bytes) -> Self {
        Self {
            held: Held::before(bytes),
            unsent: false,
            flowed: 0,
        }
    }

    /// Moves bytes until the reader's end, or until they flow. A buffer is kept only while it holds something.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut read: Pin<&mut impl AsyncRead>,
        mut write: Pin<&mut impl AsyncWrite>,
        count: &AtomicU64,
        names: &Names,
    ) -> Poll<Result<End, CopyError>> {
        let failed = |error| CopyError::Socket(names.writer, error);
        for _ in 0..ROUNDS {
            while !matches!(self.held, Held::Nothing) {
                let now = ready!(write.as_mut().poll_write(cx, self.held.bytes())).map_err(failed)?;
                if now == 0 {
                    return Poll::Ready(Err(failed(std::io::ErrorKind::WriteZero.into())));
                }
                count.fetch_add(now as u64, Ordering::Relaxed);
                self.unsent = true;
                self.held.advance(now);
            }
            if self.flowed >= FLOW {
                self.flowed = 0;
                return Poll::Ready(Ok(End::Flow));
            }
            let mut buffer = Buffer::take();
            let mut space = ReadBuf::new(&mut buffer);
            if let Poll::Ready(result) = read.as_mut().poll_read(cx, &mut space) {
                result.map_err(|error| CopyError::Socket(names.reader, error))?;
                let filled = space.filled().len();
                if filled == 0 {
                    return Poll::Ready(Ok(End::Over));
                }
                self.flowed = if filled >= LARGE { self.flowed + filled } else { 0 };
                self.held = Held::read(buffer, filled);
            } else {
                drop(buffer);
                // TLS keeps what it encrypted until it is told to send, and nothing follows for now.
                if self.unsent {
                    ready!(write.as_mut().poll_flush(cx)).map_err(failed)?;
                    self.unsent = false;
                }
                return Poll::Pending;
            }
        }
        // Others have their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

const _: () = assert!(LARGE <= SIZE);
