//! A socket that is read in large portions, for readers that take small ones.
//!
//! TLS takes 4 KB at a time, which for large records would be a system call each. A buffer is held only while
//! something is in it. The first bytes may have been read by somebody else, who gives them back.

use crate::spare::{Buffer, Held};
use bytes::Bytes;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A portion that fills what the reader gave is likely to have more behind it.
#[derive(Debug)]
pub(crate) struct Batched {
    stream: TcpStream,
    held: Held,
    /// The last read filled the reader's own space.
    more: bool,
    /// Bytes read since the reader last had to wait.
    given: usize,
}

/// Bytes the reader takes in before others have their turn, who pass on what came while it is still in the
/// processor's cache.
const TURN: usize = 256 << 10;

impl Batched {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self::starting_with(Bytes::new(), stream)
    }

    /// As if these had not been read yet.
    pub(crate) fn starting_with(bytes: Bytes, stream: TcpStream) -> Self {
        Self {
            stream,
            held: Held::before(bytes),
            more: false,
            given: 0,
        }
    }

    pub(crate) fn get_ref(&self) -> &TcpStream {
        &self.stream
    }

    /// Gives what is held; false if that is nothing.
    fn give(&mut self, space: &mut ReadBuf<'_>) -> bool {
        let bytes = self.held.bytes();
        let count = space.remaining().min(bytes.len());
        space.put_slice(&bytes[..count]);
        let any = !bytes.is_empty();
        self.held.advance(count);
        any
    }
}

impl AsyncRead for Batched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.give(space) {
            return Poll::Ready(Ok(()));
        }
        if !self.more {
            // Small messages go straight to the reader.
            let (room, before) = (space.remaining(), space.filled().len());
            ready!(Pin::new(&mut self.stream).poll_read(cx, space))?;
            self.more = room > 0 && space.filled().len() - before == room;
            return Poll::Ready(Ok(()));
        }
        if self.given >= TURN {
            self.given = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut buffer = Buffer::take();
        let mut batch = ReadBuf::new(&mut buffer);
        let read = Pin::new(&mut self.stream).poll_read(cx, &mut batch)?;
        let end = batch.filled().len();
        self.given = if read.is_pending() { 0 } else { self.given + end };
        ready!(read);
        self.more = end > space.remaining();
        self.held = Held::read(buffer, end);
        self.give(space);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Batched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::Batched;
    use crate::spare::waiting;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// Small reads see every byte in order, whatever was read at once, and nothing is held when nothing is left.
    #[tokio::test]
    async fn small_reads_see_every_byte() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut reader = Batched::new(listener.accept().await.unwrap().0);
        let sent: Vec<u8> = (0..251).cycle().take(3_000_000).collect();
        let expected = sent.clone();
        let sending = tokio::spawn(async move { writer.write_all(&sent).await });
        let (mut heard, mut portion) = (Vec::new(), [0; 4096]);
        loop {
            let count = reader.read(&mut portion).await.unwrap();
            if count == 0 {
                break;
            }
            heard.extend_from_slice(&portion[..count]);
        }
        sending.await.unwrap().unwrap();
        assert!(heard == expected, "{} of {} bytes", heard.len(), expected.len());
        assert!(reader.held.bytes().is_empty());
        assert_eq!(waiting().0, 1, "one buffer was used, and given back");
    }

    #[tokio::test]
    async fn what_was_read_before_comes_first() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let stream = listener.accept().await.unwrap().0;
        writer.write_all(b" there").await.unwrap();
        drop(writer);
        let mut reader = Batched::starting_with("hello".into(), stream);
        let mut first = [0; 2];
        reader.read_exact(&mut first).await.unwrap();
        let mut rest = String::new();
        reader.read_to_string(&mut rest).await.unwrap();
        assert_eq!((&first, &*rest), (b"he", "llo there"));
    }
}
