//! A stream that ends with its place in the registry.

use crate::registry::{Connection, Eviction};
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A client's stream. Reading and writing fail when the connection was evicted, or when it is still pending after the
/// time for that. So every protocol on top of it ends, without knowing of limits.
#[derive(Debug)]
pub struct Tracked<S> {
    stream: S,
    connection: Connection,
    eviction: Option<Eviction>,
    /// While the connection is pending.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Tracked<S> {
    pub(crate) fn new(stream: S, connection: Connection, eviction: Eviction, pending: Duration) -> Self {
        Self {
            stream,
            connection,
            eviction: Some(eviction),
            deadline: Some(Box::pin(tokio::time::sleep(pending))),
        }
    }

    /// Its place among the others.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Some(eviction) = &mut self.eviction
            && Pin::new(eviction).poll(context).is_ready()
        {
            self.eviction = None;
        }
        if self.eviction.is_none() {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "closed to make room for other clients",
            ));
        }
        let Some(deadline) = &mut self.deadline else {
            return Ok(());
        };
        if !self.connection.is_pending() {
            self.deadline = None;
        } else if deadline.as_mut().poll(context).is_ready() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no request in time"));
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tracked<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tracked<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
