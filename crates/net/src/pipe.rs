//! Pipes for `splice`: bytes go from one socket to another without being copied into the process.

use crate::sys;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A non-blocking pipe, and the number of bytes in it.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    held: usize,
}

impl Pipe {
    /// Opens a pipe. Fails when the process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let (read, write) = sys::pipe()?;
        Ok(Self { read, write, held: 0 })
    }

    /// Requests a larger capacity and returns the new one. The kernel can refuse: the pipes of a user share a limit.
    pub fn grow(&mut self, bytes: usize) -> io::Result<usize> {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        sys::set_pipe_size(self.write.as_fd(), bytes)
    }

    /// The number of bytes in the pipe.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Moves up to `limit` bytes from a socket into the pipe; 0 is the end of the stream. With an empty pipe,
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) means that the socket has nothing to read.
    pub fn fill(&mut self, from: impl AsFd, limit: usize) -> io::Result<usize> {
        let now = sys::splice(from.as_fd(), self.write.as_fd(), limit)?;
        self.held += now;
        Ok(now)
    }

    /// Moves bytes from the pipe to a socket, as many as the socket accepts.
    pub fn empty(&mut self, to: impl AsFd) -> io::Result<usize> {
        let now = sys::splice(self.read.as_fd(), to.as_fd(), self.held)?;
        self.held = self.held.saturating_sub(now);
        Ok(now)
    }
}

#[cfg(test)]
mod tests {
    use super::Pipe;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_go_through_in_order_and_the_end_is_seen() {
        let ((mut writer, from), (to, mut reader)) = (pair(), pair());
        let words = b"through the kernel only";
        writer.write_all(words).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
        let mut pipe = Pipe::new().unwrap();
        let mut moved = 0;
        loop {
            match pipe.fill(&from, 7).unwrap() {
                0 => break,
                now => assert!(now <= 7),
            }
            while pipe.held() > 0 {
                moved += pipe.empty(&to).unwrap();
            }
        }
        assert_eq!(moved, words.len());
        drop(to);
        let mut heard = Vec::new();
        reader.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, words);
    }

    #[test]
    fn an_empty_socket_and_a_full_pipe_would_block() {
        let (writer, from) = pair();
        from.set_nonblocking(true).unwrap();
        let mut pipe = Pipe::new().unwrap();
        assert_eq!(pipe.fill(&from, 100).unwrap_err().kind(), ErrorKind::WouldBlock);
        let (to, _silent) = pair();
        to.set_nonblocking(true).unwrap();
        writer.set_nonblocking(true).unwrap();
        // No reader: at some point all buffers are full. Bytes in the pipe are neither lost nor counted twice.
        let (mut written, mut moved) = (0, 0);
        let portion = vec![5; 64 << 10];
        loop {
            match (&writer).write(&portion) {
                Ok(now) => written += now,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            if pipe.held() == 0 && pipe.fill(&from, 64 << 10).is_err() {
                continue;
            }
            match pipe.empty(&to) {
                Ok(now) => moved += now,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        assert!(pipe.held() > 0 && moved + pipe.held() <= written);
    }

    #[test]
    fn the_capacity_can_be_raised() {
        assert!(Pipe::new().unwrap().grow(128 << 10).unwrap() >= 128 << 10);
    }
}
