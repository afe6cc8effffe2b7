//! Packet capture: every frame that passes an interface.

use crate::{link, sys};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// A socket that receives a copy of every frame of one interface, in both directions.
#[derive(Debug)]
pub struct Capture(OwnedFd);

impl Capture {
    /// Captures on an interface of the calling thread's namespace.
    pub fn open(interface: &str) -> io::Result<Self> {
        let index = i32::try_from(link::index(interface)?).map_err(io::Error::other)?;
        let every = u16::try_from(libc::ETH_P_ALL).unwrap_or_default().to_be();
        // Protocol 0 until it is bound, so that nothing of other interfaces is received meanwhile.
        let fd = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        // A large receive buffer, so that a slow reader misses no frame.
        sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20)?;
        sys::bind_packet(fd.as_fd(), index, every)?;
        Ok(Self(fd))
    }

    /// The next frame, cut to the size of the buffer; `None` if no frame passes within `timeout`.
    pub fn next<'a>(&self, buffer: &'a mut [u8], timeout: Duration) -> io::Result<Option<&'a [u8]>> {
        let millis = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
        if !sys::poll(&[self.0.as_fd()], libc::POLLIN, millis)?.contains(&true) {
            return Ok(None);
        }
        let length = sys::receive(self.0.as_fd(), buffer)?.min(buffer.len());
        Ok(Some(&buffer[..length]))
    }
}
